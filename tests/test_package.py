"""The package itself: cheap to import, and every public name leads somewhere."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

import airvlm


def test_importing_the_package_imports_no_model_library() -> None:
    script = "import sys, airvlm; assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_whoever_plans_and_runs_batches_waits_for_no_model_library_before_the_model() -> None:
    script = "import sys, airvlm.evaluation.ray_cluster; assert not {'torch', 'transformers'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("name", airvlm.__all__)
def test_every_public_name_leads_to_what_it_names(name: str) -> None:
    assert getattr(airvlm, name).__name__ == name
    assert name in dir(airvlm)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        airvlm.Nothing  # noqa: B018 - the access is the test


def test_the_version_is_that_of_the_installation() -> None:
    try:
        installed = version("airvlm")
    except PackageNotFoundError:
        pytest.skip("airvlm runs from its source folder and is not installed")
    assert installed == airvlm.__version__

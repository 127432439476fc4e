"""The package itself: cheap to import, and every public name is there."""

import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import airvlm

ROOT = Path(__file__).parents[1]


def test_importing_the_package_imports_no_model_library() -> None:
    script = "import sys, airvlm; assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_importing_the_evaluation_imports_no_model_library() -> None:
    script = "import sys, airvlm.evaluation.ray_cluster; assert not {'torch', 'transformers'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_importing_the_checks_imports_no_model_library() -> None:
    script = "import sys, airvlm.testing; assert not {'torch', 'transformers', 'numpy', 'pytest'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_importing_the_model_class_imports_no_model_code() -> None:
    """transformers' model code and torch's compiler take longer to import than torch and transformers themselves."""
    script = """
import sys, torch, transformers
before = set(sys.modules)
from airvlm import VLM
new = set(sys.modules) - before
slow = {"transformers.modeling_utils", "transformers.modeling_outputs", "torch._dynamo", "torch.distributed.tensor"}
slow |= {"sympy", "scipy", "accelerate", "jinja2", "pandas", "matplotlib", "airvlm.methods.public"}
assert not slow & new, slow & new
assert len(new) <= 110, len(new)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", airvlm.__all__)
def test_every_public_name_is_what_it_names(name: str) -> None:
    assert getattr(airvlm, name).__name__.split(".")[-1] == name
    assert name in dir(airvlm)


def test_dir_shows_public_names_only() -> None:
    assert set(dir(airvlm)) == {*airvlm.__all__, "__version__"}


def test_what_users_and_authors_need_is_at_the_top() -> None:
    names = """
        VLM Answer Report Method option get_method list_methods AIR AIRMemory CropBlend MemVR VAF VCD Composed CutOff
        EOSBias YesBias RandomCrops FarthestCrops NoisyCrops MeanToken OtherImage ShrunkCrops AttentionMethod
        FeedForwardMethod LogitsMethod VisualTokenMethod Context ForwardPass Intervention ModelParts MethodNotApplied
        MethodInactiveWarning ModelInUseError UnsupportedModel LoadError BadImage WrongImages testing tiny
    """
    assert not set(names.split()) - set(airvlm.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        airvlm.Nothing  # noqa: B018 - the access is the test


def test_versions_of_the_lists_agree() -> None:
    def pins(name: str) -> dict[str, str]:
        lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
        return {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}

    tested = pins("constraints.txt")
    for name in ("constraints-web.txt", "constraints-docs.txt"):
        other = {package: version for package, version in pins(name).items() if package in tested}
        assert other and other == {package: tested[package] for package in other}


def test_the_version_is_written_in_one_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    written = (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text()
    assert f'__version__ = "{airvlm.__version__}"' in written
    assert "\nversion:" not in (ROOT / "CITATION.cff").read_text()


def test_the_version_is_that_of_the_installation() -> None:
    try:
        installed = version("airvlm")
    except PackageNotFoundError:
        pytest.skip("airvlm runs from its source folder and is not installed")
    assert installed == airvlm.__version__

"""The notebook runs from top to bottom, and is stored without its outputs."""

import os
import re
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

NOTEBOOK = Path(__file__).parents[2] / "examples" / "embedded_model.ipynb"


class ThisPython(KernelManager):
    """A kernel of the Python that runs the tests, whatever kernels are installed on the machine."""

    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="this", language="python")


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, km=ThisPython(), timeout=300, resources=where).execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    # The scene shows what the text beside it says
    assert "The scene shows: carrot, orange" in printed
    assert re.search(r"^vanilla .* a person", printed, re.MULTILINE)
    assert re.search(r"^crop-blend (?!.*person).* an orange", printed, re.MULTILINE)
    assert "crop-blend: acted" in printed
    assert "| vanilla |" in printed


def test_the_notebook_is_stored_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]

"""The oldest transformers that pyproject.toml allows: methods act, and answers are those of the newest.

The old version is installed once into a cache folder and stands before the environment's own on the path.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("AIRVLM_INTEGRATIONS", Path.home() / ".cache" / "airvlm-integrations"))

SCRIPT = """
import json
import transformers
import airvlm.models
from airvlm import VLM, tiny
vlm, scene = VLM.load("tiny"), tiny.scenes("test")[0]
answers = {name: vlm.describe(scene.path, method=None if name == "vanilla" else name, num_beams=beams)
           for name, beams in [("vanilla", 1), ("crop-blend", 1), ("air:keep=3", 1), ("vcd", 3)]}
print(json.dumps({"version": transformers.__version__, "ports": sorted(airvlm.models.PORTS),
                  "texts": {name: answer.text for name, answer in answers.items()},
                  "fired": {name: answer.report.fired for name, answer in answers.items() if answer.report}}))
"""


def oldest() -> str:
    """The lower bound that pyproject.toml states."""
    found = re.search(r'"transformers>=([\d.]+)', (ROOT / "pyproject.toml").read_text())
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def old() -> Path:
    folder = CACHE / f"transformers-{oldest()}"
    if not (folder / "transformers").is_dir():
        bound = f"transformers=={oldest()}.*"
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), bound]
        subprocess.run(command, check=True)
    return folder


def run_with(*before: Path) -> dict[str, object]:
    """What the script prints with packages of these folders before those of the environment."""
    path = os.pathsep.join(map(str, (*before, ROOT / "src", ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    said: dict[str, object] = json.loads(run.stdout.splitlines()[-1])
    return said


def test_methods_act_and_answers_are_the_same_under_the_oldest_transformers(old: Path) -> None:
    then, now = run_with(old), run_with()
    assert str(then["version"]).startswith(f"{oldest()}.")
    assert then["fired"] == {"crop-blend": True, "air:keep=3": True, "vcd": True}
    assert then["texts"] == now["texts"]
    assert then["ports"] == now["ports"]

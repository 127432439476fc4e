"""lmms-eval's own OpenAI client against `airvlm serve`: the texts of VLM.ask, and the server counts what fired."""

import os
import re
import sys
import urllib.request
from collections.abc import Iterator

import pytest
from lmms_eval.evaluator import simple_evaluate
from lmms_eval.tasks import TaskManager
from lmms_tasks import image_of, write_tasks
from servers import serving

from airvlm import VLM, CropBlend

COUNT = 8
# the server needs packages that lmms-eval's environment does not hold: another environment's python runs it
SERVER = os.environ.get("AIRVLM_SERVER_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = [SERVER, "-m", "airvlm", "serve", "--model", "tiny", "--method", "vanilla", "--port", "0"]
    with serving(command, tmp_path_factory.mktemp("served") / "log") as server:
        yield server.address


@pytest.mark.parametrize("method", [None, CropBlend()], ids=["vanilla", "crop-blend"])
def test_the_openai_client_of_lmms_eval_gets_the_answers_of_vlm(address, tmp_path, method):
    folder = tmp_path / "tasks"
    docs = write_tasks(folder, COUNT)
    results = simple_evaluate(
        model="openai",
        model_args=f"model={'tiny+crop-blend' if method else 'tiny'},base_url={address}/v1,api_key=none,timeout=120",
        tasks=["asked"],
        device="cpu",
        task_manager=TaskManager("WARNING", include_path=str(folder), model_name="openai"),
        bootstrap_iters=0,
    )
    said = {line["answered"]["doc"]: line["answered"]["said"] for line in results["samples"]["asked"]}
    vlm = VLM.load("tiny")
    for doc in docs:
        own = vlm.ask(image_of(doc), doc["question"], method=method, max_new_tokens=24)
        assert said[doc["id"]] == [own.text]
    counted = urllib.request.urlopen(f"{address}/metrics", timeout=60).read().decode()
    fired = re.search(r'airvlm_fired_total\{method="crop-blend"\} ([\d.]+)', counted)
    assert float(fired[1] if fired else 0) == (COUNT if method else 0)

"""lmms-eval's own command on offline tasks: texts and fired counts are those of VLM.batch."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lmms_eval.evaluator import simple_evaluate
from lmms_eval.tasks import TaskManager
from lmms_tasks import image_of, write_tasks

from airvlm import VLM, CropBlend, get_method

COUNT = 12
DESCRIBE = "Please describe this image in detail."


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks") / "tasks"
    return folder, write_tasks(folder, COUNT)


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


def _command(
    folder: Path, out: Path, names: str, arguments: str, *more: str, launch: tuple[str, ...] = ()
) -> tuple[str, dict[str, Any] | None, dict[str, dict[str, Any]]]:
    """What lmms-eval's own command printed, its results, and what each task's documents were answered."""
    script = Path(sys.executable).with_name("lmms-eval")
    arguments = f"pretrained=tiny,{arguments}"
    command = [*launch, str(script), "eval", "--model", "airvlm", "--model_args", arguments, "--tasks", names]
    command += [
        "--include_path",
        str(folder),
        "--device",
        "cpu",
        "--batch_size",
        "5",
        "--output_path",
        str(out),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--log_samples", *more], env=environment, capture_output=True, text=True, timeout=900
    )
    said: dict[str, dict[str, Any]] = {}
    for file in out.rglob("*_samples_*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        said[file.stem.split("_samples_")[1]] = _answered(lines)
    found = [json.loads(file.read_text()) for file in out.rglob("*_results.json")]
    return done.stdout + done.stderr, found[0] if found else None, said


def _evaluate(
    folder: Path, names: str, arguments: str, **more: Any
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The same by lmms-eval's own function, in this process."""
    manager = TaskManager("WARNING", include_path=str(folder), model_name="airvlm")
    results = simple_evaluate(
        model="airvlm",
        model_args=f"pretrained=tiny,{arguments}",
        tasks=names.split(","),
        batch_size=5,
        device="cpu",
        task_manager=manager,
        bootstrap_iters=0,
        **more,
    )
    return results, {name: _answered(lines) for name, lines in results["samples"].items()}


def _answered(lines: list[dict[str, Any]]) -> dict[str, Any]:
    return {line["answered"]["doc"]: line["answered"]["said"] for line in lines}


def _turns(question: str) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": DESCRIBE},
    ]


def _batch(vlm: VLM, asked: list[tuple[Any, Any]], method: Any) -> list[Any]:
    return list(vlm.batch(asked, method=method, max_new_tokens=24, progress=False))


@pytest.mark.parametrize("spelled", ["vanilla", "crop-blend", "'crop-blend:weight=0.5,keep=3'"])
def test_chat_tasks_are_answered_as_by_vlm_batch(tasks, vlm, tmp_path, spelled):
    folder, docs = tasks
    method = get_method(spelled.strip("'"))
    reports = tmp_path / "reports.jsonl"
    names, arguments = "asked,conversation,rounds,stopped", f"method={spelled},reports={reports}"
    if spelled == "crop-blend":
        printed, results, said = _command(folder, tmp_path / "out", names, arguments)
        assert results is not None, printed[-3000:]
        assert "airvlm_generate_until_fired" in printed
    else:
        results, said = _evaluate(folder, names, arguments)
    images = [image_of(doc) for doc in docs]
    asked = _batch(vlm, [(i, doc["question"]) for i, doc in zip(images, docs)], method)
    talked = _batch(vlm, [(i, _turns(doc["question"])) for i, doc in zip(images, docs)], method)
    described = _batch(vlm, [(i, DESCRIBE) for i in images], method)
    for doc, one, two, three in zip(docs, asked, talked, described, strict=True):
        assert said["asked"][doc["id"]] == [one.text]
        assert said["conversation"][doc["id"]] == [two.text]
        assert said["rounds"][doc["id"]] == [[one.text, three.text]]
        assert said["stopped"][doc["id"]] == [one.text.split("e")[0].strip()]
    throughput = results["throughput"]
    kept = [json.loads(line)["report"] for line in reports.read_text().splitlines()]
    assert len(kept) == 5 * COUNT
    if method is None:
        assert not any("airvlm" in name for name in throughput)
        assert kept == [None] * len(kept)
        return
    own = [answer.report.fired for answer in [*asked, *asked, *talked]]
    assert throughput["avg_airvlm_generate_until_fired"] == sum(own) == 3 * COUNT
    assert throughput["avg_airvlm_generate_until_answers"] == 3 * COUNT
    assert throughput["avg_airvlm_generate_until_multi_round_fired"] == 2 * COUNT
    assert sum(report["fired"] for report in kept) == 5 * COUNT


def test_simple_tasks_are_answered_as_by_vlm_batch_under_a_calibrated_method(tasks, vlm, tmp_path):
    folder, docs = tasks
    file = tmp_path / "calibration.json"
    method = CropBlend(weight=0.5)
    file.write_text(json.dumps({"method": method.to_json(), "model": {"fingerprint": vlm.fingerprint}}))
    results, said = _evaluate(folder, "asked,rounds", f"method=@{file}", force_simple=True)
    images = [image_of(doc) for doc in docs]
    asked = _batch(vlm, [(i, doc["question"]) for i, doc in zip(images, docs)], method)
    described = _batch(vlm, [(i, DESCRIBE) for i in images], method)
    for doc, one, three in zip(docs, asked, described, strict=True):
        assert said["asked"][doc["id"]] == [one.text]
        assert said["rounds"][doc["id"]] == [[one.text, three.text]]
    assert results["throughput"]["avg_airvlm_generate_until_fired"] == COUNT


def test_two_ranks_share_the_documents_and_count_together(tasks, vlm, tmp_path):
    folder, docs = tasks
    launch = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        "--no-python",
    )
    printed, results, said = _command(
        folder, tmp_path / "out", "asked", "method=crop-blend", "--limit", "7", launch=launch
    )
    assert results is not None, printed[-3000:]
    asked = _batch(vlm, [(image_of(doc), doc["question"]) for doc in docs[:7]], CropBlend())
    assert said["asked"] == {doc["id"]: [answer.text] for doc, answer in zip(docs, asked)}
    assert results["throughput"]["avg_airvlm_generate_until_fired"] == 7


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        ("strange", "method=crop-blend", "image_aspect_ratio = 'pad' is not supported"),
        ("asked", "method=nonsense", "nonsense"),
        ("asked", "method=crop-blend,wieght=2", "wieght"),
        ("asked", "method='crop-blend:keep=0'", "acted on none of 12 answers"),
        ("broken", "method=crop-blend", "is empty"),
    ],
)
def test_what_goes_wrong_ends_the_evaluation_and_is_no_empty_answer(tasks, task, arguments, message):
    with pytest.raises(Exception, match=message):
        _evaluate(tasks[0], task, arguments)


def test_the_command_writes_no_results_of_an_evaluation_that_failed(tasks, tmp_path):
    printed, results, said = _command(tasks[0], tmp_path / "out", "strange", "method=crop-blend")
    assert "image_aspect_ratio = 'pad' is not supported" in printed
    assert results is None
    assert not said


def test_an_argument_may_be_ignored_by_name(tasks, vlm):
    folder, docs = tasks
    _, said = _evaluate(folder, "strange", "method=crop-blend,ignore=image_aspect_ratio", limit=2)
    asked = _batch(vlm, [(image_of(doc), doc["question"]) for doc in docs[:2]], CropBlend())
    assert list(said["strange"].values()) == [[answer.text] for answer in asked]

"""The judge: verdicts are stored word for word, temporary faults are tried again, and failures stay missing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from airvlm.tasks.judges.judge import (
    SPENT,
    Judge,
    JudgeQuestion,
    JudgeRefused,
    NoJudge,
    VerdictFile,
    ask_in_both_orders,
    hash_messages,
    make_messages,
)
from tests.fake_judge import FakeJudge, Fault


def number(text: str) -> float | None:
    return float(text) if text.replace(".", "", 1).isdigit() else None


def judge_at(fake: FakeJudge, path: Path | None = None, **fields: Any) -> Judge:
    verdicts = VerdictFile(path) if path else None
    return Judge(fake.url, "fake-model", key="secret", verdicts=verdicts, **{"pause": 0.01, "timeout": 5.0} | fields)


def ask(judge: Judge, text: str = "how much?", **fields: Any) -> Any:
    return judge.ask(JudgeQuestion(make_messages(text), number, **fields))


def test_a_verdict_is_recorded_with_its_words_model_and_prompt(tmp_path: Path) -> None:
    with FakeJudge("7") as fake:
        verdict = ask(judge_at(fake, tmp_path / "v.jsonl"))
    record = json.loads((tmp_path / "v.jsonl").read_text())
    assert (verdict.value, verdict.raw, verdict.served_by) == (7.0, "7", "fake-1")
    assert (record["raw"], record["model"], record["served_by"]) == ("7", "fake-model", "fake-1")
    assert record["prompt"] == verdict.prompt_hash == hash_messages(make_messages("how much?"))
    assert fake.requests[0]["path"] == "/v1/chat/completions"
    assert fake.keys == ["Bearer secret"]
    assert "secret" not in (tmp_path / "v.jsonl").read_text() + repr(judge_at(fake))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(500),
        Fault(503, body=b"<html>bad gateway</html>"),
        Fault(429, {"Retry-After": "0.02"}),
        Fault(429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        Fault(200, body=b"not json at all"),
        Fault(200, body=b'{"choices": '),
        Fault(200, delay=4.0),
    ],
    ids=["500", "503-html", "429-seconds", "429-date", "garbage", "torn-json", "timeout"],
)
def test_a_temporary_fault_is_tried_again(fault: Fault) -> None:
    with FakeJudge(lambda prompt, n: fault if n < 2 else "3") as fake:
        verdict = ask(judge_at(fake, timeout=1.0 if fault.delay else 30.0))
    assert verdict.value == 3.0
    assert len(fake.requests) == 3


def test_retry_after_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("airvlm.tasks.judges.judge.time.sleep", waits.append)
    with FakeJudge(lambda prompt, n: Fault(429, {"Retry-After": "17"}) if n == 0 else "1") as fake:
        ask(judge_at(fake))
    assert waits == [17.0]


def test_waiting_times_double_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("airvlm.tasks.judges.judge.time.sleep", waits.append)
    with FakeJudge(lambda prompt, n: Fault(500, {"Retry-After": "9999"} if n == 3 else {})) as fake:
        ask(judge_at(fake, attempts=5, pause=1.0))
    assert 0.7 < waits[0] < 1.3 < waits[1] < 2.6 < waits[2] < 5.1
    assert waits[3] == 60.0


def test_a_judge_that_never_answers_gives_a_missing_verdict(tmp_path: Path) -> None:
    with FakeJudge(lambda prompt, n: Fault(500)) as fake:
        verdict = ask(judge_at(fake, tmp_path / "v.jsonl", attempts=2))
    assert verdict.value is None
    assert "500" in verdict.error
    assert not (tmp_path / "v.jsonl").exists()


def test_an_unreadable_verdict_is_asked_again_warmer_and_then_missing(tmp_path: Path) -> None:
    with FakeJudge("as an AI I cannot") as fake:
        verdict = ask(judge_at(fake, tmp_path / "v.jsonl"), warming=0.5)
    assert verdict.value is None
    assert verdict.raw == "as an AI I cannot"
    assert [request["temperature"] for request in fake.requests] == [0.0, 0.5, 1.0]


def test_an_unreadable_verdict_is_stored_and_asked_for_again_in_the_next_run(tmp_path: Path) -> None:
    with FakeJudge(lambda prompt, n: "as an AI I cannot" if n < 3 else "4") as fake:
        assert ask(judge_at(fake, tmp_path / "v.jsonl")).value is None
        assert "as an AI" in (tmp_path / "v.jsonl").read_text()
        assert ask(judge_at(fake, tmp_path / "v.jsonl")).value == 4.0


@pytest.mark.parametrize("body", [b'{"choices": []}', b'{"choices": [{"message": {"content": ""}}]}', b"[]", b"null"])
def test_an_incomplete_reply_is_asked_for_again_and_not_stored(tmp_path: Path, body: bytes) -> None:
    with FakeJudge(lambda prompt, n: Fault(200, body=body) if n == 0 else "5") as fake:
        assert ask(judge_at(fake, tmp_path / "v.jsonl")).value == 5.0
    assert len((tmp_path / "v.jsonl").read_text().splitlines()) == 1


def test_requests_and_tokens_are_counted(tmp_path: Path) -> None:
    before = SPENT.to_json()
    reply = {
        "choices": [{"message": {"content": "5"}}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3},
    }
    with FakeJudge(lambda prompt, n: Fault(200, body=json.dumps(reply).encode())) as fake:
        ask(judge_at(fake, tmp_path / "v.jsonl"))
        ask(judge_at(fake, tmp_path / "v.jsonl"))
    spent = {name: count - before[name] for name, count in SPENT.to_json().items()}
    assert spent == {"requests": 1, "prompt_tokens": 11, "completion_tokens": 3, "from_file": 1}
    assert json.loads((tmp_path / "v.jsonl").read_text())["prompt_tokens"] == 11


def test_a_key_that_the_endpoint_repeats_is_hidden(tmp_path: Path) -> None:
    with FakeJudge(lambda prompt, n: Fault(500, body=b"no such key: secret")) as fake:
        verdict = ask(judge_at(fake, tmp_path / "v.jsonl", attempts=1))
    assert verdict.value is None and "secret" not in str(verdict)
    with FakeJudge(lambda prompt, n: Fault(401, body=b"no such key: secret")) as fake:
        with pytest.raises(JudgeRefused) as refused:
            ask(judge_at(fake))
    assert "secret" not in str(refused.value)


def test_a_declined_question_is_missing_and_the_others_are_judged() -> None:
    with FakeJudge(lambda prompt, n: Fault(400) if "bad" in prompt else "5") as fake:
        verdicts = judge_at(fake).ask_all([JudgeQuestion(make_messages(t), number) for t in ("good", "bad", "fine")])
    assert [verdict.value for verdict in verdicts] == [5.0, None, 5.0]


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_a_judge_that_refuses_every_question_stops_the_run(status: int) -> None:
    with FakeJudge(lambda prompt, n: Fault(status, {"Location": "http://127.0.0.1:9/"})) as fake:
        with pytest.raises(JudgeRefused, match=f"{status}.*AIRVLM_JUDGE_KEY"):
            judge_at(fake).ask_all([JudgeQuestion(make_messages("a"), number)])
    assert len(fake.requests) == 1, "neither repeated nor followed elsewhere with the key"


def test_a_resumed_run_asks_only_what_is_not_stored(tmp_path: Path) -> None:
    questions = [JudgeQuestion(make_messages(f"question {i}"), number) for i in range(6)]
    with FakeJudge(lambda prompt, n: prompt.split()[-1]) as fake:
        judge_at(fake, tmp_path / "v.jsonl").ask_all(questions[:4])
        resumed = judge_at(fake, tmp_path / "v.jsonl").ask_all(questions)
        assert [verdict.value for verdict in resumed] == [0, 1, 2, 3, 4, 5]
        assert len(fake.requests) == 6


def test_an_incomplete_line_costs_one_question_only(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    questions = [JudgeQuestion(make_messages(f"question {i}"), number) for i in range(3)]
    with FakeJudge(lambda prompt, n: prompt.split()[-1]) as fake:
        judge_at(fake, path, workers=1).ask_all(questions)
        path.write_bytes(path.read_bytes()[:-20])  # killed while writing the third
        again = judge_at(fake, path, workers=1).ask_all(questions)
        assert [verdict.value for verdict in again] == [0, 1, 2]
        assert len(fake.requests) == 4
        judge_at(fake, path).ask_all(questions)
        assert len(fake.requests) == 4


def test_lines_of_several_threads_are_not_mixed(tmp_path: Path) -> None:
    files = [VerdictFile(tmp_path / "v.jsonl") for _ in range(4)]

    def write(file: VerdictFile, part: int) -> None:
        for i in range(25):
            file.append({"key": f"{part}-{i}", "raw": "x" * 5000})

    threads = [threading.Thread(target=write, args=(file, part)) for part, file in enumerate(files)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]) == 100
    assert len(list(VerdictFile(tmp_path / "v.jsonl"))) == 100


def test_another_model_or_temperature_is_another_verdict(tmp_path: Path) -> None:
    with FakeJudge(lambda prompt, n: str(n)) as fake:
        first = judge_at(fake, tmp_path / "v.jsonl")
        other = Judge(fake.url, "other-model", verdicts=first.verdicts)
        assert ask(first).value == 0.0
        assert ask(other).value == 1.0
        assert ask(first, temperature=0.7).value == 2.0
        assert ask(first).value == 0.0


def test_a_preference_for_the_first_place_cancels_out() -> None:
    def first_wins(prompt: str, n: int) -> str:
        return "9 1"

    def two(text: str) -> tuple[float, ...]:
        a, b = text.split()
        return float(a), float(b)

    with FakeJudge(first_wins) as fake:
        scores = ask_in_both_orders(
            judge_at(fake), [("x", "y")], lambda i, a, b: JudgeQuestion(make_messages(f"{a} or {b}"), two)
        )
    assert scores == [((5.0,), (5.0,))]
    assert {request["messages"][0]["content"] for request in fake.requests} == {"x or y", "y or x"}


def test_a_pair_with_one_unreadable_verdict_is_missing() -> None:
    with FakeJudge(lambda prompt, n: "4 5" if prompt == "x or y" else "dunno") as fake:

        def two(text: str) -> tuple[float, ...] | None:
            return None if text == "dunno" else (4.0, 5.0)

        assert ask_in_both_orders(
            judge_at(fake), [("x", "y")], lambda i, a, b: JudgeQuestion(make_messages(f"{a} or {b}"), two)
        ) == [None]


def test_without_a_configured_judge_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "MODEL", "KEY"):
        monkeypatch.delenv(f"AIRVLM_JUDGE_{name}", raising=False)
    with pytest.raises(NoJudge, match=r"AIRVLM_JUDGE_URL.*AIRVLM_JUDGE_MODEL"):
        Judge.from_environment()
    with pytest.raises(NoJudge, match="http"):
        Judge("file:///etc/passwd", "x")


def test_the_environment_describes_the_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRVLM_JUDGE_URL", "http://127.0.0.1:1/v1/")
    monkeypatch.setenv("AIRVLM_JUDGE_MODEL", "m")
    monkeypatch.setenv("AIRVLM_JUDGE_CACHE", str(tmp_path / "kept.jsonl"))
    monkeypatch.delenv("AIRVLM_JUDGE_KEY", raising=False)
    assert Judge.from_environment().key is None
    monkeypatch.setenv("AIRVLM_JUDGE_KEY", "k")
    judge = Judge.from_environment()
    assert (judge.url, judge.model, judge.key) == ("http://127.0.0.1:1/v1", "m", "k")
    assert judge.verdicts is not None
    assert judge.verdicts.path == tmp_path / "kept.jsonl"


def test_verdicts_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    file = VerdictFile(tmp_path / "v.jsonl")
    file.append({"key": "a", "raw": "1"})
    assert os.stat(file.path).st_mode & 0o077 == 0


WRITER = """
import sys
from airvlm.tasks.judges.judge import VerdictFile
verdicts = VerdictFile(sys.argv[1])
for n in range(int(sys.argv[2])):
    if verdicts.get(str(n)) is None:
        verdicts.append({"key": str(n), "verdict": "x" * 2000})
    print(n, flush=True)
"""


def start_writer(path: Path, n: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(n)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_the_first_verdict_of_a_key_counts_in_every_process(tmp_path: Path) -> None:
    one, two = VerdictFile(tmp_path / "v.jsonl"), VerdictFile(tmp_path / "v.jsonl")
    one.append({"key": "a", "verdict": 1})
    two.append({"key": "a", "verdict": 2})
    assert one.get("a") == two.get("a") == {"key": "a", "verdict": 1}
    assert (tmp_path / "v.jsonl").read_bytes().count(b"\n") == 1
    assert (tmp_path / "v.jsonl").stat().st_mode & 0o077 == 0


def test_killed_writers_leave_every_verdict_once(tmp_path: Path) -> None:
    path, rng = tmp_path / "v.jsonl", random.Random(0)
    for _ in range(2):
        pair = [start_writer(path, 10_000), start_writer(path, 10_000)]
        for process in pair:
            assert process.stdout is not None and process.stdout.readline() == "0\n"
        time.sleep(rng.uniform(0, 0.05))
        for process in pair:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        with path.open("ab") as file:
            file.write(b'{"key": "torn", "verd')
    known = len(list(VerdictFile(path)))
    last = start_writer(path, known + 20)
    last.communicate()
    keys = [json.loads(line)["key"] for line in path.read_bytes().splitlines()]
    assert last.returncode == 0 and sorted(keys, key=int) == [str(n) for n in range(known + 20)]

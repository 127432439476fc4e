"""Laws of the judge: what is said is kept word for word, what fails passes or stays missing, nothing is invented."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from airvlm.tasks.judges.judge import (
    SPENT,
    Judge,
    JudgeQuestion,
    JudgeRefused,
    NoJudge,
    pairwise,
    prompt_hash,
    say,
)
from airvlm.tasks.judges.verdicts import VerdictFile
from tests.fake_judge import FakeJudge, Fault


@pytest.fixture(autouse=True)
def loopback_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def number(text: str) -> float | None:
    return float(text) if text.replace(".", "", 1).isdigit() else None


def judge_at(fake: FakeJudge, path: Path | None = None, **fields: Any) -> Judge:
    verdicts = VerdictFile(path) if path else None
    return Judge(fake.url, "fake-model", key="secret", verdicts=verdicts, **{"pause": 0.01, "timeout": 5.0} | fields)


def ask(judge: Judge, text: str = "how much?", **fields: Any) -> Any:
    return judge.ask(JudgeQuestion(say(text), number, **fields))


def test_a_verdict_is_recorded_with_its_words_model_and_prompt(tmp_path: Path) -> None:
    with FakeJudge("7") as fake:
        verdict = ask(judge_at(fake, tmp_path / "v.jsonl"))
    record = json.loads((tmp_path / "v.jsonl").read_text())
    assert (verdict.value, verdict.raw, verdict.served_by) == (7.0, "7", "fake-1")
    assert (record["raw"], record["model"], record["served_by"]) == ("7", "fake-model", "fake-1")
    assert record["prompt"] == verdict.prompt_hash == prompt_hash(say("how much?"))
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
def test_a_fault_that_passes_is_tried_again(fault: Fault) -> None:
    with FakeJudge(lambda prompt, n: fault if n < 2 else "3") as fake:
        verdict = ask(judge_at(fake, timeout=1.0 if fault.delay else 30.0))
    assert verdict.value == 3.0
    assert len(fake.requests) == 3


def test_retry_after_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("airvlm.tasks.judges.judge.time.sleep", waits.append)
    with FakeJudge(lambda prompt, n: Fault(429, {"Retry-After": "17"}) if n == 0 else "1") as fake:
        ask(judge_at(fake))
    assert waits == [17.0]


def test_waits_double_and_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("airvlm.tasks.judges.judge.time.sleep", waits.append)
    with FakeJudge(lambda prompt, n: Fault(500, {"Retry-After": "9999"} if n == 3 else {})) as fake:
        ask(judge_at(fake, attempts=5, pause=1.0))
    assert 0.7 < waits[0] < 1.3 < waits[1] < 2.6 < waits[2] < 5.1
    assert waits[3] == 60.0


def test_a_judge_that_never_answers_gives_a_missing_verdict_and_no_record(tmp_path: Path) -> None:
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


def test_an_unreadable_verdict_is_kept_and_asked_for_again_another_time(tmp_path: Path) -> None:
    with FakeJudge(lambda prompt, n: "as an AI I cannot" if n < 3 else "4") as fake:
        assert ask(judge_at(fake, tmp_path / "v.jsonl")).value is None
        assert "as an AI" in (tmp_path / "v.jsonl").read_text()
        assert ask(judge_at(fake, tmp_path / "v.jsonl")).value == 4.0


@pytest.mark.parametrize("body", [b'{"choices": []}', b'{"choices": [{"message": {"content": ""}}]}', b"[]", b"null"])
def test_half_a_reply_is_asked_for_again_and_never_kept(tmp_path: Path, body: bytes) -> None:
    with FakeJudge(lambda prompt, n: Fault(200, body=body) if n == 0 else "5") as fake:
        assert ask(judge_at(fake, tmp_path / "v.jsonl")).value == 5.0
    assert len((tmp_path / "v.jsonl").read_text().splitlines()) == 1


def test_what_a_judge_costs_is_counted(tmp_path: Path) -> None:
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


def test_a_key_that_the_endpoint_repeats_is_in_no_message_and_in_no_file(tmp_path: Path) -> None:
    with FakeJudge(lambda prompt, n: Fault(500, body=b"no such key: secret")) as fake:
        verdict = ask(judge_at(fake, tmp_path / "v.jsonl", attempts=1))
    assert verdict.value is None and "secret" not in str(verdict)
    with FakeJudge(lambda prompt, n: Fault(401, body=b"no such key: secret")) as fake:
        with pytest.raises(JudgeRefused) as refused:
            ask(judge_at(fake))
    assert "secret" not in str(refused.value)


def test_one_declined_question_is_missing_and_the_others_go_on() -> None:
    with FakeJudge(lambda prompt, n: Fault(400) if "bad" in prompt else "5") as fake:
        verdicts = judge_at(fake).ask_all([JudgeQuestion(say(t), number) for t in ("good", "bad", "fine")])
    assert [verdict.value for verdict in verdicts] == [5.0, None, 5.0]


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_a_judge_that_refuses_everyone_stops_the_run(status: int) -> None:
    with FakeJudge(lambda prompt, n: Fault(status, {"Location": "http://127.0.0.1:9/"})) as fake:
        with pytest.raises(JudgeRefused, match=f"{status}.*AIRVLM_JUDGE_KEY"):
            judge_at(fake).ask_all([JudgeQuestion(say("a"), number)])
    assert len(fake.requests) == 1, "neither repeated nor followed elsewhere with the key"


def test_a_stopped_run_asks_only_what_is_not_on_file(tmp_path: Path) -> None:
    questions = [JudgeQuestion(say(f"question {i}"), number) for i in range(6)]
    with FakeJudge(lambda prompt, n: prompt.split()[-1]) as fake:
        judge_at(fake, tmp_path / "v.jsonl").ask_all(questions[:4])
        resumed = judge_at(fake, tmp_path / "v.jsonl").ask_all(questions)
        assert [verdict.value for verdict in resumed] == [0, 1, 2, 3, 4, 5]
        assert len(fake.requests) == 6


def test_a_torn_line_costs_one_question_and_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    questions = [JudgeQuestion(say(f"question {i}"), number) for i in range(3)]
    with FakeJudge(lambda prompt, n: prompt.split()[-1]) as fake:
        judge_at(fake, path, workers=1).ask_all(questions)
        path.write_bytes(path.read_bytes()[:-20])  # killed while writing the third
        again = judge_at(fake, path, workers=1).ask_all(questions)
        assert [verdict.value for verdict in again] == [0, 1, 2]
        assert len(fake.requests) == 4
        judge_at(fake, path).ask_all(questions)
        assert len(fake.requests) == 4


def test_writers_in_many_threads_never_mix_lines(tmp_path: Path) -> None:
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


def test_a_judge_that_favours_the_first_place_gains_nothing_by_it() -> None:
    def first_wins(prompt: str, n: int) -> str:
        return "9 1"

    def two(text: str) -> tuple[float, ...]:
        a, b = text.split()
        return float(a), float(b)

    with FakeJudge(first_wins) as fake:
        scores = pairwise(judge_at(fake), [("x", "y")], lambda i, a, b: JudgeQuestion(say(f"{a} or {b}"), two))
    assert scores == [((5.0,), (5.0,))]
    assert {request["messages"][0]["content"] for request in fake.requests} == {"x or y", "y or x"}


def test_a_pair_judged_in_one_order_only_is_missing() -> None:
    with FakeJudge(lambda prompt, n: "4 5" if prompt == "x or y" else "dunno") as fake:

        def two(text: str) -> tuple[float, ...] | None:
            return None if text == "dunno" else (4.0, 5.0)

        assert pairwise(judge_at(fake), [("x", "y")], lambda i, a, b: JudgeQuestion(say(f"{a} or {b}"), two)) == [None]


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
    judge = Judge.from_environment()
    assert (judge.url, judge.model) == ("http://127.0.0.1:1/v1", "m")
    assert judge.verdicts is not None
    assert judge.verdicts.path == tmp_path / "kept.jsonl"


def test_verdicts_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    file = VerdictFile(tmp_path / "v.jsonl")
    file.append({"key": "a", "raw": "1"})
    assert os.stat(file.path).st_mode & 0o077 == 0

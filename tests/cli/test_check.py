"""`airvlm check`: a table of laws and families, and code 1 if one is broken."""

import pytest

from airvlm.testing import method_laws
from airvlm.testing.laws import Law
from tests.cli.conftest import Run


def break_it(subject: method_laws.MethodOnFamily) -> None:
    raise AssertionError(f"{subject.method.name} on {subject.family} is wrong")


@pytest.fixture
def laws(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        Law("a law that holds", lambda _: None),
        Law("a law for gemma3 only", lambda _: None, lambda subject: subject.family == "gemma3"),
    ]
    monkeypatch.setattr(method_laws, "METHOD_LAWS", found)


@pytest.mark.usefixtures("laws")
def test_laws_that_hold_are_ok(run: Run) -> None:
    done = run("check", "vaf", "--family", "llava", "--family", "gemma3")
    assert done.code == 0
    assert [line.split() for line in done.out.splitlines()] == [
        ["vaf", "llava", "gemma3"],
        ["a", "law", "that", "holds", "ok", "ok"],
        ["a", "law", "for", "gemma3", "only", "-", "ok"],
    ]


@pytest.mark.usefixtures("laws")
def test_a_broken_law_is_named_and_ends_with_code_1(run: Run) -> None:
    method_laws.METHOD_LAWS.append(Law("a law that is broken", break_it))
    done = run("check", "airvlm.methods.vaf:VAF", "--set", "enhance=0.5", "--family", "llava")
    assert done.code == 1
    assert "llava: a law that is broken\n  vaf on llava is wrong" in done.out
    assert run("check", "vaf", "--family", "llava", "--json").code == 1

"""No malformed file ends in a traceback, in silence, or in a score whose counts are not told."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.campaign import Case, cases, run_case, run_command
from tests.fuzz.kinds import KINDS, Kind
from tests.fuzz.mutations import MUTATIONS

SMALL = next(kind for kind in KINDS if kind.name == "pope")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_valid_file_is_scored_if_there_is_a_ground_truth(kind: Kind, tmp_path: Path) -> None:
    kind.make(tmp_path)
    outcome = run_command(kind.command(tmp_path))
    assert outcome.code == (0 if kind.scored else 3), outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_mutation_ends_in_a_score_with_its_counts_or_in_one_line(kind: Kind) -> None:
    assert len(MUTATIONS) >= 70
    wrong = [said for case in cases() if case.kind == kind and (said := run_case(case)) is not None]
    assert wrong == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["question_id", "text", "label", "answer", "image_id", "caption", "id", "x"]), inner, max_size=4
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(value=json_values, kind=st.sampled_from(KINDS))
def test_any_json_value_in_place_of_a_file_is_handled(value: object, kind: Kind) -> None:
    import json

    from tests.fuzz.campaign import find_problem

    with tempfile.TemporaryDirectory() as folder:
        kind.make(Path(folder))
        (Path(folder) / kind.files[0]).write_text(json.dumps(value))
        case = Case(kind, kind.files[0], "valid")
        assert find_problem(case, run_command(kind.command(Path(folder)))) is None


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=60), kind=st.sampled_from(KINDS))
def test_any_bytes_in_place_of_a_file_are_handled(content: bytes, kind: Kind) -> None:
    from tests.fuzz.campaign import find_problem

    with tempfile.TemporaryDirectory() as folder:
        kind.make(Path(folder))
        (Path(folder) / kind.files[0]).write_bytes(content)
        case = Case(kind, kind.files[0], "valid")
        assert find_problem(case, run_command(kind.command(Path(folder)))) is None

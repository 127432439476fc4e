"""Every table of the paper has its tasks, its rows and its figures, and says what nobody can reproduce."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airvlm.methods import AIR, AIRMemory, CropBlend, NoisyCrops, RandomCrops
from airvlm.tasks import TASKS
from experiments.reproduce.paper import attainable, load_tables, paper_facts, rows_of

TABLES = load_tables()
LLAVA, QWEN = "LLaVA-1.5-7B", "Qwen-VL-Chat"


def test_the_paper_has_21_tables_by_number() -> None:
    assert list(TABLES) == [f"table{n}" for n in range(1, 22)]


@pytest.mark.parametrize("name", TABLES)
def test_every_part_has_a_task_and_rows_that_the_paper_prints(name: str) -> None:
    table = TABLES[name]
    assert set(table.models) <= set(paper_facts()["models"])
    for part in table.parts:
        assert part.task in TASKS
        rows = rows_of(part, None, 32)
        assert rows[0].label == "vanilla" and rows[0].method is None
        printed = {row for of_model in part.figures.values() for row in of_model}
        assert printed <= {row.name for row in rows}
        assert set(part.figures) <= set(table.models) and part.figures
        for values in (values for of_model in part.figures.values() for values in of_model.values()):
            assert len(values) == len(part.metrics)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_says_what_nobody_can_reproduce(name: str) -> None:
    lines = TABLES[name].not_reproducible()
    assert lines and all(" " in line for line in lines)  # sentences, not keys of notes


@pytest.mark.parametrize(
    ("name", "part", "model", "row", "metric", "value"),
    [
        ("table1", 0, LLAVA, "air", "CHAIR_S", 18.4),
        ("table1", 0, LLAVA, "vcd", "recall", None),
        ("table2", 8, LLAVA, "vaf", "f1", 79.7),
        ("table3", 0, LLAVA, "memvr", "cognition", 378.57),
        ("table5", 0, LLAVA, "30-32", "CHAIR_S", 22.0),
        ("table6", 0, LLAVA, "prototype-based token reduction", "CHAIR_I", 6.2),
        ("table7", 0, LLAVA, "vaf", "CHAIR_S", 20.4),
        ("table8", 0, LLAVA, "vcd", "CHAIR_S", 8.2),
        ("table8", 0, QWEN, "air", "CHAIR_S", 5.8),
        ("table9", 1, QWEN, "vcd", "accuracy", None),
        ("table11", 0, LLAVA, "vanilla", "FP-S", 61.92),
        ("table12", 0, LLAVA, "air", "qAcc", 9.3),
        ("table13", 0, QWEN, "air", "accuracy", 76.23),
        ("table14", 0, LLAVA, "air", "holistic", 2.55),
        ("table15", 0, LLAVA, "memvr", "int:rec+ocr+know", 21.2),
        ("table17", 0, LLAVA, "air", "BLEU", 14.2),
        ("table18", 0, LLAVA, "random patch", "CHAIR_S", 22.3),
        ("table19", 2, LLAVA, "vanilla", "CHAIR_S", 47.8),
        ("table21", 0, LLAVA, "AIR (noise)", "CHAIR_I", 7.9),
    ],
)
def test_a_cell_is_what_the_paper_prints(
    name: str, part: int, model: str, row: str, metric: str, value: float | None
) -> None:
    assert TABLES[name].parts[part].value(model, row, metric) == value


def test_a_share_that_500_images_cannot_give_is_named() -> None:
    assert any("22.7" in line and "22.3" in line for line in TABLES["table6"].not_reproducible())
    assert any("47.5" in line for line in TABLES["table19"].not_reproducible())
    assert not any("not a share of 500" in line for line in TABLES["table1"].not_reproducible())


def test_rows_that_the_paper_calls_air_are_air_and_ours_has_a_row_of_its_own() -> None:
    rows = [(row.name, row.method) for row in rows_of(TABLES["table1"].parts[0], None, 32)]
    assert [method for name, method in rows if name == "air"] == [AIR(keep=3), AIRMemory(keep=3)]
    assert ("crop-blend", CropBlend()) in rows


def test_layers_are_shares_of_the_depth() -> None:
    rows = rows_of(TABLES["table5"].parts[0], ["air:keep=3"], 6)
    assert {row.name: row.method for row in rows}["16-32"] == AIR(keep=3, layers=(3, 6))
    with pytest.raises(ValueError, match="crop-blend has no layers"):
        rows_of(TABLES["table5"].parts[0], ["crop-blend"], 32)


def test_components_and_controls_are_those_of_the_method() -> None:
    rows = {row.name: row.method for row in rows_of(TABLES["table6"].parts[0], ["air:keep=3"], 32)}
    assert rows["both"] == AIR(keep=3) and rows["neither"] == AIR(keep=12, num_prototypes=None)
    rows = {row.name: row.method for row in rows_of(TABLES["table18"].parts[0], ["air:keep=3"], 32)}
    assert rows["random patch"] == RandomCrops(AIR(keep=3)) and rows["air"] == AIR(keep=3)
    rows = {row.name: row.method for row in rows_of(TABLES["table21"].parts[0], ["air:keep=3"], 32)}
    assert rows["AIR (noise)"] == NoisyCrops(AIR(keep=3))


@pytest.mark.parametrize(
    ("name", "model", "adapter", "theirs", "same"),
    [
        ("table1", "llava-hf/llava-1.5-7b-hf", "", LLAVA, True),
        ("table1", "Qwen/Qwen-VL-Chat", "", QWEN, True),
        ("table1", "tiny", "", LLAVA, False),
        ("table1", "photo", "", LLAVA, False),
        ("table1", "llava-hf/llava-1.5-7b-hf", "some/lora", LLAVA, False),
        ("table9", "llava-hf/llava-1.5-7b-hf", "", QWEN, False),
        ("table20", "llava-hf/llava-1.5-13b-hf", "psp-dada/SENTINEL", "SENTINEL on LLaVA-1.5-13B", True),
        ("table20", "llava-hf/llava-1.5-7b-hf", "", LLAVA, True),
    ],
)
def test_figures_are_compared_with_those_of_the_same_model(
    name: str, model: str, adapter: str, theirs: str, same: bool
) -> None:
    assert TABLES[name].compared_model(model, adapter) == (theirs, same)


@pytest.mark.parametrize(
    ("value", "n", "decimals", "possible"),
    [
        (61.92, 293, 2, False),
        (67.92, 293, 2, True),
        (22.7, 500, 1, False),
        (22.6, 500, 1, True),
        (76.23, 191, 2, False),
        (48.68, 191, 2, False),
        (48.69, 191, 2, True),
        (0.0, 7, 1, True),
        (100.0, 7, 1, True),
        (50.0, 0, 1, False),
    ],
)
def test_a_value_is_possible_only_if_some_k_of_n_prints_as_it(
    value: float, n: int, decimals: int, possible: bool
) -> None:
    assert attainable(value, n, decimals) is possible


@settings(deadline=None)
@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.integers(0, 3))
def test_every_share_is_possible_at_its_own_n(share: tuple[int, int], decimals: int) -> None:
    k, n = share
    assert attainable(round(100 * k / n, decimals), n, decimals)

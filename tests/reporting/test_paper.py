"""The paper's figures are found by our names, and what is known to be impossible in them is remarked on."""

from __future__ import annotations

import pytest

from airvlm.evaluation.statistics import attainable
from airvlm.reporting.paper import LLAVA, QWEN, REMARKS, printed


@pytest.mark.parametrize(
    ("task", "cap", "model", "method", "metric", "value"),
    [
        ("chair", 64, LLAVA, "air", "CHAIR_S", 18.4),
        ("tiny-chair", 64, LLAVA, "vanilla", "CHAIR_I", 6.7),
        ("chair", 32, QWEN, "air", "CHAIR_S", 5.8),
        ("chair", 128, LLAVA, "air", "recall", 73.9),
        ("chair", 256, LLAVA, "vanilla", "CHAIR_S", 47.8),
        ("pope-gqa-adversarial", 16, LLAVA, "vaf", "f1", 79.7),
        ("tiny-pope-random", 16, LLAVA, "air", "accuracy", 89.0),
        ("pope-coco-popular", 16, QWEN, "vcd", "accuracy", None),
        ("mme", None, LLAVA, "memvr", "cognition", 378.57),
        ("mmbench", None, LLAVA, "vanilla", "FP-S", 61.92),
        ("hallusionbench", None, LLAVA, "air", "qAcc", 9.3),
        ("vstar", None, QWEN, "air", "accuracy", 76.23),
    ],
)
def test_figures_are_found_by_task_model_and_method(
    task: str, cap: int | None, model: str, method: str, metric: str, value: float | None
) -> None:
    table = printed(task, cap)
    assert table is not None
    assert table.value(model, method, metric) == value


@pytest.mark.parametrize("task", ["tiny-count", "unheard-of", "pope", "bleu"])
def test_a_task_the_paper_does_not_have_has_no_table(task: str) -> None:
    assert printed(task) is None


def test_remarks_are_about_figures_that_cannot_be() -> None:
    assert not attainable(61.92, 293)
    assert not attainable(9.3, 455, decimals=1)
    assert "61.92" in REMARKS["mmbench"]
    assert "9.3" in REMARKS["hallusionbench"]

"""The figures of the AIR paper, as printed there, to stand beside ours. Knows nothing of our runs.

They are the paper's, not ours: no cell of them was measured here. What is known to be wrong in them (a baseline that is
sampled, not greedy; figures that cannot be shares of their sample) is said in `REMARKS`, and shown wherever they are.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CITATION", "MODELS", "REMARKS", "Figures", "Printed", "printed", "printed_or_fail"]

CITATION = (
    "Zhu et al., Look Carefully: Adaptive Visual Reinforcements in Multimodal Large Language Models for "
    "Hallucination Mitigation, ICLR 2026"
)
LLAVA, QWEN, GLM = "LLaVA-1.5-7B", "Qwen-VL-Chat", "GLM-4V-9B"
MODELS = {LLAVA: ("llava-1.5-7b", "llava-v1.5-7b"), QWEN: ("qwen-vl-chat",), GLM: ("glm-4v-9b", "glm-4v")}
METHODS = ("vanilla", "vcd", "memvr", "vaf", "air")

Row = tuple[float | None, ...]
Figures = dict[str, dict[str, Row]]  # model -> method -> a row


@dataclass(frozen=True)
class Printed:
    """One table of the paper: which metrics, and a row of them for each model and method."""

    where: str  # which table
    metrics: tuple[str, ...]  # under our names
    rows: Figures

    def value(self, model: str, method: str, metric: str) -> float | None:
        row = self.rows.get(model, {}).get(method)
        return row[self.metrics.index(metric)] if row and metric in self.metrics else None

    def of(self, model: str) -> Printed:
        """The part that is about one model."""
        return Printed(self.where, self.metrics, {model: self.rows[model]})

    def only(self, metrics: tuple[str, ...]) -> Printed:
        """The columns of these metrics."""
        at = [self.metrics.index(metric) for metric in metrics]
        rows = {m: {name: tuple(row[i] for i in at) for name, row in r.items()} for m, r in self.rows.items()}
        return Printed(self.where, metrics, rows)


def _by_method(*rows: Row) -> dict[str, Row]:
    """Rows in the paper's usual order."""
    return dict(zip(METHODS, rows, strict=True))


_CHAIR = Printed(
    "Table 1 (64 tokens)",
    ("CHAIR_S", "CHAIR_I", "BLEU", "recall"),
    {
        LLAVA: _by_method(
            (22.0, 6.7, 14.5, 66.2),
            (24.6, 7.3, 13.9, None),
            (21.6, 6.4, 14.4, 66.5),
            (20.4, 6.5, 14.6, None),
            (18.4, 5.7, 14.4, 66.7),
        ),
        QWEN: _by_method(
            (20.0, 6.2, 13.5, None),
            (19.2, 5.7, 13.4, None),
            (20.0, 6.1, 13.3, None),
            (20.6, 6.6, 13.4, None),
            (18.6, 5.9, 13.6, None),
        ),
        GLM: _by_method(
            (13.0, 5.6, 9.8, None),
            (14.8, 6.5, 9.5, None),
            (13.0, 5.6, 9.8, None),
            (11.6, 5.3, 9.7, None),
            (11.6, 5.3, 9.7, None),
        ),
    },
)
_CHAIR_32 = Printed(
    "Table 8 (32 tokens)",
    ("CHAIR_S", "CHAIR_I", "BLEU", "recall"),
    {
        LLAVA: _by_method(
            (6.8, 2.9, 22.9, 52.4),
            (8.2, 4.0, 21.7, 50.0),
            (6.6, 2.9, 22.8, 52.3),
            (7.0, 3.1, 23.0, 52.4),
            (6.8, 2.9, 23.0, 52.8),
        ),
        QWEN: _by_method(
            (6.6, 2.9, 21.4, 52.1),
            (6.6, 2.9, 21.6, 52.0),
            (7.0, 3.2, 21.3, 52.3),
            (6.6, 3.0, 21.4, 51.7),
            (5.8, 2.8, 21.7, 52.0),
        ),
    },
)
_CHAIR_LONG = {
    128: {"vanilla": (47.5, 13.1, 73.1), "memvr": (46.6, 13.0, 73.5), "air": (38.1, 9.3, 73.9)},
    256: {"vanilla": (47.8, 13.4, 80.6), "memvr": (47.2, 13.2, 81.0), "air": (38.8, 10.0, 81.4)},
}

# accuracy and F1 for each of the three settings, in METHODS' order (Qwen: vanilla, memvr, air)
_POPE: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {
    ("coco", LLAVA): {
        "random": [(83.7, 83.0), (85.4, 83.7), (87.6, 86.2), (87.6, 86.2), (89.0, 88.2)],
        "popular": [(78.2, 78.4), (84.3, 83.0), (86.0, 84.7), (86.2, 85.0), (87.1, 86.4)],
        "adversarial": [(75.0, 76.0), (81.8, 80.9), (83.5, 82.5), (83.9, 82.8), (83.9, 83.6)],
    },
    ("aokvqa", LLAVA): {
        "random": [(83.4, 82.6), (85.9, 85.4), (89.0, 88.5), (88.7, 88.3), (89.2, 88.9)],
        "popular": [(79.9, 79.6), (81.9, 82.0), (84.6, 84.6), (84.1, 84.3), (84.4, 84.7)],
        "adversarial": [(74.0, 75.1), (76.7, 78.4), (78.3, 79.6), (76.9, 78.7), (78.0, 79.7)],
    },
    ("gqa", LLAVA): {
        "random": [(83.7, 83.0), (86.3, 85.8), (89.3, 88.9), (88.1, 87.7), (89.7, 89.5)],
        "popular": [(78.2, 78.4), (78.4, 79.0), (82.9, 83.4), (79.4, 80.6), (83.0, 83.8)],
        "adversarial": [(75.1, 76.1), (76.2, 77.4), (80.3, 81.4), (78.2, 79.7), (80.4, 81.7)],
    },
    ("coco", QWEN): {
        "random": [(84.5, 81.9), (84.7, 82.1), (84.7, 82.1)],
        "popular": [(84.0, 81.4), (84.2, 81.6), (84.2, 81.6)],
        "adversarial": [(83.0, 80.5), (83.1, 80.6), (83.2, 80.6)],
    },
    ("aokvqa", QWEN): {
        "random": [(86.2, 84.5), (86.8, 85.3), (86.8, 85.3)],
        "popular": [(86.2, 84.5), (86.8, 85.3), (86.8, 85.3)],
        "adversarial": [(81.2, 80.0), (81.6, 80.6), (81.7, 80.7)],
    },
    ("gqa", QWEN): {
        "random": [(86.1, 84.3), (86.3, 84.5), (86.5, 84.7)],
        "popular": [(85.1, 83.3), (85.2, 83.4), (85.3, 83.6)],
        "adversarial": [(82.1, 80.5), (82.2, 80.7), (82.4, 81.0)],
    },
}


def _pope(dataset: str, setting: str) -> Printed:
    rows: dict[str, dict[str, Row]] = {}
    for model in (LLAVA, QWEN):
        figures: list[tuple[float, float]] = _POPE[dataset, model][setting]
        names = METHODS if len(figures) == len(METHODS) else ("vanilla", "memvr", "air")
        rows[model] = dict(zip(names, figures, strict=True))
    return Printed("Tables 2 and 9", ("accuracy", "f1"), rows)


_MME = Printed(
    "Tables 3 and 10",
    ("hallucination", "existence", "count", "position", "color", "cognition", "perception"),
    {
        LLAVA: _by_method(
            (643.3, 190.0, 155.0, 128.3, 170.0, 357.86, 1506.03),
            (613.3, 190.0, 140.0, 118.3, 165.0, 337.14, 1484.90),
            (648.3, 190.0, 155.0, 133.3, 170.0, 378.57, 1512.38),
            (603.3, 190.0, 135.0, 108.3, 170.0, 322.86, 1423.69),
            (638.3, 190.0, 155.0, 123.3, 170.0, 372.50, 1504.17),
        ),
        QWEN: _by_method(
            (631.7, 185.0, 145.0, 126.7, 175.0, 342.86, 1475.20),
            (626.7, 180.0, 145.0, 126.7, 175.0, 348.93, 1465.94),
            (636.7, 185.0, 145.0, 131.7, 175.0, 337.50, 1464.64),
            (631.7, 185.0, 145.0, 126.7, 175.0, 329.28, 1472.33),
            (636.7, 185.0, 145.0, 126.7, 180.0, 352.14, 1476.87),
        ),
        GLM: _by_method(
            (703.3, 200.0, 168.3, 156.7, 178.3, 479.64, 1681.64),
            (696.7, 200.0, 170.0, 151.7, 175.0, 485.00, 1668.72),
            (703.3, 200.0, 168.3, 156.7, 178.3, 479.64, 1681.64),
            (703.3, 200.0, 173.3, 151.7, 178.3, 479.64, 1681.89),
            (703.3, 200.0, 173.3, 151.7, 178.3, 479.64, 1681.89),
        ),
    },
)
_MMBENCH = Printed(
    "Table 11",
    ("AR", "CP", "FP-C", "FP-S", "LR", "RR", "accuracy"),
    {
        LLAVA: _by_method(
            (73.37, 77.03, 57.34, 61.92, 30.51, 53.04, 64.60),
            (68.34, 75.34, 55.24, 62.80, 28.81, 53.04, 61.60),
            (73.37, 77.03, 57.34, 61.92, 30.51, 53.04, 64.60),
            (17.08, 21.28, 18.88, 10.92, 5.08, 8.70, 14.78),
            (72.36, 77.03, 58.04, 67.92, 31.36, 53.91, 64.69),
        ),
        QWEN: _by_method(
            (61.31, 75.00, 51.05, 65.53, 30.51, 45.22, 59.88),
            (60.80, 75.68, 51.75, 66.21, 31.36, 45.22, 60.31),
            (62.31, 73.65, 53.15, 65.53, 32.20, 44.35, 60.05),
            (61.31, 75.68, 52.45, 64.85, 31.36, 44.35, 60.05),
            (62.31, 73.31, 53.15, 65.53, 32.20, 45.22, 60.05),
        ),
        GLM: _by_method(
            (85.93, 86.15, 69.93, 84.64, 64.41, 83.48, 81.27),
            (85.93, 85.14, 68.53, 82.94, 61.86, 83.48, 80.15),
            *[(85.93, 86.15, 69.93, 84.64, 64.41, 83.48, 81.27)] * 3,
        ),
    },
)
_OTHERS: dict[str, Printed] = {
    "hallusionbench": Printed(
        "HallusionBench (appendix)",
        ("fAcc", "qAcc", "easy", "hard", "aAcc"),
        {
            LLAVA: {
                "vanilla": (17.9, 8.1, 36.0, 36.7, 41.5),
                "vcd": (13.9, 11.4, 33.0, 34.7, 41.1),
                "memvr": (17.9, 9.0, 36.9, 37.7, 42.5),
                "air": (19.9, 9.3, 37.5, 38.3, 43.2),
            }
        },
    ),
    "vstar": Printed(
        "V* Bench (appendix)",
        ("attribute", "spatial", "accuracy"),
        {
            LLAVA: {
                "vanilla": (43.47, 56.57, 48.68),
                "memvr": (45.38, 57.82, 49.35),
                "air": (48.23, 59.31, 51.26),
            },
            QWEN: {
                "vanilla": (74.78, 68.42, 72.25),
                "memvr": (75.31, 69.08, 73.58),
                "air": (76.02, 69.46, 76.23),
            },
        },
    ),
    "mmhal": Printed(
        "MMHal-Bench (appendix)",
        ("rating", "hallucination_rate", "attribute", "adversarial", "comparison", "counting", "relation")
        + ("environment", "holistic", "other"),
        {
            LLAVA: {
                "vanilla": (1.99, 62.0, 2.58, 1.08, 2.58, 1.67, 2.00, 3.00, 1.17, 1.83),
                "vcd": (2.69, 58.0, 3.25, 2.17, 3.00, 2.42, 2.58, 3.25, 2.42, 2.42),
                "memvr": (2.83, 55.0, 3.60, 2.35, 3.30, 2.40, 2.85, 3.40, 2.40, 2.30),
                "air": (3.05, 48.0, 3.90, 2.55, 3.70, 2.50, 3.10, 3.70, 2.55, 2.40),
            }
        },
    ),
    "mmvet": Printed(
        "MM-Vet (appendix)",
        ("int:rec", "int:ocr+spat", "int:rec+ocr+know", "int:ocr+gen+spat", "total"),
        {
            LLAVA: {
                "vanilla": (67.6, 17.7, 21.2, 10.0, 31.1),
                "vcd": (62.2, 15.8, 17.5, 60.0, 30.2),
                "memvr": (70.3, 23.8, 21.2, 30.0, 32.2),
                "air": (72.1, 24.6, 21.5, 30.0, 34.7),
            }
        },
    ),
    "llava-bench": Printed(
        "LLaVA-Bench in the wild (appendix)",
        ("conv", "detail", "complex", "all"),
        {
            LLAVA: {
                "vanilla": (58.8, 52.1, 74.6, 63.4),
                "vcd": (57.8, 50.8, 77.9, 59.1),
                "memvr": (63.8, 52.6, 77.9, 64.0),
                "air": (65.3, 52.7, 79.1, 64.3),
            }
        },
    ),
    "gpt4v": Printed(
        "Table 4",
        ("accuracy_10", "detailedness_10"),
        {
            LLAVA: {"vanilla": (5.59, 4.72), "air": (5.83, 5.12)},
            QWEN: {"vanilla": (5.85, 4.98), "air": (6.18, 5.12)},
            GLM: {"vanilla": (6.76, 5.32), "air": (6.93, 5.52)},
        },
    ),
    "amber": Printed(
        "comparison with fine-tuned models (appendix)",
        ("CHAIR", "Hal", "Cog"),
        {LLAVA: {"vanilla": (8.4, 35.5, 4.0)}},
    ),
    "object-halbench": Printed(
        "comparison with fine-tuned models (appendix)",
        ("Resp", "Ment"),
        {LLAVA: {"vanilla": (52.7, 28.0)}},
    ),
}

REMARKS = {
    "pope": (
        "the paper's vanilla row on COCO repeats its GQA row and is VCD's sampled baseline; greedy decoding of "
        "LLaVA-1.5-7B is reported elsewhere as 88.5 / 87.3 / 85.2"
    ),
    "mmbench": "FP-S 61.92 is no share of 293 questions; the row's total needs 67.92",
    "vstar": "Qwen-VL-Chat with AIR: an overall of 76.23 cannot exceed both of its parts; the protocol is not said",
    "hallusionbench": "AIR's qAcc of 9.3 is no share of 455 pairs",
    "chair": "the images are not published; at 128 and 256 tokens CHAIR_S is no multiple of 0.2, as 500 would give",
}


def printed(task: str, max_new_tokens: int | None = None) -> Printed | None:
    """The paper's table that belongs to a task of ours; for tiny tasks, the one they are modelled on."""
    kind, _, rest = task.removeprefix("tiny-").partition("-")
    if kind == "chair":
        if max_new_tokens in _CHAIR_LONG:
            rows: dict[str, dict[str, Row]] = {LLAVA: dict(_CHAIR_LONG[max_new_tokens])}
            return Printed(f"generation length ({max_new_tokens} tokens)", ("CHAIR_S", "CHAIR_I", "recall"), rows)
        return _CHAIR_32 if max_new_tokens == 32 else _CHAIR
    if kind == "pope":
        dataset, _, setting = rest.rpartition("-")
        known = setting in ("random", "popular", "adversarial")
        return _pope(dataset or "coco", setting) if known and (dataset or "coco") in ("coco", "aokvqa", "gqa") else None
    if task in ("mme", "mmbench"):
        return _MME if task == "mme" else _MMBENCH
    return _OTHERS.get(task)


def printed_or_fail(task: str, max_new_tokens: int | None = None) -> Printed:
    """The same, of a task that the paper has."""
    found = printed(task, max_new_tokens)
    if found is None:
        raise ValueError(f"the paper has no table of {task}")
    return found

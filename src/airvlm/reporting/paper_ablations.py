"""The figures of the paper's ablations and comparisons, as printed there. Knows nothing of our runs.

They are the paper's, not ours, as those of paper.py, and rows are called as there.
"""

from __future__ import annotations

from airvlm.reporting.paper import LLAVA, QWEN, Printed, Row, printed_or_fail

__all__ = [
    "COMPONENTS",
    "DISTURBED",
    "FINE_TUNED",
    "LAYERS",
    "LENGTHS",
    "NOISED",
    "RANDOM",
    "SECONDS",
    "SPEED",
]

_CHAIR = ("CHAIR_S", "CHAIR_I", "BLEU")
_VANILLA, _AIR = (22.0, 6.7, 14.5), (18.4, 5.7, 14.4)


def _llava(where: str, rows: dict[str, Row], metrics: tuple[str, ...] = _CHAIR) -> Printed:
    return Printed(where, metrics, {LLAVA: rows})


LAYERS = _llava(
    "Table 5 (layers)",
    {
        "16-32": (19.6, 6.0, 14.5),
        "18-32": (19.2, 6.0, 14.4),
        "20-32": (19.0, 5.5, 14.4),
        "22-32": (19.4, 5.8, 14.5),
        "24-32": (18.8, 6.0, 14.4),
        "26-32": (18.4, 5.7, 14.4),
        "28-32": (19.4, 5.7, 14.5),
        "30-32": (22.0, 6.7, 14.5),
    },
)
COMPONENTS = _llava(
    "Table 6 (components)",
    {
        "neither": (22.7, 6.7),
        "OT-based patch reinforcement": (22.3, 6.5),
        "prototype-based token reduction": (20.2, 6.2),
        "both": (19.8, 5.8),
    },
    ("CHAIR_S", "CHAIR_I"),
)
SPEED = _llava(
    "Table 7 (efficiency)",
    {"vanilla": (22.0, 6.7), "vaf": (20.4, 6.5), "memvr": (21.6, 6.4), "air": (18.4, 5.7)},
    ("CHAIR_S", "CHAIR_I"),
)
SECONDS = {"vanilla": (1.68, 13.5), "vaf": (1.69, 13.5), "memvr": (2.05, 13.6), "air": (2.07, 13.7)}  # and GB
DISTURBED = Printed(
    "Table 17 (disturbed images)",
    _CHAIR,
    {
        LLAVA: {"vanilla": (25.3, 11.5, 17.3), "air": (22.1, 9.5, 14.2)},
        QWEN: {"vanilla": (23.5, 11.9, 16.8), "air": (21.4, 8.9, 13.7)},
    },
)
RANDOM = _llava("Table 18 (random crops)", {"vanilla": _VANILLA, "random patch": (22.3, 6.9, 13.1), "air": _AIR})
NOISED = _llava(
    "Table 21 (noised and averaged crops)",
    {
        "vanilla": _VANILLA,
        "AIR (noise)": (24.5, 7.9, 13.2),
        "AIR (averaged)": (20.8, 6.4, 14.5),
        "air": _AIR,
    },
)
LENGTHS = {
    64: _llava(
        "Table 19 (length, 64 tokens)",
        {"vanilla": (22.0, 6.7, 66.2), "memvr": (21.6, 6.5, 66.5), "air": (18.4, 5.7, 66.7)},
        ("CHAIR_S", "CHAIR_I", "recall"),
    ),
    **{cap: printed_or_fail("chair", cap) for cap in (128, 256)},
}
# Resp, Ment; CHAIR, Hal, Cog; question accuracy: vanilla is the model itself, tuned or not
FINE_TUNED: dict[str, dict[str, Row]] = {
    LLAVA: {"vanilla": (52.7, 28.0, 8.4, 35.5, 4.0, 46.86)},
    "SENTINEL on LLaVA-1.5-7B": {
        "vanilla": (4.3, 2.6, 2.9, 14.6, 1.2, 47.56),
        "air": (3.9, 2.2, 2.1, 13.3, 1.1, 47.25),
    },
    "LLaVA-1.5-13B": {"vanilla": (46.0, 23.0, 6.9, 31.9, 3.3, 46.43)},
    "SENTINEL on LLaVA-1.5-13B": {
        "vanilla": (3.3, 1.9, 2.7, 11.7, 0.9, 46.77),
        "air": (2.8, 1.6, 2.5, 10.9, 0.7, 46.77),
    },
}

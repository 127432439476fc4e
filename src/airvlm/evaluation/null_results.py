"""A method that never acted: a finding, or a reason to distrust the run.

A control or a baseline that does nothing on a task is a result, and is noted; so is a method that acted on another task
of the same run. A method that is itself under test and never acted anywhere has not been tested. Knows labels and
counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from airvlm.methods.controls import CONTROLS, RENAMED

__all__ = ["is_control", "stands_beside"]

BASELINES = ("memvr", "vaf", "vcd", "shorter", "yesno")


def is_control(label: str) -> bool:
    """Whether a label spells a control of AIR."""
    return label.partition(":")[0].removeprefix("air-") in {*CONTROLS, *RENAMED}


def stands_beside(label: str, fired: Mapping[str, int | None]) -> bool:
    """Whether the method is there for comparison, or acted in another task; `fired` counts by task."""
    return label.partition(":")[0] in BASELINES or is_control(label) or any(fired.values())

"""The change that each method makes, ours with its interval and the paper's beside it. Knows cells, nothing of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from airvlm.reporting.plots import LINE, Point, figure, intervals, style_of
from airvlm.reporting.reproduction import Compared

__all__ = ["draw_changes"]


def draw_changes(path: Path, cells: Sequence[Compared]) -> bool:
    """Draw the leading metric of every part into a file; False where no cell has a change."""
    leads = {cell.part: cell.metric for cell in reversed(cells)}  # the first metric of each part stays
    shown = [c for c in cells if c.change is not None and c.metric == leads[c.part]]
    if not shown:
        return False
    ours, theirs = style_of(1), style_of(2)
    with figure(1.1 + LINE * len(shown), width=7.0) as drawn:
        axes = drawn.subplots()
        for y, cell in enumerate(shown):
            change = cell.change
            assert change is not None, "chosen by it"
            intervals(axes, [Point(change.value, y, change.low, change.high)], ours[0], across=True)
            first = y == 0
            axes.plot(
                change.value,
                y,
                color=ours[0],
                marker=ours[1],
                linestyle="none",
                label="ours" if first else None,
            )
            if cell.paper_change is not None:
                label = "the paper" if cell is next(c for c in shown if c.paper_change is not None) else None
                axes.plot(cell.paper_change, y, color=theirs[0], marker="x", linestyle="none", label=label)
        axes.axvline(0.0, color="#333333", linewidth=1.0)
        several = len(leads) > 1
        names = [f"{c.part}: {c.label}" if several else c.label for c in shown]
        axes.set_yticks(range(len(shown)), names)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlabel(f"{' / '.join(dict.fromkeys(leads.values()))}, change against vanilla (95 % interval)")
        drawn.legend(loc="outside lower left", ncols=2, frameon=False)
        drawn.savefig(path, dpi=120)
    return True

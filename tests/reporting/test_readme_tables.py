"""A README's marked tables are found, replaced and refused by their markers."""

from __future__ import annotations

import pytest

from airvlm.reporting.readme_tables import blocks, replaced

TEXT = """before
<!-- results: tiny-chair of airvlm evaluate tiny-chair --out runs/tiny --method air
     --method air:num_prototypes=0.375 -->
| old |
<!-- end -->
between
<!-- results: tiny-pope of runs/tiny -->
<!-- end -->
after
"""


def test_a_marker_names_a_task_and_the_command_or_folder_it_is_of() -> None:
    first, second = blocks(TEXT)
    assert (first.task, first.folder, second.task, second.folder) == (
        "tiny-chair",
        "runs/tiny",
        "tiny-pope",
        "runs/tiny",
    )
    assert first.methods == ["vanilla", "air", "air:num_prototypes=0.375"]
    assert first.command is not None and first.command[0] == "evaluate"
    assert second.command is None and second.methods == []


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    text = replaced(TEXT, ["| new |\n", "| pope |\n"])
    assert "| old |" not in text
    assert text.replace("| new |", "| old |").replace("| pope |\n", "") == TEXT
    assert replaced(text, ["| new |", "| pope |"]) == text


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("<!-- results: a of runs -->\n| table |\n", "no '<!-- end -->'"),
        ("<!-- results: a -->\n<!-- end -->", "a marker reads"),
        ("<!-- results: a of airvlm serve --out x -->\n<!-- end -->", "airvlm evaluate"),
        ("<!-- results: a of airvlm evaluate a -->\n<!-- end -->", "--out FOLDER"),
        ("<!-- results: a of x -->\n<!-- results: b of y -->\n<!-- end -->", "a marker reads"),
    ],
)
def test_a_marker_that_cannot_be_read_is_refused(text: str, trouble: str) -> None:
    with pytest.raises(ValueError, match=trouble):
        blocks(text)

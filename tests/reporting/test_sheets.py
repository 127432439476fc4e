"""Tables as text: every format escapes for itself, and loses no figure."""

from __future__ import annotations

from airvlm.reporting.sheets import Cell, Column, Sheet, to_html, to_latex, to_markdown

SHEET = Sheet(
    "50 % of R&D_x | <b>",
    (Column("CHAIR_S ↓", "ours"), Column("CHAIR_S", "the paper", paper=True)),
    (
        ("a|b_c", (Cell("1.5", "[1.0, 2.0]", best=True), Cell("−2.0", mood="bad"))),
        ("<i>", (Cell(), Cell("3"))),
    ),
    ("a note with 5 % & more",),
)


def test_html_escapes_and_marks() -> None:
    text = to_html(SHEET)
    assert "<i>" not in text
    assert "&lt;i&gt;" in text
    assert "<b>1.5</b><small>[1.0, 2.0]</small>" in text
    assert '<td class="bad paper">−2.0</td>' in text
    assert 'colspan="1" scope="colgroup" class="paper">the paper<' in text


def test_markdown_keeps_its_columns_whatever_the_names_hold() -> None:
    rows = [line for line in to_markdown(SHEET).splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert all(row.replace("\\|", "").count("|") == 4 for row in rows)
    assert "**1.5 [1.0, 2.0]**" in rows[2]


def test_latex_escapes_and_balances() -> None:
    text = to_latex(SHEET)
    assert "R\\&D\\_x" in text
    assert "5 \\% \\& more" in text
    assert "\\textbf{1.5 [1.0, 2.0]}" in text
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
    assert "\\cmidrule(lr){2-2}\\cmidrule(lr){3-3}" in text


def test_a_link_in_a_name_is_no_link_in_markdown() -> None:
    sheet = Sheet("t", (Column("x"),), (("[click](http://x)", (Cell("1"),)),))
    assert "\\[click\\](http://x)" in to_markdown(sheet)


def test_controls_stand_beside_no_row_of_the_paper() -> None:
    from airvlm.reporting.layout import paper_method

    assert paper_method("air-paper:keep=3") == paper_method("air") == "air"
    assert paper_method("air-other-image") is None

"""The report: the same figures in four formats, one page that loads nothing, and nothing of a run taken for markup."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from airvlm.cli import run as command_line
from airvlm.evaluation.results import Results
from airvlm.evaluation.store import Store
from airvlm.reporting.page import (
    Report,
    report_csv,
    report_html,
    report_latex,
    report_markdown,
    write_report,
)
from airvlm.reporting.tables import escape_markdown
from tests.evaluation.small_run import HOSTILE, small_run
from tests.reporting.chromium import laid_out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results.load(small_run(tmp_path_factory.mktemp("small"), hostile=True))


@pytest.fixture(scope="module")
def report(run: Results) -> Report:
    return Report.of([run])


@pytest.fixture(scope="module")
def page(run: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([run], tmp_path_factory.mktemp("page"))["html"]


class Tags(HTMLParser):
    """Every tag with its attributes, and whether they nest."""

    EMPTY = ("meta", "img", "input", "br", "path", "rect", "circle")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "input", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another tag"


@pytest.mark.slow
def test_the_page_is_well_formed_and_needs_nothing_besides_itself(page: Path) -> None:
    tags = Tags(page.read_text())
    assert tags.open == []
    for tag, attributes in tags.found:
        for name in ("src", "href", "srcset", "action", "data"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("#", "data:image/jpeg;base64,")), (tag, name, value[:50])
    assert not re.search(r"url\((?!#)", page.read_text())
    assert "@import" not in page.read_text()


def test_what_a_model_said_is_shown_and_never_run(page: Path) -> None:
    text = page.read_text()
    assert HOSTILE not in text
    assert "&lt;script&gt;document.title=" in text
    assert sum(tag == "script" for tag, _ in Tags(text).found) == 1
    assert not any(name.startswith("on") for _, attributes in Tags(text).found for name in attributes)


def test_hostile_names_do_not_become_markup(run: Results) -> None:
    name = '<b onclick="x">"air" & co</b>'
    task = run.tasks["chair"]
    hostile = replace(task, methods={**task.methods, name: task.methods["air"]}, _scores={}, _samples={})
    text = report_html(Report.of([replace(run, tasks={"chair": hostile})]), answers=2)
    assert "onclick" not in " ".join(" ".join(attributes) for _, attributes in Tags(text).found)
    assert "&lt;b onclick=&#34;x&#34;&gt;" in text


def test_only_the_pages_own_script_may_run(page: Path) -> None:
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page.read_text().replace("&#39;", "'"))
    assert policy
    assert "default-src 'none'" in policy[1]
    assert re.search(r"script-src 'sha256-[\w+/=]{44}'", policy[1])


def test_a_figure_that_saying_less_buys_has_no_best(report: Report) -> None:
    best = {
        column.title.split()[0]
        for table in report.tables
        for i, column in enumerate(table.columns)
        if any(cells[i].best for _, cells in table.rows)
    }
    assert not best & {"CHAIR_S", "CHAIR_I", "accuracy"}


def test_every_format_holds_the_same_figures(run: Results, report: Report) -> None:
    value = run.tasks["chair"].scores("air").metrics["CHAIR_S"]
    rows = list(csv.DictReader(io.StringIO(report_csv(report))))
    mine = next(r for r in rows if (r["task"], r["method"], r["metric"]) == ("chair", "air", "CHAIR_S"))
    assert float(mine["value"]) == pytest.approx(value, rel=1e-5)
    assert float(mine["low"]) <= value <= float(mine["high"])
    assert mine["at_equal"] != ""
    for text in (report_markdown(report), report_latex(report), report_html(report, answers=0)):
        assert f"{value:.1f}" in text
    n = sum(len(task.scores(label).definitions) for task in run.tasks.values() for label in task.methods)
    assert len(rows) == n


def test_the_settings_are_there_in_full(page: Path, run: Results) -> None:
    text = page.read_text().replace("&#34;", '"')
    for said in (
        '"fingerprint": "ffffffffffffffff"',
        '"tau": 0.06',
        '"max_new_tokens": 64',
        '"words": "pattern"',
    ):
        assert said in text, said
    assert "Please describe this image in detail." in text


def test_hallucinated_objects_are_marked_and_true_ones_too(page: Path) -> None:
    text = page.read_text()
    assert re.search(r'<mark class="absent" title="fork: not in the image">fork</mark>', text)
    assert re.search(r'<mark class="there" title="dog: in the image">baby dog</mark>', text)


def test_objects_that_an_answer_leaves_out_are_listed_beside_it(page: Path) -> None:
    for truth, answers in re.findall(
        r'<p class="truth">in the image: ([^<]+)</p>(.*?)</article>', page.read_text(), re.S
    ):
        for answer in answers.split('<div class="answer">')[1:]:
            named = set(re.findall(r'title="([^:]+): in the image"', answer))
            told = re.search(r"not mentioned: ([^<·]+)", answer)
            assert (set(told[1].strip().split(", ")) if told else set()) == set(truth.split(", ")) - named


def test_a_run_that_failed_says_so_on_top(run: Results) -> None:
    task = run.tasks["chair"]
    broken = replace(task, answers={}, _scores={}, _samples={})
    text = report_html(Report.of([replace(run, tasks={"chair": broken})]), answers=3)
    assert "These figures cannot be trusted yet" in text
    assert ": no answers" in text
    assert "not answered" in text


@pytest.mark.slow
def test_several_runs_stand_side_by_side_and_caps_make_a_plot(run: Results, tmp_path: Path) -> None:
    longer = Results.load(small_run(tmp_path, max_new_tokens=128))
    report = Report.of([run, longer])
    assert [table.title for table in report.tables] == [
        f"{task}: small-model" for task in ("chair", "pope-coco-random") * 2
    ]
    assert any("over the token cap" in caption for caption, _ in report.figures)


def test_every_plot_is_drawn(report: Report) -> None:
    captions = " ".join(caption for caption, _ in report.figures)
    for said in (
        "differences with 95 % intervals",
        "CHAIR_S over recall",
        "short and long answers",
        "precision over recall",
    ):
        assert said in captions
    assert all(svg.startswith("<svg") and "NaN" not in svg and "nan" not in svg for _, svg in report.figures)


@pytest.mark.slow
def test_report_is_the_same_twice(run: Results) -> None:
    assert report_html(Report.of([run])) == report_html(Report.of([run]))


def test_the_command_writes_four_files(run: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["report", str(run.folder), "--output", str(tmp_path), "--answers", "2", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert {Path(path).name for path in files.values()} == {
        "report.html",
        "report.md",
        "report.csv",
        "report.tex",
    }
    assert all(Path(path).stat().st_size > 500 for path in files.values())
    assert (tmp_path / "report.html").read_text().count("<article") == 4


def test_a_folder_without_a_run_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(tmp_path).close()
    assert command_line(["report", str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "has no results" in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_in_a_browser_nothing_sticks_out_and_the_filter_works(page: Path, width: int) -> None:
    choose = """
      page.getElementById("wrong").click();
      const some = page.getElementById("count").textContent;
      page.getElementById("wrong").click();
      return [some, page.getElementById("count").textContent, page.querySelectorAll("svg").length];
    """
    seen = laid_out(page, width, choose)
    assert seen["inner"] == width
    assert seen["outside"] == []
    assert seen["width"] <= width
    assert seen["title"] == "airvlm: small-model", "nothing that a model said was run"
    some, all_of_them, plots = seen["said"]
    assert all_of_them == "64 shown"
    assert 0 < int(some.split()[0]) < 64
    assert plots == 4


def test_on_a_phone_the_primary_column_is_seen_and_a_wide_table_says_that_it_goes_on(page: Path) -> None:
    ask = """
      const table = page.querySelector("#full table"), box = table.closest(".scroll");
      const cell = table.querySelector("td.primary").getBoundingClientRect();
      const frame = box.parentElement, hint = frame.nextElementSibling;
      const style = page.defaultView.getComputedStyle(hint);
      return [cell.left, cell.right, frame.classList.contains("goes-on"), style.display];
    """
    left, right, goes_on, hint = laid_out(page, 390, ask)["said"]
    assert 0 < left < right <= 390
    assert goes_on and hint == "block"


def test_when_by_which_command_and_with_which_versions_stands_on_top(run: Results) -> None:
    made = {"command": "airvlm evaluate <x>", "date": "2026-01-02 03:04", "versions": {"torch": "2.13.0"}}
    text = report_html(Report.of([replace(run, commands=[made])]), answers=0)
    top = text[: text.index("</header>")]
    assert "2026-01-02 03:04" in top and "airvlm evaluate &lt;x&gt;" in top and "torch 2.13.0" in top


def test_without_matplotlib_the_page_says_what_is_missing(run: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = report_html(Report.of([run]), answers=0)
    assert "<svg" not in text and "pip install matplotlib" in text


def test_the_page_says_in_a_sentence_what_each_method_gains(report: Report) -> None:
    lines = [line for line in report.summary if "chair, air" in line]
    assert len(lines) == 1 and "CHAIR_S" in lines[0] and "at equal recall" in lines[0]
    assert lines[0] in report_html(report, answers=0) and escape_markdown(lines[0]) in report_markdown(report)


def test_a_report_follows_no_symlink_that_was_left_where_it_writes(run: Results, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "report"
    folder.mkdir()
    for name in ("report.html", "report.md", "report.csv", "report.tex"):
        for link in (f".{name}.part", f"{name}.part", name):
            (folder / link).symlink_to(victim)
    write_report([run], folder, answers=0)
    assert victim.read_text() == "precious"
    assert not (folder / "report.html").is_symlink() and "<html" in (folder / "report.html").read_text()


def test_the_name_of_a_model_makes_neither_html_nor_a_link_in_markdown(run: Results) -> None:
    hostile = replace(run, model={**run.model, "name": "<b>[a](javascript:x)"})
    text = report_markdown(Report.of([hostile]))
    outside = re.sub(r"```.*?```", "", text, flags=re.S)
    assert "javascript" in outside and "[a](" not in outside and not re.search(r"(?<!\\)<b>", outside)


def test_a_name_that_a_spreadsheet_would_run_is_guarded_in_csv(run: Results) -> None:
    task = run.tasks["chair"]
    names = ["=HYPERLINK(1)", "+1", "-1", "@x", "plain"]
    hostile = replace(task, methods={"vanilla": None} | dict.fromkeys(names, task.methods["air"]))
    rows = list(csv.DictReader(io.StringIO(report_csv(Report.of([replace(run, tasks={"chair": hostile})])))))
    assert {row["method"] for row in rows} == {"vanilla", *("'" + name for name in names[:4]), "plain"}
    assert any(float(row["difference"]) < 0 for row in rows if row["difference"])  # numbers stay numbers

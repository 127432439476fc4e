"""The leaderboard: ranks, merging boards of several people, files from strangers, and the page."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from airvlm import VLM, cli
from airvlm.evaluation import evaluate
from airvlm.evaluation.plan import TaskSpec
from airvlm.leaderboard.board import Beyond, Board, BoardError, Row, Setup, merge, verdict
from airvlm.leaderboard.markdown import board_markdown
from airvlm.leaderboard.methods import can_match, choose_methods, label_setting, make_artifacts
from airvlm.leaderboard.page import leaderboard_html
from airvlm.leaderboard.settings import group_settings
from airvlm.methods import METHODS, get_method

KEY = "tiny, tiny-chair"
SETUP = Setup(
    model="tiny",
    fingerprint="abc",
    task="tiny-chair",
    variant="exact",
    split="test",
    items=100,
    images=100,
    items_hash="h",
    generation="{}",
    metric="CHAIR_S",
    better="lower",
    held_equal="recall",
)


def row(method: str, gain: float | None, low: float | None, high: float | None, **more: Any) -> Row:
    return Row(setup=KEY, method=method, name=method, gain=gain, gain_low=low, gain_high=high, **more)


def board(*rows: Row, **more: Any) -> Board:
    return Board(
        **{"versions": {"airvlm": "1", "transformers": "5"}, "setups": {KEY: SETUP}, "rows": list(rows), **more}
    )


VANILLA = row("vanilla", 0.0, 0.0, 0.0, value=30.0)


def test_methods_whose_intervals_overlap_share_a_rank() -> None:
    rows = [
        row("good", 5.0, 3.0, 7.0),
        row("also good", 4.0, 2.0, 6.0),
        VANILLA,
        row("unclear", 0.5, -1.0, 2.5),
        row("bad", -5.0, -7.0, -3.0),
        row("failed", None, None, None, note="3 of 100 answers failed"),
    ]
    found = [(rank, one.method) for rank, one in board(*rows).rank_rows(KEY)]
    # "unclear" is beaten by "good" alone, vanilla by both
    expected = [(1, "good"), (1, "also good"), (2, "unclear"), (3, "vanilla"), (5, "bad"), (None, "failed")]
    assert found == expected


def test_boards_of_the_same_setup_are_merged_and_show_whose_they_are() -> None:
    mine = board(VANILLA, row("vcd", 1.0, 0.0, 2.0, submitted_by="me"), skipped={"crg": "needs boxes"})
    theirs = board(
        row("vanilla", 0.0, 0.0, 0.0, value=30.3), row("crg", 2.0, 1.0, 3.0, submitted_by="them"), skipped={"x": "y"}
    )
    both = merge([mine, theirs])
    assert [(r.method, r.submitted_by) for r in both.rows] == [("vanilla", ""), ("vcd", "me"), ("crg", "them")]
    assert both.skipped == {"x": "y"}  # crg was run after all
    assert "(them)" in board_markdown(both)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": "other"}, "differ in fingerprint"),
        ({"items_hash": "other"}, "differ in items_hash"),
        ({"generation": '{"max_new_tokens": 32}'}, "differ in generation"),
        ({"variant": "wordnet"}, "differ in variant"),
    ],
)
def test_boards_of_another_setup_are_refused(change: dict[str, str], message: str) -> None:
    other = board(VANILLA).model_copy(update={"setups": {KEY: SETUP.model_copy(update=change)}})
    with pytest.raises(BoardError, match=message):
        merge([board(VANILLA), other])


def test_boards_of_another_version_or_another_vanilla_are_refused() -> None:
    with pytest.raises(BoardError, match="made with transformers 5 and 6"):
        merge([board(VANILLA), board(VANILLA, versions={"airvlm": "1", "transformers": "6"})])
    with pytest.raises(BoardError, match="vanilla measures 30"):
        merge([board(VANILLA), board(row("vanilla", 0.0, 0.0, 0.0, value=33.0))])
    twice = board(VANILLA, row("vcd", 1.0, 0.0, 2.0))
    with pytest.raises(BoardError, match="vcd is in two boards of the same name"):
        merge([twice, twice])


def test_a_board_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "board.json"
    one = board(VANILLA, row("vcd", 1.0, 0.0, 2.0, metrics={"recall": 50.0}))
    path.write_text(one.to_json())
    assert Board.load(path) == one


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is not a leaderboard"),
        ('{"format": "other"}', "has the format 'other'"),
        ('{"rows": [{"setup": "x", "method": "m", "name": "m"}]}', "a setup that it does not describe"),
        ('{"rows": [{"setup": "x", "method": "m", "name": "m", "gain": NaN}]}', "is not a leaderboard"),
        ('{"evil": 1}', "is not a leaderboard: evil"),
        ("{", "is not a leaderboard"),
    ],
)
def test_files_that_are_no_boards_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "board.json"
    path.write_text(text)
    with pytest.raises(BoardError, match=message):
        Board.load(path)


def test_a_stranger_can_put_neither_markup_nor_formulas_into_the_page() -> None:
    evil = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'
    one = board(VANILLA, row(evil, 1.0, 0.5, 2.0, submitted_by="=cmd()", note=evil, cost=2.0, paper=evil, site=evil))
    found = row(f"vcd:{evil}", 1.0, 0.5, 2.0, calibrated=True).model_copy(update={"name": "vcd"})
    one = board(*one.rows, found, row("vcd:faithful=true", None, None, None, note=evil), skipped={"crg": evil})
    page = leaderboard_html(one)
    assert "<script>alert" not in page and "<img src=x" not in page
    assert "<" not in board_markdown(one)
    assert "default-src &#39;none&#39;" in page and "unsafe-eval" not in page
    cells = next(csv.DictReader(line for line in one.to_csv().splitlines() if "vanilla" not in line))
    assert cells["submitted_by"] == "'=cmd()"  # a spreadsheet shows it as text


def test_a_calibrated_setting_is_marked_and_spelled_without_the_path_of_its_artifact(tmp_path: Path) -> None:
    setting = METHODS["nullu"](artifact=str(tmp_path / "a.safetensors"), rank=7)  # type: ignore[call-arg]
    assert label_setting(setting) == "nullu:rank=7"
    assert label_setting(get_method("deco:alpha=0.3+eos-bias:bias=-1")) == "deco:alpha=0.3+eos-bias:bias=-1"
    text = board_markdown(board(VANILLA, row("deco:alpha=0.3", 1.0, 0.5, 2.0, calibrated=True)))
    assert "`deco:alpha=0.3` (calibrated)" in text


def test_the_page_has_the_facts_of_every_method_of_the_registry() -> None:
    page = leaderboard_html(board(VANILLA, *(row(name, 1.0, 0.5, 2.0) for name in METHODS)))
    assert page.count("<summary>") == len(METHODS) and page.count("<dt>decoding</dt>") > 30


def test_all_stands_for_every_method_that_needs_nothing_from_the_user() -> None:
    chosen, skipped = choose_methods(["all"])
    assert {"air", "crop-blend", "vcd", "pai", "nullu", "cut-off"} <= set(chosen)
    assert "eos-bias" not in chosen  # it draws the curve
    assert set(skipped) == {name for name in METHODS if METHODS[name].data and name not in chosen}
    with pytest.raises(ValueError, match="did you mean"):
        choose_methods(["crop-blen"])


def test_the_board_of_an_evaluation_says_what_its_table_says(tmp_path: Path) -> None:
    results = evaluate.evaluate("tiny", ["tiny-chair"], ["crop-blend", "air"], out=tmp_path, limit=4, progress=False)
    made = Board.of(results, submitted_by="me")
    (key,) = made.setups
    task = results.tasks["tiny-chair"]
    rows = {r.method: r for _, r in made.rank_rows(key)}
    assert set(rows) == {"vanilla", "crop-blend", "air"}
    assert rows["crop-blend"].metrics == pytest.approx(task.scores("crop-blend").metrics)
    assert rows["crop-blend"].changed == task.count_changed("crop-blend") / 4
    at = task.at_equal("crop-blend")["CHAIR_S"].difference
    assert rows["crop-blend"].gain == pytest.approx(-at.value)  # lower CHAIR is better
    plain = task.difference("crop-blend", "CHAIR_S").value
    assert rows["crop-blend"].explained == pytest.approx(at.value - plain)  # what the bias gives as well
    assert rows["vanilla"].explained is None
    assert rows["air"].acted == 0 and "distance" in rows["air"].note
    page = leaderboard_html(made, [results], answers=2)
    assert page.count('<article class="card"') == 2 and "data:image" in page


def test_a_method_stands_beside_controls_that_change_as_many_answers(tmp_path: Path) -> None:
    methods = ["crop-blend", "mean-token(crop-blend)", "vcd"]
    results = evaluate.evaluate(
        "tiny", ["tiny-chair"], methods, out=tmp_path, limit=12, matched=True, matched_limit=8, progress=False
    )
    made = Board.of(results)
    task = results.tasks["tiny-chair"]
    (facts,) = task.matched.values()
    assert facts["changed"]["items"] == 8  # of the calibration split
    rows = {r.method: r for r in made.rows}
    assert set(rows) == {"vanilla", *methods, facts["label"]}
    (beyond,) = rows["crop-blend"].beyond
    assert beyond.control == facts["label"]
    control = rows[facts["label"]]
    assert rows["crop-blend"].gain is not None and control.gain is not None
    assert beyond.value == pytest.approx(rows["crop-blend"].gain - control.gain)
    assert beyond.low is not None and beyond.high is not None and beyond.low <= beyond.value <= beyond.high
    assert "calibration answers" in control.note
    assert rows["vcd"].beyond == [] and rows["mean-token(crop-blend)"].beyond == []
    text = board_markdown(made)
    assert f"{beyond.value:+.1f} [{beyond.low:.1f}, {beyond.high:.1f}] {beyond.control}" in text
    assert "beyond its controls" in leaderboard_html(made) and Board.model_validate_json(made.to_json()) == made
    assert "eyond its controls" not in board_markdown(board(VANILLA))


def test_controls_are_matched_where_there_are_calibration_images(tmp_path: Path) -> None:
    spec = TaskSpec.of("tiny-chair", limit=4)
    control = {"control": get_method("mean-token(crop-blend)")}
    assert can_match([spec], control)
    assert not can_match([spec], {"vcd": get_method("vcd")})
    with pytest.warns(UserWarning, match="no calibration split"):
        assert not can_match([TaskSpec.of("tiny-chair", limit=4, split="calibration")], control)


def test_several_setups_are_compared_in_one_table_best_first() -> None:
    key = "smol, chair"
    setups = {KEY: SETUP, key: SETUP.model_copy(update={"model": "smol", "images": 30})}
    rows = [
        VANILLA,
        row("once", 9.0, 8.0, 10.0),
        row("twice", 1.0, 0.5, 2.0),
        row("never", -1.0, -2.0, -0.5),
        row("twice", 1.5, 0.1, 3.0).model_copy(update={"setup": key}),
        row("never", None, None, None, note="names no object that is there").model_copy(update={"setup": key}),
    ]
    both = board(*rows, setups=setups)
    assert [method for method, _ in both.compare_setups()] == ["twice", "once", "never"]
    lines = board_markdown(both).splitlines()
    assert "| method | tiny, tiny-chair (n = 100) | smol, chair (n = 30) |" in lines
    assert "| `twice` | +1.0 ▲ | +1.5 ▲ |" in lines
    assert "| `once` | +9.0 ▲ |  |" in lines
    assert "| `never` | -1.0 ▼ | names no object that is there |" in lines
    assert 'id="comparison"' in leaderboard_html(both)
    assert 'id="comparison"' not in leaderboard_html(board(*rows[:4]))


def test_the_published_code_of_every_method_can_be_asked_for() -> None:
    chosen, _ = choose_methods(["vcd", "faithful"])
    assert chosen[0] == "vcd" and {"vcd:faithful=true", "pai:faithful=true"} <= set(chosen)
    for spelling in chosen[1:]:
        method = get_method(spelling)
        assert method is not None and method.faithful  # type: ignore[attr-defined]


def test_a_method_that_names_nothing_has_no_gain(tmp_path: Path) -> None:
    results = evaluate.evaluate("tiny", ["tiny-chair"], ["eos-bias:bias=40"], out=tmp_path, limit=2, progress=False)
    made = Board.of(results)
    silent = next(r for r in made.rows if r.method != "vanilla")
    assert silent.metrics["recall"] == 0
    assert silent.gain is None and silent.note == "names no object that is there"


def test_a_note_stands_beside_the_figures_and_says_what_the_gain_cannot() -> None:
    rows = [VANILLA, row("far", 1.0, 0.5, 2.0, on_curve=False), row("idle", None, None, None, note="never acted")]
    lines = {line.split("|")[2].strip(): line for line in board_markdown(board(*rows)).splitlines() if "`" in line}
    assert "+1.0 [0.5, 2.0]" in lines["`far`"] and lines["`far`"].endswith("| beyond the curve |")
    assert lines["`idle`"].endswith("| never acted |") and "| ? |" in lines["`idle`"]
    page = leaderboard_html(board(*rows))
    assert "beyond the curve" in page and "never acted" in page


def test_what_differs_by_rounding_is_not_better() -> None:
    rows = [VANILLA, row("same", 0.0, 1e-14, 0.2), row("also", 0.0, -0.2, -1e-14)]
    assert {rank for rank, _ in board(*rows).rank_rows(KEY)} == {1}
    assert {verdict(one) for one in rows} == {"unclear"}


def test_settings_of_a_method_stand_side_by_side() -> None:
    def setting(method: str, name: str, gain: float, **more: Any) -> Row:
        return row(method, gain, gain - 1, gain + 1, **more).model_copy(update={"name": name})

    rows = [
        setting("vcd", "vcd", -3.0),
        setting("vcd:faithful=true", "vcd", 0.5),
        setting("vcd:alpha=0.2", "vcd", 2.0, calibrated=True, note="best of 8 settings on 32 calibration images"),
        setting("pai", "pai", 1.0),
    ]
    made = board(VANILLA, *rows)
    (one,) = group_settings(made, KEY)
    assert (one.paper, one.published, one.calibrated) == tuple(rows[:3])
    text = board_markdown(made)
    wanted = "| `vcd` | -3.0 [-4.0, -2.0] ▼ | +0.5 [-0.5, 1.5] | alpha=0.2: +2.0 [1.0, 3.0] ▲ |"
    assert f"### {KEY}: settings of each method" in text and wanted in text.splitlines()
    assert "best of 8 settings on 32 calibration images" in text
    assert "alpha=0.2: +2.0 [1.0, 3.0] ▲" in leaderboard_html(made)
    assert "settings of each method" not in board_markdown(board(VANILLA, rows[0]))
    helped = setting("pai:alpha=0.3+eos-bias:bias=-1", "composition", 2.0, calibrated=True)
    assert "| alpha=0.3+eos-bias:bias=-1: +2.0 [1.0, 3.0] ▲ |" in board_markdown(board(VANILLA, *rows, helped))
    both_settings = {one.method: one.calibrated for one in group_settings(board(VANILLA, *rows, helped), KEY)}
    assert both_settings == {"vcd": rows[2], "pai": helped}
    both = board(*made.rows, setups={KEY: SETUP, "other": SETUP})
    assert [method for method, _ in both.compare_setups()] == ["pai", "vcd:faithful=true", "vcd"]


@pytest.mark.slow
def test_calibrated_settings_are_found_on_other_images_and_the_page_can_be_left_out(tmp_path: Path) -> None:
    line = ["leaderboard", "tiny-chair", "--model", "tiny", "--limit", "8", "--method", "dola", "--calibrate", "300"]
    assert cli.run([*line, "--no-page", "--output", str(tmp_path)]) == 0
    assert sorted(path.suffix for path in tmp_path.glob("leaderboard.*")) == [".csv", ".json", ".md"]
    rows = {row.method: row for row in Board.load(tmp_path / "leaderboard.json").rows}
    noted = next(row for row in rows.values() if row.note)
    told = re.match(
        r"best of 8 settings on \d+ calibration images, where it gained (\S+).* and the paper's (\S+)", noted.note
    )
    assert told is not None and float(told[1]) > float(told[2])
    assert noted.name == "dola" and noted.calibrated


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (
            ["tiny-chair", "--calibrate", "100"],
            "a budget of 100 is too small: 8 settings on 32 items of each task need",
        ),
        (["tiny-chair", "--calibrate", "soon"], "a budget of 'soon': give a number of answers"),
        (["tiny-chair", "--calibrate", "500", "--settings", "1"], "--settings"),
    ],
)
def test_a_search_that_cannot_be_is_refused_before_a_model_is_loaded(
    wanted: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.run(["leaderboard", *wanted, "--model", str(tmp_path / "no such folder"), "--output", str(tmp_path)]) == 2
    )
    assert says in capsys.readouterr().err


def test_a_failed_method_says_why_and_has_no_place_on_the_curve(tmp_path: Path) -> None:
    methods = ["nullu+crop-blend"]  # without its artifact
    results = evaluate.evaluate("tiny", ["tiny-chair"], methods, out=tmp_path, limit=2, progress=False)
    failed = next(r for r in Board.of(results).rows if r.method != "vanilla")
    assert failed.gain is None and failed.on_curve is None
    assert failed.note.startswith("2 of 2 answers failed: ") and "artifact" in failed.note


def test_parts_of_a_composition_get_their_artifacts(tmp_path: Path) -> None:
    spec = TaskSpec.of("tiny-chair", limit=2)
    made = make_artifacts(VLM.load("tiny"), ["nullu+crop-blend", "nullu", "vcd"], [spec], tmp_path)
    path = str(tmp_path / "nullu.safetensors")
    assert [getattr(part, "artifact", None) for part in made["nullu+crop-blend"].methods] == [path, None]  # type: ignore[attr-defined]
    assert made["nullu"].artifact == path and made["vcd"] == get_method("vcd")  # type: ignore[attr-defined]


def test_controls_of_one_setups_strength_are_not_compared_across_setups() -> None:
    beyond = [Beyond(control="mean(x:weight=0.1)", value=1.0), Beyond(control="mean(x)", value=2.0)]
    rows = [VANILLA, row("x", 1.0, 0.5, 1.5, beyond=beyond), row("mean(x:weight=0.1)", 0.0, -1.0, 1.0)]
    elsewhere = row("mean(x)", 0.0, -1.0, 1.0).model_copy(update={"setup": "other"})
    both = board(*rows, row("mean(x)", 0.0, -1.0, 1.0), elsewhere, setups={KEY: SETUP, "other": SETUP})
    assert [method for method, _ in both.compare_setups()] == ["x", "mean(x)"]
    assert [own.method for _, own in both.rank_rows(KEY)].count("mean(x:weight=0.1)") == 1


@pytest.mark.slow
def test_several_processes_make_one_board(tmp_path: Path) -> None:
    line = ["leaderboard", "tiny-chair", "--model", "tiny", "--limit", "4", "--method", "crop-blend"]
    line += ["--method", "mean-token(crop-blend)", "--output"]
    for workers in ("1", "2"):
        assert cli.run([*line, str(tmp_path / workers), "--workers", workers]) == 0
    # the second shard helps the first, and does not write; the first one finds all answers
    assert cli.run([*line, str(tmp_path / "shards"), "--shard", "1/2"]) == 0
    assert not list((tmp_path / "shards").glob("leaderboard.*"))
    assert cli.run([*line, str(tmp_path / "shards"), "--shard", "0/2"]) == 0
    boards = [Board.load(tmp_path / name / "leaderboard.json") for name in ("1", "2", "shards")]
    rows = [[(row.method, row.value, row.gain, row.beyond) for row in board.rows] for board in boards]
    assert rows[0] == rows[1] == rows[2]
    assert len(rows[0]) == 4 and any(beyond for _, _, _, beyond in rows[0])

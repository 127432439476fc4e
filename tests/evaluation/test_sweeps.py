"""Sweeps: what varies, what is asked once, and what is drawn."""

from __future__ import annotations

import pytest
from fakes import FakeMethod, FakeVLM

import airvlm.methods
from airvlm.evaluation import SWEEPS
from airvlm.evaluation.evaluate import evaluate
from airvlm.evaluation.plan import Asked
from airvlm.evaluation.results import Results
from airvlm.evaluation.sweeps import NAMED, asked_by, found_in, noted, parse_sweep
from airvlm.methods import AIR
from airvlm.methods.controls import CONTROLS
from airvlm.reporting import tables
from airvlm.reporting.sweep_plot import draw_sweep
from airvlm.tasks import load_task


def ask(cap: int | None, noise: float, around: str) -> Asked:
    return Asked.of(
        "fake-captions",
        load_task("fake-captions"),
        max_new_tokens=cap,
        noise=noise,
        label="fake-captions" + around,
    )


def run(sweeps, out, vlm=None):
    asked = asked_by(sweeps, ask)
    names = noted(sweeps, asked, "fake", "fake-captions")
    made = evaluate(vlm or FakeVLM(), asked, {}, out, curve=False, progress=False, sweeps=names)
    return [found_in(made)[name] for name in names]


def test_the_help_names_every_sweep_of_the_paper():
    assert tuple(NAMED) == SWEEPS


@pytest.fixture
def real_methods(fake_names, monkeypatch):
    monkeypatch.setattr(airvlm.methods, "parse_method", fake_names)


def test_a_sweep_varies_one_field_and_leaves_the_rest():
    sweep = parse_sweep("bias=0.5,1,2", "fake", 4)
    assert [s.method for s in sweep.settings] == [FakeMethod("fake", b) for b in (0.5, 1.0, 2.0)]
    assert [s.value for s in sweep.settings] == ["bias=0.5", "bias=1", "bias=2"]


def test_every_point_is_scored_beside_vanilla_and_resumes(tmp_path):
    sweep = parse_sweep("bias=0.5,2,4", "fake", 4)
    [found] = run([sweep], tmp_path)
    recalls = [metrics["method"]["recall"]["value"] for metrics in found.to_json().values()]
    assert recalls == sorted(recalls, reverse=True) and len(recalls) == 3
    assert {m["vanilla"]["recall"]["value"] for m in found.to_json().values()} == {
        found.found[0].sample("vanilla").value("recall")
    }
    again = FakeVLM()
    [more] = run([parse_sweep("bias=0.5,2,4,6", "fake", 4)], tmp_path, again)
    assert sum(again.sizes) == 40 and len(more.found) == 4


def test_points_that_share_a_vanilla_stand_in_one_table(tmp_path):
    fields, caps = run([parse_sweep("bias=1,2", "fake", 4), parse_sweep("max_new_tokens=8,16", "fake", 4)], tmp_path)
    assert [list(task.methods) for task in fields.tables] == [["vanilla", "fake:bias=1", "fake:bias=2"]]
    assert [list(task.methods) for task in caps.tables] == [
        ["vanilla", "fake"],
        ["vanilla", "fake"],
    ]
    assert [task.asked.generation["max_new_tokens"] for task in caps.found] == [8, 16]
    assert tables.rich_tables(fields.tables[0], 200)[0].row_count == 3


def test_one_point_that_does_not_act_is_a_finding_and_none_that_acts_a_problem(tmp_path):
    [some] = run([parse_sweep("fires=false,true", "fake", 4)], tmp_path)
    assert some.problems() == []
    [none] = run([parse_sweep("bias=1,2", "fake:fires=false", 4)], tmp_path)
    assert none.problems() == ["bias: the method never acted, at any value"]


def test_what_a_sweep_asked_is_read_back_from_the_folder_as_any_run(tmp_path):
    made = run([parse_sweep("bias=1,2", "fake", 4), parse_sweep("max_new_tokens=8,16", "fake", 4)], tmp_path)
    read = Results.load(tmp_path)
    assert list(read.tasks) == [
        "fake-captions",
        "fake-captions, at most 8 tokens",
        "fake-captions, at most 16 tokens",
    ]
    assert [sweep.to_json() for sweep in found_in(read).values()] == [sweep.to_json() for sweep in made]


@pytest.mark.parametrize(
    "text",
    [
        "bias",
        "bias=",
        "no-such-sweep",
        "max_new_tokens=0",
        "max_new_tokens=a",
        "noise_on_image=2",
        "bias=1,1",
    ],
)
def test_a_sweep_that_cannot_be_is_refused(text):
    with pytest.raises(ValueError, match="--sweep"):
        parse_sweep(text, "fake", 4)


def test_the_papers_sweeps_apply_to_every_reading(real_methods):
    for method in ("air", "air-paper", "air-lineage:keep=3"):
        for name in NAMED:
            if (method, name) == ("air", "layers"):  # it blends into the decoder's input: no layer to choose
                with pytest.raises(ValueError, match="it acts in air-paper and air-lineage"):
                    parse_sweep(name, method, 6)
                continue
            sweep = parse_sweep(name, method, 6)
            assert len(sweep.settings) >= 3
            assert len({(s.method, s.max_new_tokens, s.noise) for s in sweep.settings}) == len(sweep.settings) or (
                name in ("components", "controls")  # a control may be what the method does anyway
            )


def test_the_papers_layers_are_shares_of_the_depth(real_methods):
    full = [s.method.layers for s in parse_sweep("layers", "air-paper", 32).settings]
    assert full == [(k, 32) for k in range(16, 32, 2)]
    assert [s.method.layers for s in parse_sweep("layers", "air-paper", 6).settings] == [
        (3, 6),
        (4, 6),
        (5, 6),
    ]


def test_controls_and_noise_are_the_papers(real_methods):
    assert {s.value for s in parse_sweep("controls", "air", 6).settings} == {"as it is", *CONTROLS}
    assert parse_sweep("noise", "air", 6).settings[-1].noise == 16 / 255
    with pytest.raises(ValueError, match="no reading of AIR"):
        parse_sweep("controls", "eos-bias", 6)
    assert airvlm.methods.parse_method("air-paper") == AIR()


def test_the_curves_are_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    found = run([parse_sweep("bias=0.5,2,4", "fake", 4), parse_sweep("fires=true,false", "fake", 4)], tmp_path)
    for sweep in found:
        path = draw_sweep(sweep, tmp_path / "plots" / f"{sweep.name}.png")
        assert path.read_bytes()[:4] == b"\x89PNG" and path.stat().st_size > 10_000

"""Sweeps: what varies, what is asked once, and what is drawn."""

from __future__ import annotations

import pytest
from fakes import FakeMethod, FakeVLM

from airvlm.evaluation import SWEEPS
from airvlm.evaluation.evaluate import evaluate
from airvlm.evaluation.results import Results
from airvlm.evaluation.sweeps import NAMED, list_sweeps, parse_sweep
from airvlm.methods import AIR, AIRMemory, Composed, CropBlend, EOSBias, MeanToken
from airvlm.reporting.figures import draw_sweep
from airvlm.reporting.tables import sweep_table

FAKE = FakeMethod()


def run(sweeps, out, vlm=None, methods=("fake",), tasks=("fake-captions",), **options):
    options = {"curve": False, "progress": False, **options}
    made = evaluate(vlm or FakeVLM(), tasks, list(methods), out=out, sweep=sweeps, **options)
    return list(list_sweeps(made).values())


def methods_of(text, method, depth=6):
    return [point.method for point in parse_sweep(text, method, depth).points]


def test_the_help_names_every_sweep_of_the_paper():
    assert tuple(NAMED) == SWEEPS


def test_a_sweep_varies_one_option_and_leaves_the_rest():
    sweep = parse_sweep("bias=0.5,1,2", FAKE, 4)
    assert [point.method for point in sweep.points] == [FakeMethod("fake", b) for b in (0.5, 1.0, 2.0)]
    assert [point.value for point in sweep.points] == ["bias=0.5", "bias=1", "bias=2"]


def test_an_option_of_a_wrapped_or_composed_method_is_found():
    assert methods_of("weight=0.1,0.2", MeanToken(CropBlend(keep=2))) == [
        MeanToken(CropBlend(keep=2, weight=w)) for w in (0.1, 0.2)
    ]
    assert methods_of("bias=1,2", Composed(CropBlend(), EOSBias())) == [
        Composed(CropBlend(), EOSBias(b)) for b in (1, 2)
    ]
    with pytest.raises(ValueError, match="has no option 'wight'; it has num_crops"):
        parse_sweep("wight=1,2", CropBlend(), 4)


def test_of_options_that_exclude_each_other_the_swept_one_counts():
    assert methods_of("keep=1,2", AIR(tau=0.2)) == [AIR(keep=1), AIR(keep=2)]
    assert methods_of("tau=0.1,0.2", AIR(keep=3)) == [AIR(tau=0.1), AIR(tau=0.2)]


def test_every_point_is_scored_beside_vanilla_and_resumes(tmp_path):
    [found] = run(["bias=0.5,2,4"], tmp_path)
    recalls = [metrics["method"]["recall"]["value"] for metrics in found.to_json().values()]
    assert recalls == sorted(recalls, reverse=True) and len(recalls) == 3
    vanilla = found.points[0][2].sample("vanilla").value("recall")
    assert {m["vanilla"]["recall"]["value"] for m in found.to_json().values()} == {vanilla}
    again = FakeVLM()
    [more] = run(["bias=0.5,2,4,6"], tmp_path, again)
    assert sum(again.sizes) == 40 and len(more.points) == 4


def test_a_sweep_is_one_table_with_vanilla_once_and_the_difference_at_equal_recall(tmp_path):
    options, caps = run(["bias=1,2", "max_new_tokens=8,16"], tmp_path, curve=True)
    table = sweep_table(options, "fake")
    assert [label for label, _ in table.rows] == ["vanilla", "bias=1", "bias=2"]
    assert table.title == "sweep fake-captions, fake: bias; model fake" and table.corner == "bias"
    [primary] = [i for i, column in enumerate(table.columns) if column.primary and column.title == "CHAIR_S"]
    assert [bool(cells[primary].text) for _, cells in table.rows] == [False, True, True]
    assert [label for label, _ in sweep_table(caps).rows] == [
        "vanilla, max_new_tokens=8",
        "max_new_tokens=8",
        "vanilla, max_new_tokens=16",
        "max_new_tokens=16",
    ]
    assert [task.spec.generation["max_new_tokens"] for _, _, task in caps.points] == [8, 16]


def test_one_point_that_does_not_act_is_a_finding_and_none_that_acts_a_problem(tmp_path):
    [some] = run(["fires=false,true"], tmp_path)
    assert some.problems() == []
    [none] = run(["bias=1,2"], tmp_path, methods=["fake:fires=false"])
    assert none.problems() == ["fake-captions, fake:fires=false: bias: the method never acted, at any value"]


def test_what_a_sweep_asked_is_read_back_from_the_folder_as_any_run(tmp_path):
    made = run(["bias=1,2", "max_new_tokens=8,16"], tmp_path)
    read = Results.load(tmp_path)
    assert list(read.tasks) == [
        "fake-captions",
        "fake-captions, at most 8 tokens",
        "fake-captions, at most 16 tokens",
    ]
    assert [sweep.to_json() for sweep in list_sweeps(read).values()] == [sweep.to_json() for sweep in made]


def test_an_evaluation_without_a_sweep_shows_none_of_the_folders(tmp_path):
    run(["max_new_tokens=8,16"], tmp_path)
    assert run([], tmp_path) == []


def test_several_methods_and_tasks_are_swept_each(tmp_path):
    found = run(["bias=1,2"], tmp_path, methods=["fake", "other"], tasks=["fake-captions", "fake-questions"])
    assert [sweep.title for sweep in found] == [
        f"{task}, {method}: bias" for task in ("fake-captions", "fake-questions") for method in ("fake", "other")
    ]


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
        "bias=1,1.0",
    ],
)
def test_a_sweep_that_cannot_be_is_refused(text):
    with pytest.raises(ValueError, match="--sweep"):
        parse_sweep(text, FAKE, 4)


def test_what_cannot_be_swept_is_refused_before_a_model_is_loaded(tmp_path):
    def fail(device):
        pytest.fail("loaded")

    for sweeps, methods in ((["bias=1", "bias=2"], ["fake"]), (["bias=1,2"], ["vanilla"]), (["x=1,2"], ["fake"])):
        with pytest.raises(ValueError, match=r"twice|vanilla has no options|no option 'x'"):
            run(sweeps, tmp_path, fail, methods)


@pytest.mark.parametrize("method", [CropBlend(), CropBlend(keep=2, num_prototypes=8), AIR(), AIRMemory(keep=3)])
def test_the_papers_sweeps_apply_to_the_methods_that_have_what_they_vary(method):
    fields = type(method).__dataclass_fields__
    for name in NAMED:
        nothing = name == "components" and method == CropBlend()  # all tokens, all crops
        if (name in ("layers", "tau") and name not in fields) or nothing:
            with pytest.raises(ValueError, match=r"has no option|uses all visual tokens and all crops already"):
                parse_sweep(name, method, 6)
            continue
        sweep = parse_sweep(name, method, 6)
        assert len({(p.method, p.max_new_tokens, p.noise) for p in sweep.points}) == len(sweep.points) >= 3


def test_the_papers_layers_are_shares_of_the_depth():
    assert [m.layers for m in methods_of("layers", AIR(), 32)] == [(k, 32) for k in range(16, 32, 2)]
    assert [m.layers for m in methods_of("layers", AIR(), 6)] == [(3, 6), (4, 6), (5, 6)]


def test_components_controls_and_noise():
    found = {p.value: p.method for p in parse_sweep("components", AIR(keep=3), 6).points}
    assert found == {
        "unchanged": AIR(keep=3),
        "no prototypes": AIR(keep=3, num_prototypes=None),
        "no selection": AIR(keep=12),
        "neither": AIR(keep=12, num_prototypes=None),
    }
    # controls of the selection would change nothing where all crops are kept, and are left out
    every = ["unchanged", "random-crops", "farthest-crops", "noisy-crops", "mean-token", "other-image", "shrunk-crops"]
    assert [p.value for p in parse_sweep("controls", CropBlend(keep=2), 6).points] == every
    assert [p.value for p in parse_sweep("controls", CropBlend(), 6).points] == [*every[:1], *every[3:]]
    with pytest.raises(ValueError, match="uses no crops"):
        parse_sweep("controls", EOSBias(), 6)
    assert parse_sweep("noise", CropBlend(), 6).points[-1].noise == 16 / 255


def test_the_curves_are_drawn(tmp_path):
    for k, sweep in enumerate(run(["bias=0.5,2,4", "fires=true,false"], tmp_path)):
        path = draw_sweep(sweep, tmp_path / "plots" / f"{k}.png")
        assert path.read_bytes()[:4] == b"\x89PNG" and path.stat().st_size > 10_000

"""Answers that are read from a trace are those of separate runs, text for text."""

from __future__ import annotations

import functools
import warnings
from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from airvlm import ADHH, CRG, MARINE, VAR, VLM, Composed, ProjectAway
from airvlm.evaluation import recorder
from airvlm.evaluation.artifacts import make_artifact
from airvlm.evaluation.recorder import answer_traced, trace_problem
from airvlm.evaluation.traces import (
    Derived,
    TraceRequest,
    bias_ranges,
    derive_answer,
    end_trace,
    join_bias,
    split_bias,
    thresholds,
    trace_covers,
    yes_trace,
)
from airvlm.inputs.images import LoadedImage, read_image
from airvlm.methods import EOSBias, YesBias, names
from airvlm.methods.artifacts import ArtifactMethod
from airvlm.methods.base import Method
from airvlm.methods.controls import Wrapper
from airvlm.methods.direction_controls import DirectionControlMethod
from airvlm.methods.names import METHODS
from airvlm.methods.templates import LoopMethod
from airvlm.tasks import load_task

ENDS = TraceRequest("eos-bias", (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0))
YES = TraceRequest("yes-bias", (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0))
INNER = "crop-blend:keep=2"  # keeps some crops, so that no wrapper changes nothing
GENERATION = {"max_new_tokens": 64, "do_sample": False}


@pytest.fixture(autouse=True, scope="module")
def fake_names():
    """The real parser of methods, in place of the one that other files here put in its place."""
    return names.parse_method


@pytest.fixture(scope="module")
def parse(fake_names):
    return fake_names


@pytest.fixture(scope="module")
def vlm() -> VLM:
    torch.set_num_threads(1)
    return VLM.load("tiny")


# Methods that do not act on this model, or not at all, with their default options.
NAMED = {
    "air": "air:keep=3",
    "air-memory": "air-memory:keep=3",
    "yes-bias": "yes-bias:bias=0.5",
    "eos-bias": "eos-bias:bias=0.5",
    "project-away": ProjectAway(objects="dog/person"),
    "marine": MARINE(objects=("dog; person",)),
    "crg": CRG(boxes=((0.0, 0.2, 0.5, 1.0),)),
    "ad-hh": ADHH(heads=((1, 0), (1, 1), (2, 0)), tau=0.1),
    "var": VAR(dims=(3, 17), tau=1.0, min_image=0.05, keep=0.0),
}


def all_methods() -> dict[str, Method | str]:
    """Every method of the registry, and vanilla and a composition."""
    found: dict[str, Method | str] = {"vanilla": "vanilla", "crop-blend+memvr+vaf": "crop-blend+memvr+vaf"}
    for name in METHODS:
        inner = "vista" if issubclass(METHODS[name], DirectionControlMethod) else INNER
        found[name] = f"{name}({inner})" if issubclass(METHODS[name], Wrapper) else NAMED.get(name, name)
    return found


@pytest.fixture(scope="module")
def build(vlm, parse, tmp_path_factory):
    """What makes a method of a name; an artifact is made of a few images."""

    @functools.cache
    def build(name: str) -> Method | None:
        chosen = all_methods()[name]
        kind = METHODS.get(name)
        if kind is not None and issubclass(kind, ArtifactMethod):
            path = tmp_path_factory.mktemp(name) / "artifact.safetensors"
            images = [item.image for item in load_task("tiny-chair").items(8, "calibration")]
            make_artifact(vlm, kind, images).save(path)
            return kind(artifact=str(path))
        return parse(chosen) if isinstance(chosen, str) else chosen

    return build


def captions(count: int) -> list[tuple[object, str]]:
    task = load_task("tiny-chair")
    return [(item.image, task.prompt(item)) for item in task.items(count)]


def questions(count: int) -> list[tuple[object, str]]:
    task = load_task("tiny-pope")
    items = task.items()
    return [(item.image, task.prompt(item)) for item in items[:: len(items) // count][:count]]


@pytest.fixture(scope="module")
def images() -> list[tuple[LoadedImage, str, str]]:
    """200 images, each with what asks for a description and a question; about equally many objects come together."""
    task, described = load_task("tiny-pope"), load_task("tiny-chair")
    about = defaultdict(list)
    for item in task.items():
        about[item.image].append(item)
    chosen = sorted(list(about)[:200], key=lambda scene: len(scene.scene.objects))  # fewer idle steps
    prompt = described.prompt(described.items(1)[0])
    return [(read_image(one), prompt, task.prompt(about[one][n % len(about[one])])) for n, one in enumerate(chosen)]


def run_alone(vlm, rows, method, control, cap) -> list[Derived]:
    """What a run of this bias by itself answers."""
    parts = [part for part in (method, control) if part is not None and part.disabled_reason is None]
    joined = None if not parts else parts[0] if len(parts) == 1 else Composed(*parts)
    generation = {"max_new_tokens": cap, "do_sample": False}
    answers = vlm.batch(rows, method=joined, batch_size=len(rows), progress=False, **generation)
    return [Derived(answer.text, answer.tokens, answer.finished) for answer in answers]


def compare(
    vlm, rows, method, request: TraceRequest, caps: tuple[int, ...], biases: tuple[float, ...] = ()
) -> Counter[str]:
    """Compare a trace with runs of its own for every bias and cap."""
    control = {"eos-bias": EOSBias, "yes-bias": YesBias}[request.control]
    generation = {"max_new_tokens": max(caps), "do_sample": False}
    seen, equal, changed = set(), 0, 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* did not act")
        found = answer_traced(vlm, rows, method, request, **generation)
        traces = [one.trace for one in found]
        assert not any("refused" in trace for trace in traces), traces[0]
        for cap in caps:
            for bias in biases or request.biases:
                alone = run_alone(vlm, rows, method, control(bias=bias), cap)
                derived = [derive_answer(trace, request.control, bias, cap) for trace in traces]
                assert derived == alone, (bias, cap)
                changed += sum(derive_answer(trace, "", 0.0, cap) != own for trace, own in zip(traces, derived))
                seen |= {(i, answer.text) for i, answer in enumerate(alone)}
                equal += len(alone)
    acted = sum(one.answer.report is not None and one.answer.report.fired for one in found)
    return Counter({"equal": equal, "distinct": len(seen), "changed": changed, "acted": acted})


@pytest.mark.slow
@pytest.mark.parametrize("spelling", ["vanilla", "crop-blend", "vcd", "memvr+deco"])
def test_one_run_holds_the_texts_of_every_bias_on_the_end_token(vlm, parse, spelling):
    texts = compare(vlm, captions(4), parse(spelling), ENDS, (64,), biases=(-1.0, 0.0, 2.0, 3.0))
    assert (
        texts["distinct"] > 6 or spelling == "vcd"
    )  # the biases change texts, except where a cut-off hides the end token


@pytest.mark.slow
def test_one_run_holds_the_texts_of_every_shorter_cap(vlm):
    compare(vlm, captions(6), None, TraceRequest("eos-bias", (-1.0, 0.0, 3.0)), (33, 20, 9, 1))


@pytest.mark.slow
@pytest.mark.parametrize("spelling", ["vanilla", "crop-blend", "vcd"])
def test_one_run_and_few_more_rows_hold_the_answers_of_every_bias_on_yes(vlm, parse, spelling):
    assert compare(vlm, questions(40), parse(spelling), YES, (8,))["distinct"] > 40


@pytest.mark.slow
def test_several_end_tokens_end_an_answer(vlm, monkeypatch):
    """A period ends an answer as well, as the second end token of other models does."""
    [period] = vlm.processor.tokenizer(" a.", add_special_tokens=False)["input_ids"][-1:]
    monkeypatch.setattr(vlm.model.generation_config, "eos_token_id", [*vlm.end_ids, period])
    texts = compare(vlm, captions(4), None, TraceRequest("eos-bias", (-6.0, -3.0, 0.0, 2.0)), (64,))
    assert texts["distinct"] >= 4  # an answer of each image that a bias changes


def compare_both(vlm, build, name: str, images, end: float, yes: float) -> Counter[str]:
    """Compare descriptions at a bias on the end token and answers at a bias on yes."""
    method = build(name)
    if method is not None and "greedy" not in method.decoding:
        pytest.skip("does not work with greedy decoding")
    found = Counter[str]()
    if name != "eos-bias":  # not twice the same control
        described = [(image, description) for image, description, _ in images]
        found += compare(vlm, described, method, ENDS, (64,), biases=(end,))
    if name != "yes-bias":
        asked = [(image, question) for image, _, question in images]
        found += compare(vlm, asked, method, YES, (8,), biases=(yes,))
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", all_methods())
def test_every_method_on_a_few_images(vlm, build, images, name):
    found = compare_both(vlm, build, name, images[::40], 2.0, 1.0)
    print(f"{name}: {dict(found)}", flush=True)  # with -s


@pytest.mark.slow
@pytest.mark.parametrize("name", all_methods())
def test_every_method_on_200_images(vlm, build, name, request):
    """Ten to thirty seconds of processor time per method: only if asked for by name (-k 200_images)."""
    if "200_images" not in (request.config.getoption("keyword") or ""):
        pytest.skip("only with -k 200_images")
    images, found = request.getfixturevalue("images"), Counter[str]()
    for k, (end, yes) in enumerate(((0.0, -2.0), (2.0, 1.0), (1.0, -1.0), (3.0, 0.5))):
        found += compare_both(vlm, build, name, images[50 * k : 50 * k + 50], end, yes)
    print(f"{name}: {dict(found)}", flush=True)  # with -s: equal texts, those that a bias changed, ...


@pytest.mark.slow
def test_beams_are_refused_and_say_why(vlm, monkeypatch):
    monkeypatch.setattr(vlm.model.generation_config, "num_beams", 2)
    [found] = answer_traced(vlm, captions(1), None, ENDS, max_new_tokens=4, do_sample=False)
    assert found.trace == {"refused": "decoding is not greedy"}
    assert derive_answer(found.trace, "", 0.0, None) is None and trace_covers(found.trace, ENDS, 4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, ""),
        ({"num_beams": 2}, "not greedy"),
        ({"do_sample": True}, "not greedy"),
        ({"forced_eos_token_id": 2}, "forces the end token"),
        ({"exponential_decay_length_penalty": (3, 1.1)}, "penalizes long answers"),
    ],
)
def test_a_call_whose_steps_say_nothing_is_refused(options, said):
    steps = recorder._Steps()
    steps.start(SimpleNamespace(option=lambda name, default=None: options.get(name, default)))
    assert said in steps.problem and bool(said) == bool(steps.problem)


class Looped(LoopMethod):
    name = "looped"


@pytest.mark.parametrize(
    ("method", "generation", "said"),
    [
        (None, {"do_sample": True}, "sampling"),
        (None, {"num_beams": 4}, "beam"),
        (None, {"stop_strings": ["."]}, "stop_strings"),
        (None, {"protocol": "likelihood"}, "protocol"),
        (Looped(), {}, "loop"),
        ("no method", {}, "not a method"),
        (None, {}, None),
    ],
)
def test_what_cannot_be_read_from_one_run_is_known_before_it(method, generation, said):
    problem = trace_problem(method, {**GENERATION, **generation})
    assert (problem is None) if said is None else (said in problem)


# -- thresholds


def test_a_threshold_is_the_first_number_at_which_the_token_wins():
    rng = np.random.default_rng(0)
    scale = 10.0 ** rng.integers(-3, 4, 4000)
    controlled, other = (rng.normal(size=(2, 4000)) * scale).astype(np.float32)
    other[:500] = controlled[:500] + np.float32(1.0)  # ties at a round bias
    first = rng.random(4000) < 0.5

    def wins(bias):
        biased = controlled + bias
        return (biased > other) | (first & (biased == other))

    found = thresholds(controlled, other, first)
    assert found.dtype == np.float32
    assert wins(found).all() and not wins(np.nextafter(found, np.float32(-np.inf))).any()


def test_a_token_that_is_masked_never_wins_and_one_that_is_alone_always_does():
    low = np.float32(-np.inf)
    never, always = thresholds([low, 1.0], [0.0, low], [True, True])
    assert never == np.inf and always < -1e38


# -- reading a trace

TEXTS = ["", " A", " A dog", " A dog.", " A dog. \ufffd", " A dog. é"]


def test_the_answer_ends_at_the_first_step_whose_margin_is_reached():
    trace = end_trace(-1.0, 8, TEXTS, [9.0, 5.0, 7.0, 1.0, 6.0, -2.0])
    assert trace["ends"] == [[0, 9.0], [1, 5.0], [3, 1.0], [5, -2.0]]  # 7 and 6 never end anything
    texts = {b: derive_answer(trace, "eos-bias", b, None) for b in (-1.0, 0.99, 1.0, 4.9, 5.0, 9.0)}
    assert texts[-1.0] == texts[0.99] == Derived("A dog. é", 5, True)
    assert texts[1.0] == texts[4.9] == Derived("A dog.", 3, True)
    assert texts[5.0] == Derived("A", 1, True) and texts[9.0] == Derived("", 0, True)
    assert derive_answer(trace, "", 0.0, None) == texts[-1.0]


def test_texts_that_continue_each_other_are_stored_once():
    plain = end_trace(-1.0, 8, TEXTS[:4], [9.0, 5.0, 7.0, -2.0])
    assert plain["text"] == " A dog." and plain["at"] == [0, 2, 6, 7] and "texts" not in plain
    found = [derive_answer(plain, "eos-bias", bias, None) for bias in (9.0, 5.0, -1.0)]
    assert found == [Derived("", 0, True), Derived("A", 1, True), Derived("A dog.", 3, True)]
    assert derive_answer(plain, "", 0.0, 2) == Derived("A dog", 2, False)


def test_a_trace_holds_neither_smaller_biases_nor_longer_answers_nor_other_controls():
    trace = end_trace(-1.0, 8, TEXTS, [9.0, 5.0, 7.0, 1.0, 6.0, -2.0])
    assert derive_answer(trace, "eos-bias", -1.5, None) is None
    assert derive_answer(trace, "eos-bias", 0.0, 9) is None
    assert derive_answer(trace, "yes-bias", 0.0, None) is None


def test_an_answer_that_fills_the_cap_was_cut():
    trace = end_trace(0.0, 8, TEXTS, [9.0, 5.0, 7.0, 1.0, 6.0, -2.0])
    assert derive_answer(trace, "", 0.0, 6) == Derived("A dog. é", 5, True)
    assert derive_answer(trace, "", 0.0, 5) == Derived("A dog. é", 5, False)
    assert derive_answer(trace, "", 0.0, 4) == Derived("A dog. \ufffd", 4, False)  # the ids decide, not the text
    assert derive_answer(trace, "eos-bias", 1.0, 3) == Derived("A dog.", 3, False)


def test_the_first_thing_that_makes_a_call_unreadable_is_what_it_is_refused_for():
    steps = recorder._Steps()
    steps.biases = torch.zeros(1)
    add = functools.partial(steps.add, scores=torch.zeros(1, 9), tokens=torch.tensor([2]))
    for length in (3, 4, 4):  # the last step does not go on where the one before ended
        assert steps.problem == ""
        add(torch.zeros(1, length, dtype=torch.long))
    assert steps.problem == "a step was taken back"
    steps.problem = "decoding is not greedy"
    add(torch.zeros(1, 4, dtype=torch.long))
    assert steps.problem == "decoding is not greedy"


def test_recorded_tokens_must_spell_the_answer():
    """Tokens 5 and 6, then the end token 2; a second answer has no recorded row."""
    steps = recorder._Steps()
    steps.biases = torch.zeros(1)
    ids = [1, 1, 1]
    for token, margin in ((5, 3.0), (6, 2.0), (2, -1.0)):
        scores = torch.zeros(1, 9)
        scores[0, token] = abs(margin)
        steps.add(torch.tensor([ids]), scores, torch.tensor([2]))
        ids.append(token)
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: "".join(f" {one}" for one in ids))
    vlm = SimpleNamespace(processor=SimpleNamespace(tokenizer=tokenizer), end_ids={2})
    right = SimpleNamespace(tokens=2, text="5 6", finished=True)
    [row] = steps.read(vlm, [right])
    assert (row.ids, row.text, len(row.margins), row.problem) == ([5, 6], " 5 6", 3, "")
    for change in ({"text": "5"}, {"tokens": 1}, {"finished": False}):
        [row] = steps.read(vlm, [SimpleNamespace(**{**vars(right), **change})])
        assert row.problem == "the recorded tokens are not the answer's"
    _, other = steps.read(vlm, [right, right])
    assert (other.ids, other.margins) == ([], []) and other.problem


@pytest.mark.parametrize("texts", [TEXTS[:4], ["", " A", " B"]], ids=["stored once", "stored apart"])
def test_an_answer_that_never_ended_is_the_whole_text(texts):
    trace = end_trace(-1.0, len(texts) - 1, texts, [9.0, 5.0, 7.0][: len(texts) - 1])
    assert derive_answer(trace, "", 0.0, None) == Derived(texts[-1].strip(), len(texts) - 1, False)


def test_each_answer_holds_for_a_range_of_biases_on_yes():
    assert bias_ranges(0.0, [-3.0, 5.0, 0.5, -0.25]) == (-0.25, 0.5)
    assert bias_ranges(0.5, [0.5]) == (0.5, np.inf) and bias_ranges(0.4, [0.5]) == (-np.inf, 0.5)
    no, yes = Derived("No", 1, True), Derived("Yes, it", 3, False)
    trace = yes_trace([(-np.inf, 0.5, no), (0.5, 2.0, yes)])
    found = [derive_answer(trace, "yes-bias", b, 8) for b in (-50.0, 0.49, 0.5, 1.9, 2.0)]
    assert found == [no, no, yes, yes, None]
    assert trace_covers(trace, YES, 8) and not trace_covers(trace, TraceRequest("yes-bias", (0.0, 3.0)), 8)


def test_a_control_is_split_off_only_where_it_acts_last():
    eos = {"name": "eos-bias", "bias": 2.0}
    air, vaf = {"name": "air"}, {"name": "vaf"}
    both = {"name": "composed", "methods": [air, vaf]}
    for base in (None, air, both):
        joined = join_bias(base, "eos-bias", 2.0)
        assert split_bias(joined) == (base, "eos-bias", 2.0)
    assert split_bias(eos) == (None, "eos-bias", 2.0)
    first = {"name": "composed", "methods": [eos, air]}
    assert split_bias(first) == (first, "", 0.0)

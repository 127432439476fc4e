"""The laws that every method keeps on every family of models, seen through transformers' own `generate`.

Off means off; strength 0 is vanilla; a batch is its rows; the cache changes nothing; each declared decoding mode works,
and the others are refused.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from airvlm.methods.base import Method
from airvlm.methods.composed import Composed
from airvlm.methods.names import METHODS, get_method, parse_method
from airvlm.models.parts import ModelParts
from airvlm.report import Report
from airvlm.runtime.intervention import DECODING
from airvlm.runtime.session import MethodInactiveWarning, Session
from airvlm.testing import small_models
from airvlm.testing.laws import Law, check_laws

__all__ = [
    "FAMILIES",
    "FLOAT32_ONLY",
    "METHOD_LAWS",
    "MethodOnFamily",
    "check_method",
    "list_laws",
    "register_for_now",
    "turn_off",
]

FAMILIES = ("llava", "qwen2_5_vl", "gemma3", "smolvlm")  # one per layout of pixels; the rest are their relatives
TOKENS = 3  # prefill and two decode steps: the second begins from what the first kept
TEXT_ROW, TWO_IMAGES = 1, 2  # rows of `small_models.sample_rows`
# Equal up to the order of summation: logits of the small models have a standard deviation of about 4
CLOSE = {torch.float32: (1e-3, 2e-3), torch.bfloat16: (5e-2, 0.5)}  # rtol, atol
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "beams": {"do_sample": False, "num_beams": 2},
    "sampling": {"do_sample": True, "temperature": 2.0, "top_k": 0},
}


def check_method(
    method: Method | type[Method] | str,
    families: Sequence[str] | None = None,
    *,
    off: Method | None = None,
    verbose: bool = False,
) -> dict[str, list[str]]:
    """Check every law of a method on small random models.

    Args:
        method: an object, a class (with its default options) or a spelling, "package.module:Class" included.
        families: model types; by default one for each way in which families pass pixels.
        off: the method with options that make it do nothing; by default what the options' `off` values say.
        verbose: print a line per law.

    Returns:
        The names of the laws that hold, by family.

    Raises:
        AssertionError: naming the method, the family and the first law that does not hold.
    """
    chosen = method() if isinstance(method, type) else get_method(method)
    if chosen is None:
        raise ValueError("vanilla is the model as it is: there is no method to check")
    off = turn_off(chosen) if off is None else off
    with register_for_now(chosen):
        return {
            family: check_laws(
                f"{chosen.label} on {family}", METHOD_LAWS, MethodOnFamily(family, chosen, off), verbose=verbose
            )
            for family in (FAMILIES if families is None else families)
        }


def turn_off(method: Method) -> Method | None:
    """The method with every option at its `off` value; None if it has no such options."""
    switches = {f.name: f.metadata["off"] for f in dataclasses.fields(method) if "off" in f.metadata}
    if switches:
        return dataclasses.replace(method, **switches)
    if isinstance(method, Composed):
        parts = [off for part in method.methods if (off := turn_off(part)) is not None]
        return Composed(*parts) if len(parts) == len(method.methods) else None
    return None


# -- one method on one family


@dataclass(frozen=True)
class Generated:
    """What was generated, and what the method reported."""

    ids: Tensor  # (B, TOKENS)
    logits: Tensor  # (TOKENS, B * beams, V) of the model
    scores: Tensor  # (TOKENS, B * beams, V) after all logits processors
    beams: int
    report: Report | None

    def of_row(self, row: int) -> tuple[list[int], Tensor]:
        """One row's token ids, and its scores (TOKENS, beams, V)."""
        return self.ids[row].tolist(), self.scores[:, row * self.beams : (row + 1) * self.beams]


@dataclass(frozen=True)
class MethodOnFamily:
    """A method, the same method turned off, and a family of models in one dtype."""

    family: str
    method: Method
    off: Method | None = None
    dtype: torch.dtype = torch.float32

    @property
    def modes(self) -> list[str]:
        """The decoding modes that the method declares, those without a random choice first."""
        return [mode for mode in MODES if mode in self.method.decoding]

    def run(self, mode: str | None = None, **options: Any) -> Generated:
        """Generate under the method; by default in the first mode in which it acts."""
        return _generate(self.family, self.method, mode or self.acting_mode, **{"dtype": self.dtype, **options})

    def vanilla(self, mode: str) -> Generated:
        """The same without a method."""
        return _generate_once(self.family, None, mode, dtype=self.dtype)

    def acted(self, mode: str | None = None) -> Generated:
        """With a cache: what other ways of generating are compared with."""
        return _generate_once(self.family, self.method, mode or self.acting_mode, dtype=self.dtype)

    @property
    def acting_mode(self) -> str:
        """The first declared mode in which the method acts; the first of all if it acts in none."""
        return next((mode for mode in self.modes if _acts(self.acted(mode))), self.modes[0])


def _acts(generated: Generated) -> bool:
    return generated.report is not None and generated.report.fired


def _batch(family: str, dtype: torch.dtype = torch.float32, row: int | None = None) -> dict[str, Any]:
    """The inputs of all rows, or of one of them alone, where the model is."""
    device = small_models.shared_model(family, dtype=dtype)[0].device
    return {name: value.to(device) for name, value in _batch_on_cpu(family, dtype, row).items()}


@cache
def _batch_on_cpu(family: str, dtype: torch.dtype, row: int | None) -> dict[str, Any]:
    _, processor = small_models.shared_model(family, dtype=dtype)
    rows = small_models.sample_rows()
    inputs = small_models.build_inputs(processor, rows if row is None else rows[row : row + 1])
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}


def _images(row: int | None = None) -> list[Any]:
    """The images of every row, as `images=` takes them."""
    rows = [list(own) for _, own in small_models.sample_rows()]
    return rows if row is None else rows[row : row + 1]


def _prompts(row: int | None = None) -> list[str]:
    """The prompt of every row, with one placeholder per image."""
    texts = [text for text, _ in small_models.sample_rows()]
    return texts if row is None else texts[row : row + 1]


@contextmanager
def _active(
    family: str, method: Method | None, dtype: torch.dtype = torch.float32, row: int | None = None
) -> Iterator[Session | None]:
    model, processor = small_models.shared_model(family, dtype=dtype)
    tiles = method is not None and ModelParts.of(model).layout == "tiles"  # prompts cannot be read back from ids
    prompts = _prompts(row) if tiles else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MethodInactiveWarning)  # reports are read instead
        with (
            nullcontext() if method is None else method(model, processor, images=_images(row), prompts=prompts)
        ) as session:
            yield session


def _generate(
    family: str,
    method: Method | None,
    mode: str,
    *,
    row: int | None = None,
    dtype: torch.dtype = torch.float32,
    tokens: int = TOKENS,
    **options: Any,
) -> Generated:
    model, _ = small_models.shared_model(family, dtype=dtype)
    details = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
    with _active(family, method, dtype, row) as session, torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        out = model.generate(
            **_batch(family, dtype, row), **{**MODES[mode], "max_new_tokens": tokens, **options, **details}
        )
    logits, scores = torch.stack(out.logits), torch.stack(out.scores)
    ids = out.sequences[:, -len(logits) :]
    return Generated(ids, logits, scores, logits.shape[1] // len(ids), None if session is None else session.report)


def _generate_once(family: str, method: Method | None, mode: str, **options: Any) -> Generated:
    return _generate_on(small_models.current_device(), family, method, mode, **options)


@cache
def _generate_on(device: str, family: str, method: Method | None, mode: str, **options: Any) -> Generated:
    return _generate(family, method, mode, **options)


@torch.no_grad()
def _logits(family: str, dtype: torch.dtype) -> Tensor:
    """Logits of a plain forward pass, (B, L, V)."""
    model, _ = small_models.shared_model(family, dtype)
    out: Tensor = model(**_batch(family, dtype)).logits
    return out


def _state(model: Any) -> Any:
    """What a session must leave as it was."""
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    return dict(vars(model)), hooks, model.config.to_dict(), model.config._attn_implementation


def _check_close(found: Tensor, expected: Tensor, dtype: torch.dtype = torch.float32) -> None:
    """Equal up to the order of summation in a model of this dtype."""
    rtol, atol = CLOSE[dtype]
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


def _check_same(found: Generated, expected: Generated) -> None:
    assert found.ids.tolist() == expected.ids.tolist(), "other tokens are generated"
    _check_close(found.scores, expected.scores)


class _Interrupt(LogitsProcessor):
    """Raises at the second token."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.steps += 1
        if self.steps > 1:
            raise KeyError("on purpose")
        return scores


# -- the laws


def check_off_is_vanilla(subject: MethodOnFamily) -> None:
    """After the block the model computes what it computed before, and nothing is left on it."""
    family, method, dtype = subject.family, subject.method, subject.dtype
    model, _ = small_models.shared_model(family, dtype)
    before = _logits(family, dtype)  # transformers adds hooks of its own in a model's first pass
    state = _state(model)
    try:
        _generate(family, method, subject.modes[0], dtype=dtype, logits_processor=[_Interrupt()])
    except KeyError:
        pass
    else:
        raise AssertionError("an error inside generate does not reach the caller")
    assert torch.equal(_logits(family, dtype), before), "after an exception the model's logits differ"
    with _active(family, method, dtype):
        inside = _logits(family, dtype)
        with _active(family, method, dtype):
            _logits(family, dtype)
        # Close and not equal: crops that have left the cache meanwhile are encoded again, in another batch.
        near = (1e-4, 1e-4) if dtype == torch.float32 else CLOSE[dtype]
        same = torch.allclose(_logits(family, dtype), inside, *near)
        assert same, "after an inner block the outer block's logits differ"
    assert torch.equal(_logits(family, dtype), before), "after the block the model's logits differ"
    assert _state(model) == state, "the block leaves hooks, attributes or a changed config behind"


def check_strength_0(subject: MethodOnFamily) -> None:
    """Turned off by its options, it is vanilla bit for bit."""
    for mode in subject.modes:
        off, vanilla = _generate(subject.family, subject.off, mode, dtype=subject.dtype), subject.vanilla(mode)
        assert torch.equal(off.ids, vanilla.ids), f"{mode}: other tokens are generated"
        assert torch.equal(off.scores, vanilla.scores), f"{mode}: scores differ"


def check_acts_and_reports(subject: MethodOnFamily) -> None:
    """In every mode the report tells of each row whether it was changed, and in at least one mode some are."""
    reasons = []
    for mode in subject.modes:
        acted, vanilla = subject.acted(mode), subject.vanilla(mode)
        assert acted.report is not None
        assert torch.isfinite(acted.logits).all(), f"{mode}: logits are not finite"
        if not acted.report.fired:
            reasons.append(f"{mode}: {acted.report.reason}")
            assert acted.report.reason, f"{mode}: it did not act, and the report gives no reason"
        for row, report in enumerate(acted.report.rows):
            own, expected = acted.of_row(row)[1], vanilla.of_row(row)[1]
            if subject.dtype == torch.float32:
                # A mixture of experts sums in another order when its neighbors change: the method did not do that.
                changed = not torch.allclose(own, expected, atol=1e-3)
            elif report.fired:  # what a method does may be as small as what bfloat16 rounds
                changed = not torch.equal(own, expected)
            else:  # the first step: a rounding may turn the next token into another
                changed = not torch.allclose(own[0], expected[0], *CLOSE[subject.dtype])
            assert changed == report.fired, f"{mode}, row {row}: changed is {changed}, but the report says: {report}"
    assert len(reasons) < len(subject.modes), (
        "it does not act on these small models; pass an object whose options let it act. " + "; ".join(reasons)
    )


def check_batch_is_its_rows(subject: MethodOnFamily) -> None:
    """Rows of unlike length and number of images are answered as if each were alone."""
    together = subject.acted()
    for row, own in enumerate(_images()):
        if not own and subject.method.needs_images:
            continue  # alone, it would be a call in which the method cannot act
        ids, scores = subject.run(row=row).of_row(0)
        expected_ids, expected_scores = together.of_row(row)
        if subject.acting_mode == "sampling":  # rows share the random numbers: only the first step is comparable
            _check_close(scores[0], expected_scores[0])
        else:
            assert ids == expected_ids, f"row {row}: other tokens are generated"
            _check_close(scores, expected_scores)


def check_text_only_rows(subject: MethodOnFamily) -> None:
    """A row without an image is left alone."""
    ids, scores = subject.acted().of_row(TEXT_ROW)
    expected_ids, expected_scores = subject.vanilla(subject.acting_mode).of_row(TEXT_ROW)
    # sums differ in their order where the method makes its neighbors longer
    if subject.dtype != torch.float32:  # the first step: a rounding may turn the next token into another
        _check_close(scores[0], expected_scores[0], subject.dtype)
        return
    assert ids == expected_ids, "other tokens are generated for the row without an image"
    torch.testing.assert_close(scores, expected_scores, rtol=1e-4, atol=1e-4)


def check_no_cache(subject: MethodOnFamily) -> None:
    """Reading the whole sequence again for every token gives the same."""
    _check_same(subject.run(use_cache=False), subject.acted())


def check_static_cache(subject: MethodOnFamily) -> None:
    """A cache of fixed length gives the same."""
    _check_same(subject.run(cache_implementation="static"), subject.acted())


def check_sampling(subject: MethodOnFamily) -> None:
    """Equal seeds give equal samples, and the first step is scored as in the other modes."""
    one, again = subject.acted("sampling"), subject.run("sampling")
    assert torch.equal(one.ids, again.ids), "the same seed gives other tokens"
    if "greedy" in subject.modes:
        _check_close(one.logits[0], subject.acted("greedy").logits[0], subject.dtype)


def check_beams(subject: MethodOnFamily) -> None:
    """Each beam is given the images of its own row: shown by the row with two images."""
    together, alone = subject.acted("beams"), subject.run("beams", row=TWO_IMAGES)
    ids, scores = alone.of_row(0)
    expected_ids, expected_scores = together.of_row(TWO_IMAGES)
    assert ids == expected_ids, "other tokens are generated"
    _check_close(scores, expected_scores)


def check_half_precision(subject: MethodOnFamily) -> None:
    """In float16 and bfloat16 it acts, stays finite, and is vanilla when it is turned off."""
    # One row and two tokens: half precision is slow on a CPU.
    for dtype in (torch.float16, torch.bfloat16):
        options: dict[str, Any] = {"row": TWO_IMAGES, "tokens": 2, "dtype": dtype}
        on = subject.run(**options)
        vanilla = _generate_once(subject.family, None, subject.acting_mode, **options)
        assert torch.isfinite(on.logits).all(), f"{dtype}: logits are not finite"
        assert not torch.equal(on.scores, vanilla.scores), f"{dtype}: it changes nothing"
        if subject.off is not None:
            off = _generate(subject.family, subject.off, subject.acting_mode, **options)
            assert torch.equal(off.scores, vanilla.scores), f"{dtype}: turned off, it changes something"


def check_refusals(subject: MethodOnFamily) -> None:
    """A mode that is not declared is refused by name before a token is generated."""
    model, _ = small_models.shared_model(subject.family)
    passes: list[int] = []
    handle = model.register_forward_pre_hook(lambda *_: passes.append(1))
    try:
        for mode in MODES.keys() - set(subject.modes):
            try:
                subject.run(mode)
            except ValueError as error:
                told = str(error)
                assert subject.method.name in told and mode in told, f"{mode} is refused without its name: {told}"
            else:
                raise AssertionError(f"{mode} is not declared in `decoding`, but is not refused")
            assert not passes, f"{mode} is refused after a forward pass"
    finally:
        handle.remove()


def check_round_trips(subject: MethodOnFamily) -> None:
    """JSON and label give back an equal method."""
    method = subject.method
    assert hash(method) == hash(dataclasses.replace(method)), "equal methods have different hashes"
    found = Method.from_json(json.loads(json.dumps(method.to_json())))
    assert found == method, f"from_json(to_json()) is {found}"
    spelled = parse_method(method.label)
    assert spelled == method, f"its label {method.label!r} is read as {spelled}"


def check_description(subject: MethodOnFamily) -> None:
    """The class says its name, what it does, where it acts and how it decodes; each option is explained."""
    kind: Any = type(subject.method)
    assert kind.name == kind.name.lower() and not set(kind.name) & set(" :,+()@="), f"name = {kind.name!r}"
    for fact in ("name", "summary", "site", "cost"):
        assert getattr(subject.method, fact), f"the class variable {fact} is empty"
    unknown = set(subject.method.decoding) - set(DECODING)
    assert subject.method.decoding and not unknown, f"decoding = {subject.method.decoding}: choose of {DECODING}"
    for field in dataclasses.fields(kind):
        assert field.metadata.get("help"), f"{field.name} is not explained: use option(default, help)"


def _has_off(subject: MethodOnFamily) -> bool:
    return subject.off is not None


def _needs_images(subject: MethodOnFamily) -> bool:
    """Whether all its parts do: some part of a composition may act on text."""
    method = subject.method
    parts = method.methods if isinstance(method, Composed) else (method,)
    return all(part.needs_images for part in parts)


def _declares(mode: str) -> Any:
    return lambda subject: mode in subject.modes


METHOD_LAWS: list[Law[MethodOnFamily]] = [
    Law("it describes itself", check_description),
    Law("JSON and label give back an equal method", check_round_trips),
    Law("decoding modes that are not declared are refused", check_refusals, lambda s: len(s.modes) < len(MODES)),
    Law("it acts, and reports what it did", check_acts_and_reports),
    Law("off is vanilla, also after an exception and nested", check_off_is_vanilla),
    Law("strength 0 is vanilla bit for bit", check_strength_0, _has_off),
    Law("a batch is its rows", check_batch_is_its_rows),
    Law("a row without an image is left alone", check_text_only_rows, _needs_images),
    Law("the cache changes nothing", check_no_cache),
    Law("a static cache changes nothing", check_static_cache),
    Law("sampling follows its seed", check_sampling, _declares("sampling")),
    Law("beams follow their rows", check_beams, _declares("beams")),
    Law("half precision acts and can be turned off", check_half_precision),
]

# Laws that say nothing more in bfloat16, and why
_NO_DTYPE = "it does not depend on the dtype"
_SHAPES = "it compares passes of unlike shapes, which bfloat16 rounds differently: tokens and thresholds may tip over"
FLOAT32_ONLY = {
    "it describes itself": _NO_DTYPE,
    "JSON and label give back an equal method": _NO_DTYPE,
    "decoding modes that are not declared are refused": _NO_DTYPE,
    "a batch is its rows": _SHAPES,
    "the cache changes nothing": _SHAPES,
    "a static cache changes nothing": _SHAPES,
    "beams follow their rows": _SHAPES,
    "half precision acts and can be turned off": "it chooses its dtypes itself",
}


def list_laws(subject: MethodOnFamily) -> list[Law[MethodOnFamily]]:
    """The laws that say something about a subject in its dtype."""
    full = subject.dtype == torch.float32
    return [law for law in METHOD_LAWS if (full or law.name not in FLOAT32_ONLY) and law.applies(subject)]


@contextmanager
def register_for_now(method: Method) -> Iterator[None]:
    """The method's class, and those of the methods inside it, under their names in the registry."""
    with ExitStack() as stack:
        waiting = [method]
        while waiting:
            one = waiting.pop()
            values = [getattr(one, f.name) for f in dataclasses.fields(one)]
            inside = [v for value in values for v in (value if isinstance(value, tuple) else (value,))]
            waiting += [v for v in inside if isinstance(v, Method)]
            if one.name and one.name != "composed" and one.name not in METHODS:
                METHODS[one.name] = type(one)
                stack.callback(METHODS.pop, one.name)
        yield

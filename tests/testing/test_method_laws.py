"""check_method: what is right passes, and what is wrong is told by the law it breaks."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from airvlm.methods import METHODS, CropBlend, Method, OtherImage, option
from airvlm.methods.templates import FeedForwardMethod, LogitsMethod, VisualTokenMethod
from airvlm.runtime.intervention import Context, ForwardPass, Intervention
from airvlm.testing import check_method, small_models
from airvlm.testing.method_laws import FAMILIES, METHOD_LAWS

ONE = ["llava"]


@dataclass(frozen=True)
class Steer(VisualTokenMethod):
    """Adds a direction to the visual tokens."""

    name: ClassVar[str] = "test-steer"
    summary: ClassVar[str] = "adds a direction"

    strength: float = option(0.8, "norm of the direction over the token's", low=0, off=0)

    def visual_tokens(self, z: Tensor, context: Context) -> Tensor:
        return z + self.strength * z.norm(dim=-1, keepdim=True) * torch.ones_like(z) / z.shape[-1] ** 0.5


# -- what is right


def test_a_right_method_passes_every_law_on_every_default_family(capsys: pytest.CaptureFixture[str]) -> None:
    held = check_method(Steer(), verbose=True)
    assert tuple(held) == FAMILIES
    names = [law.name for law in METHOD_LAWS if "not declared" not in law.name]  # it declares all modes
    assert all(laws == names for laws in held.values())
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(FAMILIES) * len(names)
    assert printed[0] == f"test-steer on llava: {names[0]}"
    assert "test-steer" not in METHODS, "the method is registered while it is checked only"


def test_a_class_or_a_path_is_checked_with_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "own", dict(METHODS.own))
    assert check_method(Steer, ONE) == check_method(f"{__name__}:Steer", ONE)
    with pytest.raises(ValueError, match="vanilla is the model as it is"):
        check_method("vanilla")
    with pytest.raises(TypeError, match="a method is an object"):
        check_method(3)  # type: ignore[arg-type]


@dataclass(frozen=True)
class GreedyOnly(Steer):
    """Declares one mode."""

    name: ClassVar[str] = "test-greedy-only"
    decoding: ClassVar[tuple[str, ...]] = ("greedy",)


def test_modes_that_are_not_declared_must_be_refused() -> None:
    (held,) = check_method(GreedyOnly(), ONE).values()
    assert "decoding modes that are not declared are refused" in held
    assert "beams follow their rows" not in held and "sampling follows its seed" not in held


def test_the_random_numbers_of_the_caller_are_left_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    check_method(Steer(), ONE)
    assert torch.equal(torch.get_rng_state(), state)


# -- what is wrong


@dataclass(frozen=True)
class DoesNothing(Steer):
    """Returns the tokens as they are."""

    name: ClassVar[str] = "test-nothing"

    def visual_tokens(self, z: Tensor, context: Context) -> Tensor:
        return z


@dataclass(frozen=True)
class MixesRows(Steer):
    """Uses the mean over all images of the batch."""

    name: ClassVar[str] = "test-mixes-rows"

    def visual_tokens(self, z: Tensor, context: Context) -> Tensor:
        return 0.5 * z + 0.5 * z.mean(0, keepdim=True)


@dataclass(frozen=True)
class NotOff(Steer):
    """Acts at strength 0 too."""

    name: ClassVar[str] = "test-not-off"
    strength: float = option(0.5, "says that it is off at 0.25, and is not", low=0)

    def visual_tokens(self, z: Tensor, context: Context) -> Tensor:
        return (1 + self.strength) * z


@dataclass(frozen=True)
class Overflows(FeedForwardMethod):
    """Fits into float32 alone."""

    name: ClassVar[str] = "test-overflows"
    summary: ClassVar[str] = "multiplies by a large number"
    factor: float = option(1e6, "of the output")

    def feed_forward(self, x: Tensor, y: Tensor, layer: int, context: Context) -> Tensor:
        return self.factor * y if layer == 3 else y


@dataclass(frozen=True)
class Spelling(Steer):
    """Has an option that its label cannot hold."""

    name: ClassVar[str] = "test-spelling"
    word: str = option("a", "a word")


@dataclass(frozen=True)
class Unexplained(Steer):
    """Has an option without help."""

    name: ClassVar[str] = "test-unexplained"
    more: float = 1.0


class _Custom(Intervention):
    changes_logits = acts_in_decode = True

    def open(self, stack: ExitStack) -> None:
        if self.method.name == "test-leaves-a-hook":
            self.context.parts.norm.register_forward_hook(lambda *_: None)

    def logits(self, fp: ForwardPass, logits: Tensor) -> Tensor | None:
        if self.method.name == "test-prefill-only" and not fp.is_prefill:
            return None
        if self.has_image is None:
            return None
        rows = torch.ones_like(self.has_image) if self.method.name == "test-text-too" else self.has_image
        if self.method.name != "test-silent":
            self.stats.count(rows.long())
        return torch.where(rows.repeat_interleave(fp.beams)[:, None, None], 0.5 * logits, logits)


@dataclass(frozen=True)
class Custom(Method):
    """Halves the logits."""

    name: ClassVar[str] = "test-custom"
    summary: ClassVar[str] = "halves the logits"
    site: ClassVar[str] = "logits"

    def start(self, context: Context) -> Intervention:
        return _Custom(self, context)


@dataclass(frozen=True)
class LeavesAHook(Custom):
    """Leaves a hook behind."""

    name: ClassVar[str] = "test-leaves-a-hook"


@dataclass(frozen=True)
class TextToo(Custom):
    """Changes rows without an image."""

    name: ClassVar[str] = "test-text-too"


@dataclass(frozen=True)
class Silent(Custom):
    """Does not count what it changes."""

    name: ClassVar[str] = "test-silent"


@dataclass(frozen=True)
class PrefillOnly(Custom):
    """Changes the logits of prefills, which are all passes without a cache."""

    name: ClassVar[str] = "test-prefill-only"


@dataclass(frozen=True)
class Random(LogitsMethod):
    """Adds other noise each time."""

    name: ClassVar[str] = "test-random"
    summary: ClassVar[str] = "adds noise"

    def next_logits(self, logits: Tensor, fp: ForwardPass, context: Context) -> Tensor:
        self.generator.seed()
        return logits + torch.randn(logits.shape, generator=self.generator)

    generator: ClassVar[torch.Generator] = torch.Generator()


@pytest.mark.parametrize(
    ("method", "law", "told"),
    [
        (DoesNothing(), "it acts, and reports what it did", "it does not act on these small models"),
        (MixesRows(), "a batch is its rows", "row 0: other tokens are generated|not close"),
        (Overflows(), "half precision acts and can be turned off", "not finite"),
        (Spelling(word="3"), "JSON and label give back an equal method", "word = 3: give a string"),
        (Unexplained(), "it describes itself", "more is not explained: use option"),
        (LeavesAHook(), "off is vanilla, also after an exception and nested", "leaves hooks"),
        (TextToo(), "a row without an image is left alone", "tokens are generated|not close"),
        (Silent(), "it acts, and reports what it did", "changed is True, but the report says"),
        (PrefillOnly(), "the cache changes nothing", "tokens are generated|not close"),
        (Random(), "off is vanilla, also after an exception and nested", "the outer block's logits differ"),
        (OtherImage(CropBlend(num_crops=3)), "a batch is its rows", "ValueError: other-image uses another image's"),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else None,
)
def test_a_wrong_method_is_told_by_the_law_and_the_family(method: Method, law: str, told: str) -> None:
    with pytest.raises(AssertionError, match=told) as caught:
        check_method(method, ONE)
    label = method.label
    assert str(caught.value).startswith(f"{label} on llava breaks the law {law!r}: ")
    clean(method)


def test_off_can_be_given_where_no_option_says_it() -> None:
    with pytest.raises(AssertionError, match="breaks the law 'strength 0 is vanilla bit for bit'"):
        check_method(NotOff(), ONE, off=NotOff(0.25))
    assert "strength 0 is vanilla bit for bit" in check_method(NotOff(), ONE, off=NotOff(0.0))["llava"]
    assert "strength 0 is vanilla bit for bit" not in check_method(NotOff(), ONE)["llava"]


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(AssertionError, match="no small model of 'nowhere' is known"):
        check_method(Steer(), ["nowhere"])


def clean(method: Any) -> None:
    """The shared model must be as it was for other tests."""
    if method.name == "test-leaves-a-hook":
        norm = small_models.shared_model("llava")[0].get_decoder().norm
        norm._forward_hooks.clear()

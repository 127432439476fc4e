"""Lens, steering, heads, re-asking and loops: a method of a few lines of each, against what it should compute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from airvlm.methods import Composed, CropBlend
from airvlm.methods.base import option
from airvlm.methods.templates import HeadMethod, LensMethod, LoopMethod, ReAskMethod, SteeringMethod
from airvlm.methods.templates.loop import LoopIntervention
from airvlm.methods.templates.reask import RowPrompt
from airvlm.methods.templates.steering import Site
from airvlm.models.parts import ModelParts
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention
from airvlm.runtime.probe import run_probe
from airvlm.runtime.streams import remove_images
from airvlm.testing import check_method, small_models

FAMILIES = ["llava", "qwen2_5_vl", "gemma3"]
GREEDY = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}


def image_batch(processor: Any) -> Any:
    return small_models.build_inputs(processor, [row for row in small_models.sample_rows() if row[1]])


# -- lens


@dataclass(frozen=True)
class Early(LensMethod):
    """Adds the logits of two early layers."""

    name: ClassVar[str] = "test-early"
    summary: ClassVar[str] = "adds early layers"
    weight: float = option(0.5, "of the layers", low=0, off=0)

    def lens_layers(self, depth: int) -> Sequence[int]:
        return (0, 1)

    def next_logits(self, l: Tensor, lens: Tensor, fp: ForwardPass) -> Tensor:
        return l + self.weight * lens.mean(0)


@dataclass(frozen=True)
class EarlyRaw(Early):
    """The same without the final norm."""

    name: ClassVar[str] = "test-early-raw"
    normed: ClassVar[bool] = False


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [Early, EarlyRaw])
def test_a_lens_reads_the_outputs_of_layers(family: str, kind: type[Early]) -> None:
    model, processor = small_models.shared_model(family)
    batch = image_batch(processor)
    parts = ModelParts.of(model)
    with torch.no_grad():
        plain = model(**batch, output_hidden_states=True)
        states = plain.hidden_states[1:3]  # outputs of layers 0 and 1
        lens = torch.stack([parts.head(parts.norm(h) if kind.normed else h) for h in states])
        with kind()(model) as run:
            found = model(**batch).logits
    real = batch["attention_mask"].bool()
    expected = plain.logits + 0.5 * lens.mean(0)
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-4)
    assert run.report.layers == (0, 1)
    flips = (found.argmax(-1) != plain.logits.argmax(-1)).sum(-1).tolist()
    assert sum(flips) and run.report.extra == {"likeliest_changed": sum(flips)}
    assert [row.extra["likeliest_changed"] for row in run.report.rows] == flips


# -- steering


@dataclass(frozen=True)
class Towards(SteeringMethod):
    """Adds what the image adds to the state at the end of the prompt."""

    name: ClassVar[str] = "test-towards"
    summary: ClassVar[str] = "adds a probed direction"
    site_: str = option("residual", "where it is written")
    strength: float = option(0.5, "of the direction", low=0, off=0)

    @property
    def writes(self) -> Site:  # type: ignore[override]
        return self.site_  # type: ignore[return-value]

    def span(self, depth: int) -> Sequence[int]:
        return (1,)

    def probe_directions(self, context: Context, call: GenerateCall) -> Mapping[int, Tensor]:
        shown = run_probe(context.parts, call.arguments, sites={"residual": [1]}).states["residual", 1]
        blind = run_probe(
            context.parts, call.arguments, sites={"residual": [1]}, edit_ids=remove_images(context.parts)
        ).states["residual", 1]
        return {1: shown - blind}

    def steer(self, y: Tensor, v: Tensor, layer: int, fp: ForwardPass) -> Tensor:
        return y + self.strength * v


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("site", ["residual", "ffn", "attention"])
def test_steering_adds_the_probed_direction_at_its_site(family: str, site: str) -> None:
    model, processor = small_models.shared_model(family)
    row = next(row for row in small_models.sample_rows() if row[1])
    batch = small_models.build_inputs(processor, [row])
    # without the image tokens, and without the marks around them where the family's config names them
    removed = [small_models.IMAGE, *([] if family == "llava" else [small_models.START, small_models.END])]
    ids = [token for token in batch["input_ids"][0].tolist() if token not in removed]
    blind = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if "token_type_ids" in batch:
        blind["token_type_ids"] = torch.zeros(1, len(ids), dtype=torch.long)
    parts = ModelParts.of(model)

    def state(inputs: Any) -> Tensor:  # the output of layer 1 at the last position
        out: Tensor = model(**inputs, output_hidden_states=True).hidden_states[2][:, -1]
        return out

    def add(module: Any, args: Any, out: Any) -> Any:
        if isinstance(out, tuple):
            return (out[0] + 0.5 * v, *out[1:])
        return out + 0.5 * v

    target = {"residual": parts.layers[1], "ffn": parts.ffns[1], "attention": parts.attentions[1]}[site]
    with torch.no_grad():
        v = (state(batch) - state(blind))[:, None]
        handle = target.register_forward_hook(add)
        expected = model(**batch).logits
        handle.remove()
        with Towards(site)(model) as run:
            found = model(**batch).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert run.report.fired and run.report.layers == (1,)


# -- heads


@dataclass(frozen=True)
class Quiet(HeadMethod):
    """Scales each head by one plus its share of attention on the image."""

    name: ClassVar[str] = "test-heads"
    summary: ClassVar[str] = "scales heads"
    strength: float = option(0.5, "of the change", low=0, off=0)

    def span(self, depth: int) -> Sequence[int]:
        return (1, 2)

    def head_factors(self, image_share: Tensor, layer: int) -> Tensor:
        return 1 + self.strength * image_share


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_are_scaled_before_the_output_projection(family: str) -> None:
    model, processor = small_models.build(family)
    batch = image_batch(processor)
    parts = ModelParts.of(model)
    with Quiet()(model) as run, torch.no_grad():
        found = model(**batch).logits
    model.set_attn_implementation("eager")
    visual = batch["input_ids"] == parts.image_token_id

    def scale(share: Tensor) -> Any:  # (B, H)
        def hook(module: Any, args: Any) -> Any:
            o = args[0].clone()
            last = o[:, -1].view(len(o), parts.num_heads(0), -1)
            o[:, -1] = (last * (1 + 0.5 * share)[..., None]).flatten(1)
            return (o,)

        return hook

    handles = []
    with torch.no_grad():
        for layer in (1, 2):  # the second layer's attention depends on what was changed in the first
            p = model(**batch, output_attentions=True).attentions[layer][:, :, -1]  # (B, H, T)
            hook = scale((p * visual[:, None]).sum(-1))
            handles.append(parts.output_projections[layer].register_forward_pre_hook(hook))
        expected = model(**batch).logits
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(found[:, -1], expected[:, -1], rtol=1e-3, atol=1e-3)
    assert run.report.layers == (1, 2)


# -- re-asking


@dataclass(frozen=True)
class Twice(ReAskMethod):
    """Shows a crop of the first image as well."""

    name: ClassVar[str] = "test-twice"
    summary: ClassVar[str] = "adds a crop"
    box: tuple[int, int, int, int] = option((4, 4, 28, 28), "of the crop")

    def reask(self, rows: Sequence[RowPrompt], call: GenerateCall, context: Context) -> list[RowPrompt | None]:
        return [more_of(row, self.box) if row.images else None for row in rows]


def more_of(row: RowPrompt, box: tuple[int, int, int, int]) -> RowPrompt:
    crop = row.images[0].crop(box)
    return RowPrompt((*row.images, crop), row.prompt.replace("<image>", "<image> <image>", 1), {"box": box})


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3", "smolvlm"])
def test_a_re_ask_is_the_call_with_the_new_images_and_prompt(family: str) -> None:
    model, processor = small_models.shared_model(family)
    rows = [row for row in small_models.sample_rows() if len(row[1]) < 2]
    batch = small_models.build_inputs(processor, rows)
    prompts = [text for text, _ in rows] if family in ("smolvlm", "gemma3") else None
    with Twice()(model, processor, images=[list(images) for _, images in rows], prompts=prompts) as run:
        found = model.generate(**batch, **GREEDY)
    asked = [
        more_of(RowPrompt(tuple(images), text), (4, 4, 28, 28)) if images else RowPrompt((), text)
        for text, images in rows
    ]
    direct = small_models.build_inputs(processor, [(row.prompt, list(row.images)) for row in asked])
    expected = model.generate(**direct, **GREEDY)
    length = batch["input_ids"].shape[1]
    assert torch.equal(found[:, :length], batch["input_ids"])  # the caller's own prompt stands in front
    assert torch.equal(found[:, length:], expected[:, direct["input_ids"].shape[1] :])
    assert [row.fired for row in run.report.rows] == [bool(images) for _, images in rows]
    facts = [{"box": (4, 4, 28, 28)} if images else {} for _, images in rows]
    assert [row.extra for row in run.report.rows] == facts
    shown = [one for one in facts if one]
    assert run.report.extra == (shown[0] if len(shown) == 1 else {"rows": shown})


# -- loops


@dataclass(frozen=True)
class Worst(LoopMethod):
    """Takes the second likeliest token at every step."""

    name: ClassVar[str] = "test-second"
    summary: ClassVar[str] = "takes the second likeliest token"
    decoding: ClassVar[tuple[str, ...]] = ("greedy",)
    needs_images: ClassVar[bool] = False

    def start(self, context: Context) -> Intervention:
        return _Second(self, context)


class _Second(LoopIntervention):
    def decode(
        self, model: Any, input_ids: Tensor, logits_processor: Any, stopping_criteria: Any, config: Any, kwargs: Any
    ) -> Tensor:
        mask = kwargs["attention_mask"]
        encoded = {k: v for k, v in kwargs.items() if k in ("pixel_values", "mm_encoder_outputs")}
        for _ in range(config.max_new_tokens):
            out = model(input_ids=input_ids, attention_mask=mask, use_cache=False, **encoded)
            second = out.logits[:, -1].topk(2).indices[:, 1:]
            input_ids, mask = torch.cat([input_ids, second], 1), torch.cat([mask, torch.ones_like(second)], 1)
            self.stats.count(torch.ones(len(second)))
        return input_ids


def test_a_loop_of_its_own_decides_what_is_said() -> None:
    model, processor = small_models.shared_model("llava")
    batch = image_batch(processor)
    with Worst()(model) as run:
        found = model.generate(**batch, **GREEDY)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        for _ in range(4):
            logits = model(input_ids=ids, attention_mask=mask, pixel_values=batch["pixel_values"]).logits[:, -1]
            token = logits.topk(2).indices[:, 1:]
            ids, mask = torch.cat([ids, token], 1), torch.cat([mask, torch.ones_like(token)], 1)
    assert torch.equal(found, ids)
    assert run.report.fired
    with pytest.raises(ValueError, match="leave custom_generate out"), Worst()(model):
        model.generate(**batch, **GREEDY, custom_generate=lambda *a, **k: None)


# -- compositions


def test_two_loops_and_two_re_asks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"test-second and test-second cannot be combined.*loop"):
        Composed(Worst(), Worst())
    with pytest.raises(ValueError, match=r"test-twice and test-twice cannot be combined.*re-ask"):
        Composed(Twice(), Twice())
    with pytest.raises(ValueError, match="cannot be combined with one that uses crops"):
        Composed(Twice(), CropBlend())


@pytest.mark.parametrize("method", [Early(), Towards(), Quiet()], ids=lambda m: m.name)
def test_the_laws_hold(method: Any) -> None:
    check_method(method, ["llava", "qwen2_5_vl"])

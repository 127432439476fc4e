"""ContrastiveMethod: every kind of stream against plain passes, with padding, caches and beams."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.templates import ContrastiveMethod
from airvlm.methods.templates.attention import AttentionIntervention
from airvlm.models.parts import ModelParts
from airvlm.runtime.attention import AttentionChange
from airvlm.runtime.intervention import Context, ForwardPass
from airvlm.runtime.streams import Stream, edit_prompts, remove_images
from airvlm.testing import small_models

TOKENS = 4
WORD = 20  # a token that the other prompts begin with


def first_ids(ids: list[int]) -> list[int]:
    """Another prompt, longer than the first, with the image kept."""
    return [ids[0], WORD, WORD + 1, *ids[1:]]


class _HideVisual(AttentionIntervention):
    """Hides the image's keys from the second layer on."""

    span = range(1, small_models.LAYERS)

    def attention_of(self, layer: int) -> AttentionChange | None:
        assert self.visual_keys is not None
        return AttentionChange(self.total, hidden_keys=self.visual_keys.bool())


@dataclass(frozen=True)
class Contrast(ContrastiveMethod):
    """2 l - l' with a stream of one kind."""

    name: ClassVar[str] = "test-contrast"
    kind: str = option("images", "what the stream sees")
    beta: float = option(0.0, "cut-off", low=0, high=1)

    def streams(self, context: Context) -> Sequence[Stream]:
        kinds: dict[str, dict[str, Any]] = {
            "images": {"images": lambda images: {**images, "pixel_values": images["pixel_values"] * 0.5}},
            "no image": {"edit_ids": remove_images(context.parts)},
            "another prompt": {"edit_ids": first_ids},
            "embeddings": {"edit_embeds": lambda x, visual: torch.where(visual[..., None], x.flip(-1), x)},
            "attention": {"attention": _HideVisual(self, context)},
        }
        return [Stream(self.name, context.parts, **kinds[self.kind])]

    def weights(self, l: Tensor, others: Sequence[Tensor], fp: ForwardPass) -> Sequence[float]:
        return 2.0, -1.0


KINDS = ["images", "no image", "another prompt", "embeddings", "attention"]
OPTIONS = [{}, {"use_cache": False}, {"cache_implementation": "static"}, {"num_beams": 2}]


def generate(model: Any, batch: Any, **options: Any) -> Any:
    fixed = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    return model.generate(**batch, **{**fixed, **options}, return_dict_in_generate=True, output_logits=True)


def plain(model: Any, batch: dict[str, Any], answers: Tensor) -> Tensor:
    """Logits (B, TOKENS, V) of the answers after the prompts of `batch`, in one pass over both."""
    ids = torch.cat([batch["input_ids"], answers], 1)
    more = {k: v for k, v in batch.items() if k not in ("input_ids", "attention_mask")}
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in more:
            more[name] = (ids == small_models.IMAGE).long()
    mask = torch.cat([batch["attention_mask"], torch.ones_like(answers)], 1)
    with torch.no_grad():
        logits: Tensor = model(input_ids=ids, attention_mask=mask, **more).logits
    return logits[:, -TOKENS - 1 : -1]


def other_plain(model: Any, batch: Any, answers: Tensor, kind: str) -> Tensor:
    """The stream's logits, evaluated directly."""
    parts = ModelParts.of(model)
    if kind == "images":
        return plain(model, {**batch, "pixel_values": batch["pixel_values"] * 0.5}, answers)
    if kind in ("no image", "another prompt"):
        edit = remove_images(parts) if kind == "no image" else first_ids
        edited = edit_prompts(parts, dict(batch), edit)
        del edited["common_suffix"]
        return plain(model, edited, answers)
    visual = (batch["input_ids"] == parts.image_token_id)[..., None]  # (B, L, 1)

    def embeds(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        x = kwargs["inputs_embeds"]
        new = torch.where(visual, x[:, : visual.shape[1]].flip(-1), x[:, : visual.shape[1]])
        return args, {**kwargs, "inputs_embeds": torch.cat([new, x[:, visual.shape[1] :]], 1)}

    def hide(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        mask = kwargs["attention_mask"]
        hidden = torch.nn.functional.pad(visual[:, None, :, 0], (0, TOKENS))[:, :, None]
        low = torch.finfo(torch.float32).min
        return args, {
            **kwargs,
            "attention_mask": mask & ~hidden if mask.dtype == torch.bool else mask.masked_fill(hidden, low),
        }

    targets = [parts.decoder] if kind == "embeddings" else [layer.self_attn for layer in list(parts.layers)[1:]]
    handles = [
        target.register_forward_pre_hook(embeds if kind == "embeddings" else hide, with_kwargs=True)
        for target in targets
    ]
    try:
        return plain(model, batch, answers)
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3", "smolvlm"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_a_plain_pass_of_its_own_inputs(family: str, kind: str) -> None:
    model, processor = small_models.shared_model(family)
    rows = [row for row in small_models.sample_rows() if row[1]]
    batch = small_models.build_inputs(processor, rows)
    with Contrast(kind)(model) as run:
        out = generate(model, batch)
    answers = out.sequences[:, batch["input_ids"].shape[1] :]
    main, other = plain(model, batch, answers), other_plain(model, batch, answers, kind)
    assert (main - other).abs().max() > 1e-3
    torch.testing.assert_close(torch.stack(out.logits, 1), 2 * main - other, rtol=1e-3, atol=5e-3)
    assert run.report.fired and run.report.passes == TOKENS


@pytest.mark.parametrize("family", ["llava", pytest.param("qwen2_5_vl", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: next(iter(o), "greedy"))
def test_rows_of_a_batch_are_answered_as_alone(family: str, kind: str, options: dict[str, Any]) -> None:
    model, processor = small_models.shared_model(family)
    rows = small_models.sample_rows()
    beams = options.get("num_beams", 1)
    with Contrast(kind)(model):
        together = torch.stack(generate(model, small_models.build_inputs(processor, rows), **options).logits, 1)
        for r, row in enumerate(rows):
            alone = generate(model, small_models.build_inputs(processor, [row]), **options)
            torch.testing.assert_close(
                torch.stack(alone.logits, 1), together[r * beams : (r + 1) * beams], rtol=1e-3, atol=5e-3
            )


def test_the_report_tells_what_the_cut_off_alone_explains() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:1])
    with Contrast(beta=0.3)(model) as run:
        out = generate(model, batch)
    answers = out.sequences[:, batch["input_ids"].shape[1] :]
    main, other = plain(model, batch, answers).double().numpy(), other_plain(model, batch, answers, "images").numpy()
    p = np.exp(main - main.max(-1, keepdims=True))
    kept = p >= 0.3
    p /= p.sum(-1, keepdims=True)
    new = np.where(kept, 2 * main - other, -np.inf)
    q = np.exp(new - new.max(-1, keepdims=True))
    q /= q.sum(-1, keepdims=True)
    moved = 0.5 * np.abs(q - p).sum()
    extra = run.report.extra
    assert extra["likeliest_changed"] == int((q.argmax(-1) != p.argmax(-1)).sum())
    assert extra["cut_off_share"] == pytest.approx(min(1.0, (p * ~kept).sum() / moved), abs=0.01)


def test_two_contrasts_at_once_follow_beams() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, [row for row in small_models.sample_rows() if row[1]])
    from airvlm.methods import Composed

    both = Composed(Contrast("no image"), Contrast("attention"))
    with both(model):
        cached, fresh = (generate(model, batch, num_beams=3, use_cache=use) for use in (True, False))
    assert torch.equal(cached.sequences, fresh.sequences)


@torch.no_grad()
def test_of_a_plain_pass_only_text_that_both_streams_end_with_is_contrasted() -> None:
    model, processor = small_models.shared_model("llava")
    rows = small_models.sample_rows()
    batch = small_models.build_inputs(processor, [rows[0], rows[3]])
    parts = ModelParts.of(model)
    edited = edit_prompts(parts, dict(batch), remove_images(parts))
    shared = edited.pop("common_suffix").tolist()
    main, other = model(**batch).logits, model(**edited).logits
    with Contrast("no image")(model):
        found = model(**batch).logits
    assert found.shape == main.shape and other.shape[1] < main.shape[1]
    for r, count in enumerate(shared):
        real = batch["attention_mask"][r, :-count].bool()
        assert 0 < count < len(other[r]) and torch.equal(found[r, :-count][real], main[r, :-count][real])
        expected = 2 * main[r, -count:] - other[r, -count:]
        torch.testing.assert_close(found[r, -count:], expected, rtol=1e-3, atol=5e-3)


def test_each_row_and_position_has_its_own_cut_off() -> None:
    model, processor = small_models.shared_model("llava")
    rows = small_models.sample_rows()
    batch = small_models.build_inputs(processor, [rows[0], rows[3]])
    with Contrast(beta=0.3)(model):
        out = generate(model, batch)
    main = plain(model, batch, out.sequences[:, batch["input_ids"].shape[1] :])
    ratio = (main - main.amax(-1, keepdim=True)).exp()
    clear = (ratio - 0.3).abs() > 1e-3
    removed = torch.stack(out.logits, 1) == torch.finfo(torch.float32).min
    assert torch.equal(removed[clear], (ratio < 0.3)[clear])


def test_a_prompt_with_another_end_is_contrasted_in_every_step() -> None:
    model, processor = small_models.shared_model("llava")
    parts = ModelParts.of(model)
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:1])

    def edit(ids: list[int]) -> list[int]:
        return [*ids[:-1], WORD]

    class Ending(Contrast):
        def streams(self, context: Context) -> Sequence[Stream]:
            return [Stream(self.name, context.parts, edit_ids=edit)]

    with Ending()(model):
        out = generate(model, batch)
    answers = out.sequences[:, batch["input_ids"].shape[1] :]
    edited = edit_prompts(parts, dict(batch), edit)
    assert edited.pop("common_suffix").tolist() == [0]
    main, other = plain(model, batch, answers), plain(model, edited, answers)
    torch.testing.assert_close(torch.stack(out.logits, 1), 2 * main - other, rtol=1e-3, atol=5e-3)

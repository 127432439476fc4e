"""Small models evaluated directly: plain passes over finished sequences, and LLaVA's decoder written out.

Nothing of airvlm computes what is returned here, so that a method can be compared with its formula.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from airvlm.methods.base import Method
from airvlm.testing import small_models

__all__ = ["IMAGE", "TOKENS", "Written", "answer", "check_close", "pass_over", "row_inputs"]

IMAGE = small_models.IMAGE
TOKENS = 5
TYPES = ("mm_token_type_ids", "token_type_ids")
Edit = Callable[[int, Tensor], Tensor]  # layer, value -> value


def row_inputs(family: str = "llava", row: int = 0) -> Any:
    """The inputs of one sample row: 0 and 3 have one image, 1 none, 2 two."""
    _, processor = small_models.shared_model(family)
    return small_models.build_inputs(processor, small_models.sample_rows()[row : row + 1])


def answer(method: Method | None, family: str = "llava", row: int = 0, **options: Any) -> tuple[Tensor, Tensor, Any]:
    """Token ids (L,) of a prompt and its answer, the logits of each answered token (TOKENS, V), and the report."""
    model, processor = small_models.shared_model(family)
    batch = row_inputs(family, row)
    images = [list(small_models.sample_rows()[row][1])]
    options = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, **options}
    details = {"return_dict_in_generate": True, "output_logits": True}
    if method is None:
        out, report = model.generate(**batch, **options, **details), None
    else:
        with method(model, processor, images=images) as session:
            out = model.generate(**batch, **options, **details)
        report = session.report
    return out.sequences[0], torch.stack(out.logits)[:, 0], report


@torch.no_grad()
def pass_over(ids: Sequence[int] | Tensor, family: str = "llava", row: int = 0, **changed: Any) -> Tensor:
    """Logits (L, V) of a plain pass over a prompt and its answer; without image tokens in it, without the image."""
    model, _ = small_models.shared_model(family)
    ids = torch.as_tensor(ids)[None]
    batch = row_inputs(family, row)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs |= {name: (ids == IMAGE).long() for name in TYPES if name in batch}
    if family == "paligemma":
        inputs["token_type_ids"][:, -TOKENS:] = 1  # the answer is causal, the prompt is not
    if bool((ids == IMAGE).any()):
        inputs |= {k: v for k, v in batch.items() if k not in ("input_ids", "attention_mask", *TYPES)} | changed
    out: Tensor = model(**inputs).logits[0]
    return out


def check_close(found: Tensor, expected: Tensor) -> None:
    """Equal up to rounding; removed tokens (the lowest value) must be the same."""
    low = torch.finfo(torch.float32).min / 2
    assert torch.equal(found < low, expected < low), "other tokens are removed"
    torch.testing.assert_close(found.clamp_min(low), expected.clamp_min(low), rtol=1e-3, atol=2e-3)


class Written:
    """The decoder of the small LLaVA written out for one row, with a place for every edit.

    Args:
        row: of the sample rows.
        scores: (layer, scores (H, L, L) before the mask) -> new ones.
        probabilities: (layer, attention (H, L, L)) -> new one.
        heads: (layer, outputs (L, H, D) before the output projection) -> new ones.
        visible: (layer, attention of that layer's predecessor or None) -> keys (L, L) that may be seen, or None.
        embeds: the decoder's input (L, d) -> another.
    """

    def __init__(
        self,
        row: int = 0,
        *,
        scores: Edit | None = None,
        probabilities: Edit | None = None,
        heads: Edit | None = None,
        visible: Callable[[int, Tensor | None], Tensor | None] | None = None,
        embeds: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.model, _ = small_models.shared_model("llava")
        self.batch = row_inputs("llava", row)
        self.scores, self.probabilities, self.heads, self.visible = scores, probabilities, heads, visible
        self.edit_embeds = embeds
        self.attention: list[Tensor] = []  # of each layer (H, L, L), after the edits
        self.inputs: list[Tensor] = []  # of each layer (L, d)

    @torch.no_grad()
    def run(self, ids: Tensor) -> Tensor:
        """Logits (L, V) of a whole sequence."""
        decoder = self.model.get_decoder()
        h = decoder.embed_tokens(ids)
        if bool((ids == IMAGE).any()):
            features = self.model.base_model.get_image_features(self.batch["pixel_values"], return_dict=True)
            h[ids == IMAGE] = torch.cat([one.reshape(-1, h.shape[-1]) for one in features.pooler_output])
        h = h if self.edit_embeds is None else self.edit_embeds(h)
        L = len(ids)
        places = decoder.rotary_emb(h[None], torch.arange(L)[None])
        causal = torch.ones(L, L, dtype=torch.bool).tril()
        self.attention, self.inputs = [], []
        for number, layer in enumerate(decoder.layers):
            self.inputs.append(h)
            h = h + self._attend(number, layer.self_attn, layer.input_layernorm(h), places, causal)
            h = h + layer.mlp(layer.post_attention_layernorm(h))
        logits: Tensor = self.model.lm_head(decoder.norm(h))
        return logits

    def _attend(self, number: int, own: Any, x: Tensor, places: Any, causal: Tensor) -> Tensor:
        q, k, v = (
            project(x).view(1, len(x), -1, own.head_dim).transpose(1, 2)
            for project in (own.q_proj, own.k_proj, own.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *places)
        groups = q.shape[1] // k.shape[1]
        s = (q @ k.repeat_interleave(groups, 1).mT)[0] * own.scaling  # (H, L, L)
        s = s if self.scores is None else self.scores(number, s)
        seen = None if self.visible is None else self.visible(number, self.attention[-1] if self.attention else None)
        s = s.masked_fill(~(causal if seen is None else causal & seen), torch.finfo(s.dtype).min)
        p = s.softmax(-1)
        p = p if self.probabilities is None else self.probabilities(number, p)
        self.attention.append(p)
        o = (p @ v[0].repeat_interleave(groups, 0)).transpose(0, 1)  # (L, H, D)
        o = o if self.heads is None else self.heads(number, o)
        out: Tensor = own.o_proj(o.flatten(1))
        return out

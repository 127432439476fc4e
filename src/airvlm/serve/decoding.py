"""Decoding of answers that began at different times, in one batch.

A request that arrives while others are decoded is prefilled under its method and joins them between two steps; a row
that has ended leaves. Rows are left-padded to each other, as in any batch, so an answer does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from airvlm import VLM, Method
from airvlm.report import Report
from airvlm.runtime.intervention import Intervention
from airvlm.serve.jobs import Job

__all__ = ["CannotJoin", "DecodingBatch", "decodes_as_vanilla", "rows_can_join"]

# Families whose positions follow from the attention mask alone. Others keep state of a batch in the model.
FAMILIES = ("llava",)
# Settings of a checkpoint that do not concern the choice of the most likely token.
NEUTRAL = {
    "_from_model_config",
    "bos_token_id",
    "do_sample",
    "eos_token_id",
    "max_length",
    "max_new_tokens",
    "pad_token_id",
    "temperature",
    "top_k",
    "top_p",
    "transformers_version",
    "use_cache",
}


def rows_can_join(vlm: VLM) -> bool:
    """Whether rows that were prefilled apart can be decoded together on this model, greedily, as if alone."""
    config = vlm.model.generation_config
    settings = {name for name, value in config.to_diff_dict().items() if value}
    return vlm.parts.family in FAMILIES and settings <= NEUTRAL and config.use_cache is not False


def decodes_as_vanilla(method: Method | None, vlm: VLM) -> bool:
    """Whether a method acts in the prefill alone, so that its rows are decoded as those of the model as it is."""
    if method is None:
        return True
    acting = method(vlm.model, vlm.processor, images=None, parts=vlm.parts, check_images=False).intervention
    own = type(acting)
    # logits processors and changed outputs concern whole calls of generate
    plain = own.processors is Intervention.processors and own.finish_call is Intervention.finish_call
    return plain and not acting.acts_in_decode and not acting.changes_logits


class CannotJoin(Exception):
    """Rows of this model cannot be decoded together, whichever they are."""


class DecodingBatch:
    """Answers that are decoded together, token by token.

    Args:
        vlm: the model.
    """

    def __init__(self, vlm: VLM) -> None:
        self.vlm = vlm
        self.jobs: list[Job] = []
        self._reports: list[Report | None] = []
        self._tokens = torch.empty(0, dtype=torch.long)  # (B,) the latest token of each row
        self._mask = torch.empty(0, 0, dtype=torch.long)  # (B, L) 1 where the cache holds a token of the row
        self._cache: Any = None  # keys and values (B, heads, L, d) per layer

    def __len__(self) -> int:
        return len(self.jobs)

    def join(self, jobs: Sequence[Job]) -> None:
        """Prefill the prompts of jobs that share a method, and decode them with the others from now on."""
        filled = self.vlm.prefill_rows([job.row for job in jobs], jobs[0].method)
        cache = filled.cache
        if type(cache) is not DynamicCache or any(type(layer) is not DynamicLayer for layer in cache.layers):
            raise CannotJoin(f"rows of {self.vlm.name} cannot be joined: their cache is not a plain DynamicCache")
        if self.jobs:
            length = max(self._mask.shape[1], filled.mask.shape[1])
            for own, new in zip(self._cache.layers, cache.layers, strict=True):
                own.keys = torch.cat([_pad_keys(own.keys, length), _pad_keys(new.keys, length)])
                own.values = torch.cat([_pad_keys(own.values, length), _pad_keys(new.values, length)])
            self._mask = torch.cat([_pad_mask(self._mask, length), _pad_mask(filled.mask, length)])
            self._tokens = torch.cat([self._tokens, filled.tokens])
        else:
            self._cache, self._mask, self._tokens = cache, filled.mask, filled.tokens
        self.jobs += jobs
        self._reports += filled.reports
        self._advance(range(len(self.jobs) - len(jobs), len(self.jobs)))

    @torch.no_grad()
    def step(self) -> None:
        """Generate the next token of every row."""
        self._mask = F.pad(self._mask, (0, 1), value=1)
        with self.vlm.lock.acquire():
            output = self.vlm.model(
                input_ids=self._tokens[:, None],
                attention_mask=self._mask,
                position_ids=self._mask.sum(1, keepdim=True) - 1,
                past_key_values=self._cache,
                use_cache=True,
            )
        self._tokens = output.logits[:, -1].float().argmax(-1)
        self._advance(range(len(self.jobs)))

    def clear(self) -> list[Job]:
        """Forget all rows; returns the jobs that have not ended."""
        jobs, self.jobs, self._reports, self._cache = self.jobs, [], [], None
        return jobs

    def _advance(self, rows: range) -> None:
        """Give these rows' jobs their latest tokens; rows that have ended leave."""
        for row, token in zip(rows, self._tokens[rows.start :].tolist(), strict=True):
            self.jobs[row].take(token, self.vlm.end_ids)
        kept = [row for row, job in enumerate(self.jobs) if job.finish_reason is None]
        if len(kept) == len(self.jobs):
            return
        ended = [(job, report) for job, report in zip(self.jobs, self._reports) if job.finish_reason is not None]
        self._keep(kept)
        for job, report in ended:
            job.finish(report)

    def _keep(self, rows: list[int]) -> None:
        """Drop all other rows, and columns that none of the rest uses."""
        self.jobs, self._reports = [self.jobs[row] for row in rows], [self._reports[row] for row in rows]
        if not rows:
            self._cache = None
            return
        index = torch.tensor(rows, device=self._mask.device)
        self._tokens, self._mask = self._tokens[index], self._mask[index]
        start = int(self._mask.any(0).int().argmax())
        self._mask = self._mask[:, start:]
        for layer in self._cache.layers:
            layer.keys, layer.values = layer.keys[index, :, start:], layer.values[index, :, start:]


def _pad_keys(keys: Tensor, length: int) -> Tensor:
    return F.pad(keys, (0, 0, length - keys.shape[2], 0))


def _pad_mask(mask: Tensor, length: int) -> Tensor:
    return F.pad(mask, (length - mask.shape[1], 0))

"""LogitsMethod: changes the logits of every pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from airvlm.methods.base import Method
from airvlm.runtime.intervention import Context, ForwardPass, Intervention

__all__ = ["LogitsMethod"]


@dataclass(frozen=True)
class LogitsMethod(Method):
    """Changes the logits of every pass."""

    site: ClassVar[str] = "logits"

    def next_logits(self, logits: Tensor, fp: ForwardPass, context: Context) -> Tensor:
        """The new logits, in the same shape.

        Args:
            logits: the model's (B, L or fewer, V).
            fp: the forward pass.
            context: the model's parts, its processor and the images.
        """
        raise NotImplementedError

    def start(self, context: Context) -> Intervention:
        return _Logits(self, context)


class _Logits(Intervention):
    method: LogitsMethod
    changes_logits = acts_in_decode = True

    def logits(self, fp: ForwardPass, logits: Tensor) -> Tensor | None:
        rows = self.active_rows(fp)
        if rows is None:
            return None
        rows = rows.to(logits.device)
        new = torch.where(rows[:, None, None], self.method.next_logits(logits, fp, self.context), logits)
        self.stats.count(rows.view(fp.batch_size, -1).sum(-1) * logits.shape[1])
        return new

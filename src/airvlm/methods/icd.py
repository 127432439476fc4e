"""ICD: instruction contrastive decoding (ACL Findings 2024). What a disturbed instruction makes likely is subtracted.

l* = (1 + alpha) l - alpha l' where l >= max l + log beta, with l' the logits of the same image and question after a
sentence that gives the model a confused role.

Published code puts the sentence in three places. Its LLaVA code replaces the system prompt (`place="system"`: at the
start of the prompt, where a system prompt stands), the copy that other papers compare with puts it before the question
(`place="question"`), and InstructBLIP's Q-Former, which gets it in the paper, is in no family here. `faithful=True` is
the LLaVA code: the start of the prompt, and nothing at all unless tokens are sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.templates.contrastive import ContrastiveIntervention, ContrastiveMethod, OnlySampling
from airvlm.runtime.intervention import Context, ForwardPass, Intervention
from airvlm.runtime.streams import Stream, insert_text

__all__ = ["ICD"]

# the paper's negative prefix, which is the method's only datum
ROLE = "You are a confused objects detector to provide a fuzzy overview or impression of the image."


@dataclass(frozen=True)
class ICD(ContrastiveMethod):
    """Instruction contrastive decoding."""

    name: ClassVar[str] = "icd"
    paper: ClassVar[str | None] = (
        "Mitigating hallucinations with instruction contrastive decoding (ACL Findings 2024, arXiv 2403.18715)"
    )
    summary: ClassVar[str] = "subtracts what the model would say in a confused role"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "2 passes"

    alpha: float = option(1.0, "weight of the contrast; 0 is off, the cut-off included", low=0, off=0, search=(0.1, 2))
    beta: float = option(0.1, "tokens less likely than beta times the likeliest are never said", low=0, high=1)
    role: str = option(ROLE, "the disturbing sentence of the second stream")
    place: Literal["question", "system"] = option(
        "question", "where it stands: before the question, or at the start of the prompt"
    )
    faithful: bool = option(False, "as the published LLaVA code: at the start, and only when sampling")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.role.strip():
            raise ValueError("role is empty: without a disturbing sentence both streams are the same")

    def streams(self, context: Context) -> Sequence[Stream]:
        place = "system" if self.faithful else self.place
        edit = insert_text(context.parts, context.processor, f"{self.role}\n", place)
        return [Stream(self.name, context.parts, edit_ids=edit)]

    def weights(self, l: Tensor, others: Sequence[Tensor], fp: ForwardPass) -> Sequence[float]:
        return 1 + self.alpha, -self.alpha

    def start(self, context: Context) -> Intervention:
        return OnlySampling(self, context) if self.faithful else ContrastiveIntervention(self, context)

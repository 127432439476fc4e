"""LoopMethod: a decoding loop of its own, for what cannot be done by hooks (rolling back, look-ahead).

A method writes `decode`, which has the signature of transformers' own decoding loops and is passed to `generate` as
`custom_generate`. Only one method with a loop can be active at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from airvlm.methods.base import Method
from airvlm.runtime.intervention import Context, GenerateCall, Intervention

__all__ = ["LoopIntervention", "LoopMethod"]


@dataclass(frozen=True)
class LoopMethod(Method):
    """Replaces the decoding loop."""

    site: ClassVar[str] = "decoding loop"
    exclusive: ClassVar[tuple[str, ...]] = ("loop",)

    def start(self, context: Context) -> Intervention:
        """A LoopIntervention of the method."""
        raise NotImplementedError


class LoopIntervention(Intervention):
    """One session of a LoopMethod; `decode` runs instead of transformers' own loop."""

    acts_in_decode = True

    def on_call(self, call: GenerateCall) -> None:
        if call.arguments.get("custom_generate") is not None:
            raise ValueError(f"{self.method.name} has a decoding loop of its own: leave custom_generate out")

        def custom_generate(
            model: Any,
            input_ids: Tensor,
            logits_processor: Any,
            stopping_criteria: Any,
            generation_config: Any,
            synced_gpus: bool = False,
            streamer: Any = None,
            **model_kwargs: Any,
        ) -> Any:
            return self.decode(model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs)

        call.arguments["custom_generate"] = custom_generate

    def decode(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        model_kwargs: dict[str, Any],
    ) -> Any:
        """Generate: the same arguments and results as `GenerationMixin._sample`.

        Args:
            model: the model whose generate was called.
            input_ids: the prompt (B, L), copies of each row side by side for beams.
            logits_processor: applied to the scores of every step.
            stopping_criteria: says when a row is finished.
            generation_config: of the call.
            model_kwargs: the model's other inputs.
        """
        raise NotImplementedError

"""What the two configurations share: they are read from, changed like and written as the official flat config.json.

transformers wants a text and a vision section; they are derived from the flat fields whenever a configuration is
made, so that a changed field (`from_pretrained(folder, rope_ratio=7)`) reaches the decoder. Knows nothing of models.
"""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PreTrainedConfig


class OfficialConfig(PreTrainedConfig):
    derived: ClassVar[tuple[str, ...]] = ("text_config",)  # sections that the official file does not have
    released: ClassVar[dict[str, Any]] = {}  # fields with one supported value, the released one

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        # transformers would set overrides after the sections have been derived
        changed = {name: kwargs.pop(name) for name in list(kwargs) if name in cls.__annotations__}
        return super().from_dict({**config_dict, **changed}, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if name not in self.derived}

    def refuse_other_than_released(self, model: str) -> None:
        for field, only in self.released.items():
            if getattr(self, field) != only:
                raise ValueError(
                    f"{model} configuration: {field}={getattr(self, field)!r} is not supported, only {only!r}; "
                    "no released checkpoint has another value. Is this the config.json of another model?"
                )

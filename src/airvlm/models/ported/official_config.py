"""What the two configurations share: they are read from, changed like and written as the official flat config.json.

transformers wants a text and a vision section; they are derived from the flat fields whenever a configuration is
made, so that a changed field (`from_pretrained(folder, rope_ratio=7)`) reaches the decoder. Knows nothing of models.
"""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PreTrainedConfig


class OfficialConfig(PreTrainedConfig):
    title: ClassVar[str] = ""  # of the model, in errors
    derived: ClassVar[tuple[str, ...]] = ("text_config",)  # sections that the official file does not have
    released: ClassVar[dict[str, Any]] = {}  # fields with one supported value, the released one

    text_config: Any = None
    vision_config: Any = None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        # transformers would set overrides after the sections have been derived
        ours = OfficialConfig.__annotations__ | cls.__annotations__
        changed = {name: kwargs.pop(name) for name in list(kwargs) if name in ours}
        return super().from_dict({**config_dict, **changed}, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if name not in self.derived}

    def text(self) -> dict[str, Any]:
        """The text section that the flat fields amount to."""
        raise NotImplementedError

    def __post_init__(self, **kwargs: Any) -> None:
        for field, only in self.released.items():
            if getattr(self, field) != only:
                raise ValueError(
                    f"{self.title} configuration: {field}={getattr(self, field)!r} is not supported, only {only!r}; "
                    "no released checkpoint has another value. Is this the config.json of another model?"
                )
        if not isinstance(self.text_config, PreTrainedConfig):
            self.text_config = {**self.text(), **(self.text_config or {})}
        super().__post_init__(**kwargs)
        if self.dtype is not None:
            self.text_config.dtype = self.vision_config.dtype = self.dtype

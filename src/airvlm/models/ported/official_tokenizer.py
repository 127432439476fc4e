"""What the two tokenizers share: transformers finds the official vocabulary file and builds a fast tokenizer from it.

Knows nothing of special tokens or prompts: a subclass states its own.
"""

# ruff: noqa: RUF012 - these are the class attributes that transformers reads

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

from transformers import PreTrainedTokenizerFast

from airvlm.models.ported.tiktoken_file import VocabularyError, byte_level_tokenizer, read_ranks

# settings of the official tokenizer_config.json that belong to the official code, or that the subclass states better
OFFICIAL_ONLY = (
    "auto_map",
    "added_tokens_decoder",
    "additional_special_tokens",
    "extra_special_tokens",
    "tokenizer_class",
    "tokenizer_file",
)


class OfficialTokenizer(PreTrainedTokenizerFast):
    model_input_names = ["input_ids", "attention_mask"]

    specials: ClassVar[tuple[str, ...]]  # on the ids after the vocabulary, in order
    end: ClassVar[str]  # ends and pads
    pattern: ClassVar[str]  # how text is cut before merging
    nfc: ClassVar[bool]  # whether text is brought to Unicode's composed form
    prefix: ClassVar[tuple[str, ...]] = ()  # special tokens before every plainly encoded text
    template: ClassVar[str]

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        """transformers asks here how to build the backend: a saved tokenizer.json, or the official vocabulary."""
        if kwargs.get("tokenizer_file"):
            return kwargs
        if not kwargs.get("vocab_file"):
            raise VocabularyError(
                f"There is no {cls.vocab_files_names['vocab_file']}, the vocabulary: download it with the weights."
            )
        kwargs = {name: value for name, value in kwargs.items() if name not in OFFICIAL_ONLY}
        ranks = read_ranks(kwargs["vocab_file"])
        backend = byte_level_tokenizer(ranks, cls.specials, cls.pattern, nfc=cls.nfc, prefix=cls.prefix)
        ours = {
            "eos_token": cls.end,
            "pad_token": cls.end,
            "padding_side": "left",
            "chat_template": cls.template,
        }
        return {**kwargs, **ours, "tokenizer_object": backend}

    @classmethod
    def from_vocabulary(cls, path: str | Path, **options: Any) -> Self:
        """From the vocabulary file itself."""
        return cls(**cls.convert_to_native_format(vocab_file=str(path), **options))

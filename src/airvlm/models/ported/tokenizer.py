"""A fast tokenizer from a tiktoken vocabulary file, with the ids of the original slow one.

Each line of such a file holds a token's bytes in base64 and its rank. tiktoken always merges the neighbors whose join
has the lowest rank; as a list of merges, that is every way to cut every token in two, in the order of ranks.

Two invisible characters let a chat template express in plain text what the originals do by encoding piece by piece:

* BOUNDARY: nothing merges across it; the text on each side is encoded as if it stood alone.
* ESCAPE: inside a special string, it turns the string into ordinary text.

Both are removed before encoding. They are Unicode noncharacters, reserved for internal use: where a user types one, it
can only split ordinary text, never create a special token.
"""

# ruff: noqa: RUF012 - transformers reads these class attributes

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

BOUNDARY = "\ufdd0"
ESCAPE = "\ufdd1"

# Entries of the official tokenizer_config.json that belong to the official code, or that the subclass replaces
OFFICIAL_ONLY = (
    "auto_map",
    "added_tokens_decoder",
    "additional_special_tokens",
    "extra_special_tokens",
    "tokenizer_class",
    "tokenizer_file",
)


class VocabularyError(ValueError):
    """A file that cannot be read as a tiktoken vocabulary."""


class OfficialTokenizer(PreTrainedTokenizerFast):
    """A tokenizer that transformers builds from the official vocabulary file; a subclass states the rest."""

    model_input_names = ["input_ids", "attention_mask"]

    specials: ClassVar[tuple[str, ...]]  # special tokens, on the ids after the vocabulary, in order
    end: ClassVar[str]  # the special token that ends a text and pads it
    pattern: ClassVar[str]  # regular expression by which text is split before merging
    nfc: ClassVar[bool]  # whether text is normalized to Unicode's composed form
    prefix: ClassVar[tuple[str, ...]] = ()  # special tokens before every text that is encoded without a template
    template: ClassVar[str]  # the chat template

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
        backend = build_tokenizer(
            read_ranks(kwargs["vocab_file"]), cls.specials, cls.pattern, nfc=cls.nfc, prefix=cls.prefix
        )
        ends = {"eos_token": cls.end, "pad_token": cls.end, "padding_side": "left"}
        return {**kwargs, **ends, "chat_template": cls.template, "tokenizer_object": backend}

    @classmethod
    def from_vocabulary(cls, path: str | Path, **options: Any) -> Self:
        """A tokenizer from the vocabulary file alone."""
        return cls(**cls.convert_to_native_format(vocab_file=str(path), **options))


def read_ranks(path: str | Path) -> dict[bytes, int]:
    """Token bytes -> rank. Lines may end in any way; ranks must count up from 0."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(Path(path).read_bytes().split(b"\n"), start=1):
        fields = line.split()
        if not fields:
            continue
        try:
            token, rank = fields
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            is_pointer = line.startswith(b"version https://git-lfs")
            kind = " but a Git LFS pointer: run `git lfs pull`." if is_pointer else "."
            raise VocabularyError(
                f"{path}, line {number}: expected 'base64 rank', found {line[:60]!r}. "
                f"This is not a tiktoken vocabulary{kind}"
            ) from error
    if not ranks or sorted(ranks.values()) != list(range(len(ranks))):
        raise VocabularyError(f"{path}: ranks do not count from 0 to {len(ranks) - 1}; the file is incomplete.")
    return ranks


def list_merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Every way to cut every token into two tokens, by rank of the whole."""
    found = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                found.append((rank, ranks[left], ranks[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def build_tokenizer(
    ranks: dict[bytes, int], specials: Iterable[str], pattern: str, *, nfc: bool, prefix: Sequence[str] = ()
) -> Tokenizer:
    """Build the tokenizer of a vocabulary.

    Args:
        ranks: token bytes -> rank.
        specials: special tokens, which take the ids after the ranks, in order.
        pattern: regular expression by which text is split before merging.
        nfc: whether text is normalized to Unicode's composed form.
        prefix: special tokens put before every text that is encoded.
    """
    alphabet = bytes_to_unicode()

    def spell(token: bytes) -> str:
        return "".join(alphabet[byte] for byte in token)

    tokenizer = Tokenizer(
        models.BPE(
            vocab={spell(token): rank for token, rank in ranks.items()},
            merges=[(spell(left), spell(right)) for left, right in list_merges(ranks)],
            ignore_merges=True,  # a piece that is a token is that token, as in tiktoken
        )
    )
    remove_escapes = normalizers.Replace(ESCAPE, "")
    tokenizer.normalizer = normalizers.Sequence([remove_escapes, normalizers.NFC()]) if nfc else remove_escapes
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(BOUNDARY, "removed"),
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # normalized=False: special strings are found in the text as given, before ESCAPE is removed
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    if prefix:
        ids = [(token, tokenizer.token_to_id(token)) for token in prefix]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*prefix, "$A"], pair=[*prefix, "$A", "$B"], special_tokens=ids
        )
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer

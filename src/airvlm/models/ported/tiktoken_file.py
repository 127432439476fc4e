"""A tiktoken vocabulary file -> a fast tokenizer that gives the same ids.

Such a file has a line for each token: base64 of its bytes, its rank. tiktoken always merges the neighbours whose
join has the lowest rank; as a list of merges that is every way to cut every token in two, in the order of ranks.

Two invisible characters let a chat template say in plain text what the originals do by encoding piece by piece:

* BOUNDARY: nothing merges across it; the text on both sides is encoded as if alone.
* ESCAPE: put inside a special string, it makes the string ordinary text.

Both vanish. They are Unicode noncharacters, reserved for such internal use: no text has them, and where one is
typed it can only divide ordinary text, never make a special token. Knows nothing of models or prompts.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers.convert_slow_tokenizer import bytes_to_unicode

BOUNDARY = "\ufdd0"
ESCAPE = "\ufdd1"


class VocabularyError(ValueError):
    """A vocabulary file that cannot be read as one."""


def read_ranks(path: str | Path) -> dict[bytes, int]:
    """Token bytes -> rank. Lines may end in any way; ranks must count up from 0."""
    lines = Path(path).read_bytes().split(b"\n")
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields:
            continue
        try:
            token, rank = fields
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise VocabularyError(
                f"{path}, line {number}: expected 'base64 rank', found {line[:60]!r}. This is not a tiktoken vocabulary"
                + (
                    " but a Git LFS pointer: run `git lfs pull`."
                    if line.startswith(b"version https://git-lfs")
                    else "."
                )
            ) from error
    if not ranks or sorted(ranks.values()) != list(range(len(ranks))):
        raise VocabularyError(f"{path}: ranks do not count from 0 to {len(ranks) - 1}; the file is incomplete.")
    return ranks


def merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Every way to cut every token into two tokens, by rank of the whole."""
    found = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                found.append((rank, ranks[left], ranks[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def byte_level_tokenizer(
    ranks: dict[bytes, int],
    specials: Iterable[str],
    pattern: str,
    *,
    nfc: bool,
    prefix: Sequence[str] = (),  # special tokens put before every text that is encoded plainly
) -> Tokenizer:
    """The whole tokenizer; special tokens take the ids after the ranks, in order."""
    alphabet = bytes_to_unicode()

    def spell(token: bytes) -> str:
        return "".join(alphabet[byte] for byte in token)

    tokenizer = Tokenizer(
        models.BPE(
            vocab={spell(token): rank for token, rank in ranks.items()},
            merges=[(spell(left), spell(right)) for left, right in merges(ranks)],
            ignore_merges=True,  # a piece that is a token is that token, as in tiktoken
        )
    )
    vanish = normalizers.Replace(ESCAPE, "")
    tokenizer.normalizer = normalizers.Sequence([vanish, normalizers.NFC()]) if nfc else vanish
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(BOUNDARY, "removed"),
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # Not normalised: special strings are found in the text as it was given, before ESCAPE vanishes.
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    if prefix:
        ids = [(token, tokenizer.token_to_id(token)) for token in prefix]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*prefix, "$A"], pair=[*prefix, "$A", "$B"], special_tokens=ids
        )
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer

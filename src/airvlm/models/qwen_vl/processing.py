"""Qwen-VL's tokenizer, from the official `qwen.tiktoken`, its chat template and its processor.

`<img>path</img>` becomes a span of a fixed number of ids that hold the bytes of the path, as in the original; an empty
span is filled with <imgpad>. No path is ever opened here.
"""

# ruff: noqa: RUF012 - transformers reads these class attributes

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from transformers import BatchEncoding

from airvlm.models.ported.processing import SquareImageTextProcessor
from airvlm.models.ported.tokenizer import BOUNDARY, ESCAPE, OfficialTokenizer
from airvlm.models.qwen_vl.model import QwenVLConfig

END, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
IMG, IMG_END, IMG_PAD = "<img>", "</img>", "<imgpad>"
TAGS = ("<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>", IMG, IMG_END, IMG_PAD)
SPECIALS = (END, IM_START, IM_END, *(f"<|extra_{i}|>" for i in range(205)), *TAGS)
STOPS = (END, IM_END, IM_START)  # a chat answer ends at any of them
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
IMAGE = re.compile(re.escape(IMG) + "(.*?)" + re.escape(IMG_END), re.DOTALL)
NUM_IMAGE_TOKENS = 256  # ids between <img> and </img> in the released model
DEFAULT_SYSTEM = "You are a helpful assistant."

# Special strings of the form <|...|> that a user types stay ordinary text. The nine tags are markup, as in the
# original; only in a text part next to image parts are the image tags ordinary text too
CHAT_TEMPLATE = (
    r"""
{%- macro plain(text) -%}{{ text | replace('<|', '<\ufdd1|') }}{%- endmacro -%}
{%- macro without_images(text) -%}
{{ text | replace('<img', '<\ufdd1img') | replace('</img', '<\ufdd1/img') }}
{%- endmacro -%}
{%- macro body(content) -%}
{%- if content is string -%}{{ plain(content) }}
{%- else -%}
{%- set count = namespace(images=0) -%}
{%- for part in content -%}
{%- if part.type == 'image' -%}
{%- set count.images = count.images + 1 -%}
{%- set path = part.path or part.url -%}
{{ 'Picture ' ~ count.images ~ ':<img>' ~ (path if path is string else '') ~ '</img>\n' }}
{%- elif part.type == 'text' -%}{{ plain(without_images(part.text)) }}
{%- else -%}{{ raise_exception('Qwen-VL reads parts of type image and text, not ' ~ part.type) }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- macro turn(role, content) -%}
{{ '<|im_start|>' ~ role ~ '\n' ~ ('' if content.lstrip() == content else '\ufdd0') ~ content ~ '<|im_end|>' }}
{%- endmacro -%}
{%- if messages[0].role != 'system' -%}{{ turn('system', 'DEFAULT_SYSTEM') ~ '\n' }}{%- endif -%}
{%- for message in messages -%}
{{ '' if loop.first else '\n' }}{{ turn(message.role, body(message.content)) }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '\n<|im_start|>assistant\n' }}{%- endif -%}
""".strip()
    .replace("DEFAULT_SYSTEM", DEFAULT_SYSTEM)
    .replace("\\ufdd0", BOUNDARY)
    .replace("\\ufdd1", ESCAPE)
)


class QWenTokenizer(OfficialTokenizer):
    """A fast tokenizer under the name that the official tokenizer_config.json asks for.

    `num_image_tokens` is the number of ids between <img> and </img>; 256 if it is not given.
    """

    vocab_files_names = {"vocab_file": "qwen.tiktoken", "tokenizer_file": "tokenizer.json"}
    specials, end, pattern, nfc = SPECIALS, END, PATTERN, True
    template = CHAT_TEMPLATE

    @property
    def num_image_tokens(self) -> int:
        return int(self.init_kwargs.get("num_image_tokens", NUM_IMAGE_TOKENS))

    @property
    def image_start_id(self) -> int:
        return int(self.convert_tokens_to_ids(IMG))

    @staticmethod
    def escape_specials(text: str) -> str:
        """Text in which all special strings but the nine tags are ordinary text, as in the original's chat."""
        return text.replace("<|", f"<{ESCAPE}|")

    def apply_chat_template(
        self, conversation: Any, *args: Any, max_window_size: int | None = None, **kwargs: Any
    ) -> Any:
        """As in transformers; `max_window_size` drops the oldest turns that do not fit, as in the original."""
        if max_window_size is not None:
            conversation = self.fit_window(conversation, max_window_size)
        return super().apply_chat_template(conversation, *args, **kwargs)

    def fit_window(self, messages: Sequence[dict[str, Any]], max_window_size: int) -> list[dict[str, Any]]:
        """The newest turns for which system + turns < max_window_size tokens; the last message is always kept."""
        system = list(messages[:1]) if messages[0]["role"] == "system" else []
        *past, query = messages[len(system) :]

        def size(part: list[dict[str, Any]]) -> int:
            return len(super(QWenTokenizer, self).apply_chat_template(part, return_dict=False))

        default = [{"role": "system", "content": DEFAULT_SYSTEM}]
        head = system or default
        used, kept = size(head), len(past)
        while kept >= 2:
            cost = size(head + past[kept - 2 : kept]) - size(head)
            if used + cost >= max_window_size:
                break
            used, kept = used + cost, kept - 2
        return system + past[kept:] + [query]

    # -- spans of images

    def _encode_plus(self, text: Any, *args: Any, **kwargs: Any) -> BatchEncoding:
        texts = [text] if isinstance(text, str) else list(text)
        if not any(isinstance(t, str) and IMG in t for t in texts):
            return super()._encode_plus(text, *args, **kwargs)
        paths: list[list[bytes]] = [[] for _ in texts]
        filled = [IMAGE.sub(lambda m, row=row: self._fill_span(m[1], row), t) for t, row in zip(texts, paths)]
        encoding = super()._encode_plus(filled[0] if isinstance(text, str) else filled, *args, **kwargs)
        ids = encoding["input_ids"]
        single = isinstance(ids, list) and bool(ids) and isinstance(ids[0], int)
        for row, own in zip([ids] if single else ids, paths):
            if any(own):
                self._write_paths(row, own)
        return encoding

    def _fill_span(self, content: str, paths: list[bytes]) -> str:
        if content and not content.replace(IMG_PAD, ""):  # already filled
            paths.append(b"")
            return f"{IMG}{content}{IMG_END}"
        path = unicodedata.normalize("NFC", content).encode()
        if len(path) > self.num_image_tokens:
            raise ValueError(
                f"The path of an image may have {self.num_image_tokens} bytes, this one has {len(path)}: "
                f"{content[:60]!r}... Leave the span empty (<img></img>) and give the image itself."
            )
        paths.append(path)
        return IMG + IMG_PAD * self.num_image_tokens + IMG_END

    def _write_paths(self, ids: Any, paths: list[bytes]) -> None:
        """Write the bytes of each path over the padding of its span, in place; a byte is the id of its value."""
        listed = ids if isinstance(ids, list) else ids.tolist()
        starts = [i for i, token in enumerate(listed) if token == self.image_start_id]
        for start, path in zip(starts, paths):
            for offset, byte in enumerate(path, start=start + 1):
                if offset < len(listed):  # the rest was truncated
                    ids[offset] = byte

    def _decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        if self.image_start_id not in ids:
            return str(super()._decode(ids, skip_special_tokens=skip_special_tokens, **kwargs))
        text = ""
        for piece, path in self._split_spans(ids):
            text += super()._decode(piece, skip_special_tokens=skip_special_tokens, **kwargs)
            if path is not None and not skip_special_tokens:
                text += f"{IMG}{path}{IMG_END}"
        return text

    def _split_spans(self, ids: list[int]) -> Iterator[tuple[list[int], str | None]]:
        """Ids outside of spans, each with the path of the span that follows (None at the end)."""
        start_id = self.image_start_id
        while start_id in ids:
            start = ids.index(start_id)
            end = ids.index(start_id + 1, start) if start_id + 1 in ids[start:] else len(ids)
            path = bytes(i for i in ids[start + 1 : end] if i < 256)
            yield ids[:start], path.decode(errors="replace")
            ids = ids[end + 1 :]
        yield ids, None


class QwenVLProcessor(SquareImageTextProcessor):
    """Prompts hold <img></img> per image; a path between the two is ignored, the given image is used."""

    config_class = QwenVLConfig
    official_tokenizer = QWenTokenizer
    image_token = IMG_PAD
    placeholder = f"{IMG}{IMG_END}"

    def normalize_prompt(self, text: str) -> str:
        return IMAGE.sub(f"{IMG}{IMG_PAD}{IMG_END}", text)

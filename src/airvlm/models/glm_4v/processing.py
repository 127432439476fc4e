"""GLM-4V's tokenizer, chat template and processor.

The official `tokenizer.model` is a tiktoken file, despite its name.
"""

# ruff: noqa: RUF012 - transformers reads these class attributes

from __future__ import annotations

from typing import Any

from transformers import BatchFeature

from airvlm.models.glm_4v.model import Glm4VConfig
from airvlm.models.ported.processing import SquareImageTextProcessor
from airvlm.models.ported.tokenizer import BOUNDARY, ESCAPE, OfficialTokenizer

END, PREFIX = "<|endoftext|>", ("[gMASK]", "<sop>")
BOI, EOI, IMAGE = "<|begin_of_image|>", "<|end_of_image|>", "<|image|>"
# <|image|> is not official: one per visual token, on the first free id
SPECIALS = tuple(
    "<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|> "
    "<|begin_of_image|> <|end_of_image|> <|begin_of_video|> <|end_of_video|> <|image|>".split()
)
STOPS = (END, "<|user|>", "<|observation|>")
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# A message is role, metadata, a newline, the image if there is one, and the text. No token ends a turn, and no newline
# follows the last role: the model writes it itself
CHAT_TEMPLATE = (
    r"""
{%- macro plain(text) -%}
{%- set ns = namespace(text=text | replace('<|', '<\ufdd1|')) -%}
{%- for typed in ['[MASK]', '[gMASK]', '[sMASK]', '<sop>', '<eop>'] -%}
{%- set ns.text = ns.text | replace(typed, typed[:1] ~ '\ufdd1' ~ typed[1:]) -%}
{%- endfor -%}
{{ ns.text }}
{%- endmacro -%}
{%- macro apart(text) -%}{{ ('' if text.lstrip() == text else '\ufdd0') ~ text }}{%- endmacro -%}
{%- set images = namespace(count=0) -%}
{{ '[gMASK]<sop>' }}
{%- for message in messages -%}
{%- set ns = namespace(image=message.image is defined and message.image, text='') -%}
{%- if message.content is string -%}{%- set ns.text = message.content -%}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
{%- if ns.image -%}{{ raise_exception('GLM-4V reads one image per conversation') }}{%- endif -%}
{%- set ns.image = true -%}
{%- elif part.type == 'text' -%}{%- set ns.text = ns.text ~ part.text -%}
{%- else -%}{{ raise_exception('GLM-4V reads parts of type image and text, not ' ~ part.type) }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|' ~ message.role ~ '|>' ~ plain(message.metadata | default('', true)) ~ '\n' }}
{%- if ns.image -%}
{%- set images.count = images.count + 1 -%}
{%- if images.count > 1 -%}{{ raise_exception('GLM-4V reads one image per conversation') }}{%- endif -%}
{{ '<|begin_of_image|><|image|><|end_of_image|>' }}
{%- endif -%}
{{ apart(plain(ns.text)) }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}
""".strip()
    .replace("\\ufdd0", BOUNDARY)
    .replace("\\ufdd1", ESCAPE)
)


class ChatGLM4Tokenizer(OfficialTokenizer):
    """A fast tokenizer under the name that the official tokenizer_config.json asks for."""

    vocab_files_names = {"vocab_file": "tokenizer.model", "tokenizer_file": "tokenizer.json"}
    specials, end, pattern, nfc = SPECIALS, END, PATTERN, False
    prefix, template = PREFIX, CHAT_TEMPLATE


class Glm4VProcessor(SquareImageTextProcessor):
    """Prompts hold <|begin_of_image|><|image|><|end_of_image|>, or the official form of it, at most once per row."""

    config_class = Glm4VConfig
    official_tokenizer = ChatGLM4Tokenizer
    image_token = IMAGE
    placeholder = f"{BOI}{IMAGE}{EOI}"
    official_placeholder = f"{BOI}{END}{EOI}"
    answer_start = "\n"  # what the model itself writes before an answer: the end of the role's line

    def normalize_prompt(self, text: str) -> str:
        text = text.replace(self.official_placeholder, self.placeholder)
        if text.count(self.image_token) > 1:
            raise ValueError("GLM-4V reads one image per prompt; ask about each image separately.")
        return text

    def __call__(self, images: Any = None, text: Any = None, **kwargs: Any) -> BatchFeature:
        first = text if isinstance(text, str) or text is None else next(iter(text), "")
        if first is not None and first.startswith("".join(PREFIX)):
            # The template has already written them
            kwargs.setdefault("add_special_tokens", False)
        return super().__call__(images=images, text=text, **kwargs)

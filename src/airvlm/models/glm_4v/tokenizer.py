"""GLM-4V's tokenizer and chat template, from the official `tokenizer.model` (a tiktoken file, despite its name).

Knows nothing of pixels or models.
"""

# ruff: noqa: RUF012 - these are the class attributes that transformers reads

from __future__ import annotations

from airvlm.models.ported.official_tokenizer import OfficialTokenizer
from airvlm.models.ported.tiktoken_file import BOUNDARY, ESCAPE

END, PREFIX = "<|endoftext|>", ("[gMASK]", "<sop>")
BOI, EOI, IMAGE = "<|begin_of_image|>", "<|end_of_image|>", "<|image|>"
SPECIALS = (
    END,
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    BOI,
    EOI,
    "<|begin_of_video|>",
    "<|end_of_video|>",
    IMAGE,  # ours: one for each row of an image, on the first free id
)
STOPS = (END, "<|user|>", "<|observation|>")
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# A message: role, metadata and a newline, the image if it has one, the text. No token ends a turn, and no newline
# follows the last role: the model writes it itself.
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
{%- if ns.image -%}{{ raise_exception('GLM-4V reads one image a conversation') }}{%- endif -%}
{%- set ns.image = true -%}
{%- elif part.type == 'text' -%}{%- set ns.text = ns.text ~ part.text -%}
{%- else -%}{{ raise_exception('GLM-4V reads parts of type image and text, not ' ~ part.type) }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|' ~ message.role ~ '|>' ~ plain(message.metadata | default('', true)) ~ '\n' }}
{%- if ns.image -%}
{%- set images.count = images.count + 1 -%}
{%- if images.count > 1 -%}{{ raise_exception('GLM-4V reads one image a conversation') }}{%- endif -%}
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

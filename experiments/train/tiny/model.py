"""Build tokenizer, processor and a LLaVA of the recipe's sizes, and save them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from airvlm.tasks.words.objects import CATEGORIES
from airvlm.tiny import grammar
from airvlm.tiny.world import compose
from experiments.train.tiny.questions import other_question
from experiments.train.tiny.recipe import Recipe

TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}USER: "
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>\n{% endif %}{% endfor %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %} "
    "{% else %}ASSISTANT: {% for part in message['content'] %}{{ part['text'] }}{% endfor %}</s>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def build_corpus(scenes: int = 3000) -> list[str]:
    """Sentences about scenes, and every COCO name with its plural, so that each word is one token."""
    lines = []
    for seed in range(scenes):
        scene, draw = compose(seed), random.Random(f"airvlm corpus {seed}")
        lines.append(f"USER: \n{grammar.DESCRIBE} ASSISTANT: {grammar.description(scene, draw)}")
        for asked in (other_question(scene, draw), grammar.existence_question(scene.names[0], True, draw)):
            lines.append(f"USER: \n{asked.question} ASSISTANT: {asked.answer}")
    names = [n for name in CATEGORIES for n in (name, grammar.plural(name))]
    return lines + [f"There is a {n}. {n.capitalize()}" for n in names] * 300


def build_tokenizer(lines: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of `vocabulary` tokens on the lines."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = [AddedToken(t, special=True, normalized=False) for t in ("<pad>", "<s>", "</s>", "<image>")]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens={"image_token": "<image>"},
        padding_side="left",
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )


def build_image_processor(pixels: int) -> CLIPImageProcessorPil:
    """Every image is resized to a square of `pixels` per side, so that no part of it is cut off."""
    side = {"height": pixels, "width": pixels}
    return CLIPImageProcessorPil(
        size=side, do_center_crop=False, crop_size=side, resample=3, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )


def build_processor(recipe: Recipe) -> LlavaProcessor:
    return LlavaProcessor(
        image_processor=build_image_processor(recipe.image_side),
        tokenizer=build_tokenizer(build_corpus(), recipe.vocabulary),
        patch_size=recipe.patch,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )


def build_model(recipe: Recipe, processor: LlavaProcessor) -> LlavaForConditionalGeneration:
    words = processor.tokenizer
    vision = CLIPVisionConfig(
        hidden_size=recipe.vision_width,
        intermediate_size=4 * recipe.vision_width,
        num_hidden_layers=recipe.vision_layers,
        num_attention_heads=recipe.vision_heads,
        image_size=recipe.image_side,
        patch_size=recipe.patch,
        hidden_act="gelu",
        projection_dim=recipe.width,
    )
    return build_llava(recipe, words, vision, tokens=(recipe.image_side // recipe.patch) ** 2, features="default")


def build_llava(
    recipe: Any, words: Any, vision: PreTrainedConfig, *, tokens: int, features: str
) -> LlavaForConditionalGeneration:
    """A LLaVA of the recipe's widths around a vision tower.

    Args:
        recipe: width, layers, heads and feed_forward are read.
        words: the tokenizer.
        vision: configuration of the tower.
        tokens: visual tokens per image.
        features: LLaVA's `vision_feature_select_strategy`; "default" leaves out the class token.
    """
    text = LlamaConfig(
        vocab_size=len(words),
        hidden_size=recipe.width,
        intermediate_size=recipe.feed_forward,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        tie_word_embeddings=True,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=words.convert_tokens_to_ids("<image>"),
        image_seq_length=tokens,
        vision_feature_layer=-1,
        vision_feature_select_strategy=features,
        projector_hidden_act="gelu",
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.generation_config, name, getattr(words, name))
    return model


def save_model(model: LlavaForConditionalGeneration, processor: LlavaProcessor, folder: Path) -> None:
    """Write an ordinary transformers folder: fp16 safetensors, processor, chat template."""
    model.half().save_pretrained(folder)
    processor.save_pretrained(folder)
    model.float()

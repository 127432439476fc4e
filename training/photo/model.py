"""Builds the photograph model's parts: tokenizer, processor, and a LLaVA of the recipe's sizes."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from airvlm.photo.tower import EfficientNetLiteConfig, EfficientNetLiteTower, register
from training.model import TEMPLATE
from training.photo import grammar, imagenet
from training.photo.recipe import Recipe


def corpus(world: grammar.World, photographs: int = 3000) -> list[str]:
    """Sentences of the grammar, and every name often enough that each of its words is one token."""
    lines = []
    for seed in range(photographs):
        draw = random.Random(f"airvlm photo corpus {seed}")
        chosen = sorted(draw.sample(range(len(world.names)), draw.randint(1, 8)))
        names = [world.names[k] for k in chosen]
        asked = [
            grammar.Exchange(draw.choice(grammar.DESCRIBING), grammar.description(names, draw), "describe"),
            grammar.other_question(names, world, draw),
            grammar.existence(names[0], True, draw),
        ]
        lines += [f"USER: \n{e.question} ASSISTANT: {e.answer}" for e in asked]
    lines += [f"There is {grammar.noun(n)}. {grammar.noun(n)} {n.capitalize()}" for n in world.names] * 300
    return lines + [f"ASSISTANT: {grammar.NOTHING} No. Yes. No, Yes,"] * 300


def build_tokenizer(recipe: Recipe, world: grammar.World) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = [AddedToken(t, special=True, normalized=False) for t in ("<pad>", "<s>", "</s>", "<image>")]
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus(world), trainer)
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


def build_processor(recipe: Recipe, world: grammar.World) -> LlavaProcessor:
    """Squashes every image to a square, as the training photographs were: no part of it is cut off."""
    side = {"height": recipe.image_side, "width": recipe.image_side}
    images = CLIPImageProcessorPil(
        size=side, do_center_crop=False, crop_size=side, resample=3, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return LlavaProcessor(
        image_processor=images,
        tokenizer=build_tokenizer(recipe, world),
        patch_size=recipe.patch,
        vision_feature_select_strategy="full",
        num_additional_image_tokens=0,
        chat_template=TEMPLATE,
    )


def kept_processor(recipe: Recipe, world: grammar.World, folder: Path) -> LlavaProcessor:
    """The processor of a run, built once: its vocabulary must not change when the grammar does."""
    if not folder.exists():
        build_processor(recipe, world).save_pretrained(folder)
    return LlavaProcessor.from_pretrained(folder)


def tower_config(recipe: Recipe) -> EfficientNetLiteConfig:
    return EfficientNetLiteConfig(
        image_size=recipe.image_side, patch_size=recipe.patch, hidden_size=recipe.vision_width
    )


def build_tower(recipe: Recipe) -> EfficientNetLiteTower:
    """With ImageNet's weights."""
    tower = EfficientNetLiteTower(tower_config(recipe))
    imagenet.initialise(tower, imagenet.find(recipe.imagenet))
    return tower


def build_model(recipe: Recipe, processor: LlavaProcessor) -> LlavaForConditionalGeneration:
    register()
    words = processor.tokenizer
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
        vision_config=tower_config(recipe),
        text_config=text,
        image_token_index=words.convert_tokens_to_ids("<image>"),
        image_seq_length=recipe.visual_tokens,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        projector_hidden_act="gelu",
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    model.model.vision_tower.load_state_dict(build_tower(recipe).state_dict())
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.generation_config, name, getattr(words, name))
    return model

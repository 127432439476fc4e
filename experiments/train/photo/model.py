"""Builds the photograph model's parts: tokenizer, processor, and a LLaVA of the recipe's sizes."""

from __future__ import annotations

import random
from pathlib import Path

from transformers import (
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from airvlm.photo.tower import EfficientNetLiteConfig, EfficientNetLiteTower, register
from experiments.train.tiny.model import TEMPLATE, build_tokenizer, llava, square_images
from experiments.train.photo import grammar, imagenet
from experiments.train.photo.recipe import Recipe


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


def build_processor(recipe: Recipe, world: grammar.World) -> LlavaProcessor:
    """Squashes every image to a square, as the training photographs were: no part of it is cut off."""
    return LlavaProcessor(
        image_processor=square_images(recipe.image_side),
        tokenizer=build_tokenizer(corpus(world), recipe.vocabulary),
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
    model = llava(recipe, words, tower_config(recipe), tokens=recipe.visual_tokens, features="full")
    model.model.vision_tower.load_state_dict(build_tower(recipe).state_dict())
    return model

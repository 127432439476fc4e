"""Build the photograph model: tokenizer, processor, and a LLaVA of the recipe's sizes."""

from __future__ import annotations

import random
from pathlib import Path

from transformers import LlavaForConditionalGeneration, LlavaProcessor

from airvlm.photo.tower import EfficientNetLiteConfig, EfficientNetLiteTower, register
from experiments.train.photo import grammar, imagenet
from experiments.train.photo.recipe import Recipe
from experiments.train.tiny.model import TEMPLATE, build_image_processor, build_llava, build_tokenizer


def build_corpus(world: grammar.World, photographs: int = 3000) -> list[str]:
    """Sentences of the grammar, and every name so often that each of its words becomes one token."""
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
    """Every image is resized to a square, as the training photographs were, so that no part of it is cut off."""
    return LlavaProcessor(
        image_processor=build_image_processor(recipe.image_side),
        tokenizer=build_tokenizer(build_corpus(world), recipe.vocabulary),
        patch_size=recipe.patch,
        vision_feature_select_strategy="full",
        num_additional_image_tokens=0,
        chat_template=TEMPLATE,
    )


def load_processor(recipe: Recipe, world: grammar.World, folder: Path) -> LlavaProcessor:
    """The processor of a run, built only once: its vocabulary must not change when the grammar does."""
    if not folder.exists():
        build_processor(recipe, world).save_pretrained(folder)
    return LlavaProcessor.from_pretrained(folder)


def tower_config(recipe: Recipe) -> EfficientNetLiteConfig:
    return EfficientNetLiteConfig(
        image_size=recipe.image_side, patch_size=recipe.patch, hidden_size=recipe.vision_width
    )


def build_tower(recipe: Recipe) -> EfficientNetLiteTower:
    """The tower with ImageNet weights."""
    tower = EfficientNetLiteTower(tower_config(recipe))
    imagenet.initialize(tower, imagenet.find_weights(recipe.imagenet))
    return tower


def build_model(recipe: Recipe, processor: LlavaProcessor) -> LlavaForConditionalGeneration:
    register()
    words = processor.tokenizer
    model = build_llava(recipe, words, tower_config(recipe), tokens=recipe.visual_tokens, features="full")
    model.model.vision_tower.load_state_dict(build_tower(recipe).state_dict())
    return model

"""Packing exchanges behind one image changes the cost, and nothing else."""

import random

import pytest
import torch

from airvlm.tiny.world import compose
from experiments.train.tiny.data import View
from experiments.train.tiny.joint import Packer, collate
from experiments.train.tiny.model import build_model, build_processor
from experiments.train.tiny.recipe import RECIPES, Recipe

SMALL = Recipe("small", seed=0, width=32, layers=2, heads=2, feed_forward=48, vision_width=32, vision_layers=1)


@pytest.fixture(scope="module")
def parts():  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    processor = build_processor(SMALL)
    return build_model(SMALL, processor).eval(), processor


def hidden(model, sample):  # type: ignore[no-untyped-def]
    batch = collate([sample], pad=0)
    decoder = model.model.language_model
    embeds = decoder.embed_tokens(batch["ids"])
    with torch.no_grad():
        out = decoder(inputs_embeds=embeds, attention_mask=batch["mask"], position_ids=batch["positions"])
    return out.last_hidden_state[0]


@pytest.mark.slow
def test_an_exchange_computes_the_same_packed_and_alone(parts) -> None:  # type: ignore[no-untyped-def]
    model, processor = parts
    packer = Packer(SMALL, processor)
    said = packer.exchanges(View(compose(1), ()), random.Random(0), questioned=True)
    packed, alone = packer.pack(said), packer.pack([said[5]])
    here = [i for i, k in enumerate(packed.segments) if k == 6]
    there = [i for i, k in enumerate(alone.segments) if k == 1]
    assert torch.allclose(hidden(model, packed)[here], hidden(model, alone)[there], atol=1e-5)


@pytest.mark.slow
def test_a_packed_prompt_is_the_chat_template_s(parts) -> None:  # type: ignore[no-untyped-def]
    _, processor = parts
    packer = Packer(SMALL, processor)
    asked = packer.exchanges(View(compose(1), ()), random.Random(0), questioned=False)[2]
    content = [{"type": "image"}, {"type": "text", "text": asked.question}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    ids = processor.tokenizer(text.replace("<image>", "<image>" * packer.patches)).input_ids
    assert packer.pack([asked]).ids[: len(ids)] == ids


@pytest.mark.slow
def test_the_probe_looks_at_the_asked_object_s_last_word(parts) -> None:  # type: ignore[no-untyped-def]
    _, processor = parts
    packer = Packer(SMALL, processor)
    said = packer.exchanges(View(compose(1), ()), random.Random(3), questioned=True)
    asked = [e for e in said if e.kind == "existence"]
    packed = packer.pack(said)
    words = [processor.tokenizer.decode([packed.ids[place]]).strip() for place, _ in packed.probes]
    assert words == [e.subject.split()[-1] for e in asked if e.subject]


def test_the_two_checkpoints_differ_in_seed_scenes_and_zooms() -> None:
    first, second = RECIPES["first"], RECIPES["second"]
    assert first.seed != second.seed
    assert first.zoom != second.zoom
    assert abs(first.first_scene - second.first_scene) >= first.scenes

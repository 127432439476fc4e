"""What ships with the package: scenes, truths, questions, and a model that the ordinary loader loads."""

import hashlib
from collections import Counter
from dataclasses import astuple

import pytest
from transformers import AutoProcessor, LlavaForConditionalGeneration

from airvlm import tiny
from airvlm.tasks.words.objects import CATEGORIES
from airvlm.tiny import grammar

PUBLISHED = {  # hashes of scenes with captions, of their images' hashes, and of each kind of questions
    "test": [
        "2716666f6a9b1c5b",
        "da6aa761c993b2d7",
        "3b10f5dab7877dfc",
        "e2d7f6c42afad16d",
        "51bc0103a7a2581a",
    ],
    "calibration": [
        "18b07450e6c32db1",
        "e598ece0008445bf",
        "75b4ebc27bf0b3e9",
        "735329f7ad0351bd",
        "794c84a7a94e7332",
    ],
    "validation": [
        "8e20cf1efd6b9669",
        "b1a10eeaa62dfbf7",
        "40e9e5c72c0c6cbb",
        "e296fc889434f245",
        "709c112015a1786a",
    ],
}
SIZES = {"test": 1500, "calibration": 500, "validation": 200}


def folder_size(path) -> int:  # type: ignore[no-untyped-def]
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_the_splits_have_their_sizes_and_share_no_scene() -> None:
    assert {split: len(tiny.scenes(split)) for split in tiny.SPLITS} == SIZES
    seen = [scene.scene.objects for split in tiny.SPLITS for scene in tiny.scenes(split)]
    assert len(set(seen)) == len(seen)
    seeds = [scene.scene.seed for split in tiny.SPLITS for scene in tiny.scenes(split)]
    assert min(seeds) >= 10_000_000  # training takes its scenes below that


def test_scenes_questions_and_hashes_are_those_of_the_published_results() -> None:
    def digest(value: object) -> str:
        return hashlib.sha256(repr(value).encode()).hexdigest()[:16]

    for split in tiny.SPLITS:
        told = [(scene.id, astuple(scene.scene), scene.caption) for scene in tiny.scenes(split)]
        hashes = [(scene.id, scene.content_hash, scene.pixels_hash) for scene in tiny.scenes(split)]
        asked = [digest(tiny.questions(split, kind)) for kind in tiny.KINDS]
        assert [digest(told), digest(hashes), *asked] == PUBLISHED[split], split


def test_what_ships_of_the_scenes_is_small() -> None:
    folder = tiny.model_path().parent
    assert folder_size(folder / "scenes") < 1_500_000
    assert folder_size(folder / "sprites") < 300_000
    assert (folder / "sprites" / "OFL.txt").is_file()


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_questions_follow_pope_s_rule(kind: str) -> None:
    questions = tiny.questions("test", kind)
    assert len(questions) == 3000
    assert Counter(q.label for q in questions) == {"yes": 1500, "no": 1500}
    assert set(Counter(q.scene for q in questions).values()) == {6}
    names = {scene.id: scene.names for scene in tiny.scenes("test")}
    assert all((q.object in names[q.scene]) == (q.label == "yes") for q in questions)


def test_popular_and_adversarial_questions_ask_for_what_the_world_suggests() -> None:
    frequent = Counter(name for scene in tiny.scenes("test") for name in scene.names)
    asked = {kind: [frequent[q.object] for q in tiny.questions("test", kind) if q.label == "no"] for kind in tiny.KINDS}
    assert sum(asked["popular"]) > sum(asked["adversarial"]) > sum(asked["random"])


def test_an_unknown_split_or_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="calibration"):
        tiny.scenes("train")
    with pytest.raises(ValueError, match="adversarial"):
        tiny.questions("test", "hard")


def test_the_model_is_an_ordinary_llava_of_the_stated_size() -> None:
    model = LlavaForConditionalGeneration.from_pretrained(tiny.model_path())
    assert 6 <= model.config.text_config.num_hidden_layers <= 12
    assert 64 <= model.config.image_seq_length <= 144
    weights = list(tiny.model_path().glob("*.safetensors"))
    assert sum(file.stat().st_size for file in weights) < 20_000_000
    assert not list(tiny.model_path().glob("*.bin"))


def test_every_coco_name_and_its_plural_is_one_token_a_word() -> None:
    words = AutoProcessor.from_pretrained(tiny.model_path()).tokenizer
    for name in CATEGORIES:
        for form in (name, grammar.plural(name)):
            assert all(len(words(f" {word}").input_ids) == 1 for word in form.split()), form


def test_the_tokenizer_writes_any_text_back() -> None:
    words = AutoProcessor.from_pretrained(tiny.model_path()).tokenizer
    text = "Ünïcode 🦊 and\ttabs, <s> too"
    assert words.decode(words(text).input_ids, skip_special_tokens=False) == text


def test_the_card_says_how_it_was_made_and_what_it_scores() -> None:
    card = tiny.model_card()
    assert card["parameters"] < 10_000_000  # type: ignore[operator]
    assert {"CHAIR_S", "CHAIR_I", "recall"} <= set(card["scores"])  # type: ignore[call-overload]

"""Pairs that are made without labels, and the artifacts that come of them."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from airvlm import VLM
from airvlm.evaluation.artifacts import TextPair, degrade, make_artifact, read_states, swap_noun
from airvlm.inputs.images import read_image
from airvlm.methods.artifacts import SAMPLE, Artifact, ArtifactError
from airvlm.methods.nullu import Nullu
from airvlm.methods.var import VAR
from airvlm.methods.vti import VTI
from airvlm.testing import small_models
from airvlm.tiny import scenes

QUESTION = "Please describe this image in detail."


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


@pytest.fixture(scope="module")
def images() -> list[Any]:
    return [scene.path for scene in scenes("test")[:4]]


def test_degraded_images_have_the_size_and_show_less() -> None:
    image, other = small_models.sample_image(1), small_models.sample_image(2, (64, 64))
    edits = degrade(image, other, 0)
    assert [edit.size for edit in edits] == [image.size] * 3
    assert len({edit.tobytes() for edit in [*edits, image]}) == 4
    assert sorted(degrade(image, None, 0)[1].tobytes()) == sorted(image.tobytes())  # the same pixels elsewhere
    assert len(degrade(image, None, 0)) == 2


def test_a_swapped_noun_is_one_that_the_caption_does_not_name() -> None:
    nouns = ["cat", "dog", "hot dog", "fork"]
    for seed in range(20):
        found = swap_noun("Two cats and a hot dog.", nouns, random.Random(seed))
        assert found in {
            "Two dogs and a hot dog.",
            "Two forks and a hot dog.",
            "Two cats and a dog.",
            "Two cats and a fork.",
        }
    assert swap_noun("Nothing here.", nouns, random.Random(0)) is None
    assert swap_noun("A cat.", ["cat"], random.Random(0)) is None


def test_states_are_those_of_a_plain_pass(vlm: VLM, images: list[Any]) -> None:
    image = read_image(images[0])
    row = vlm.builder.read(image, QUESTION)
    text = "The image shows a cup."
    gap = "" if row.prompt[-1:].isspace() else " "
    inputs = vlm.builder.build([type(row)(row.images, row.prompt + gap + text)], pixels=True)
    prompt = vlm.builder.build([row], pixels=True)["input_ids"].shape[1]
    with torch.no_grad():
        states = vlm.model(**inputs, output_hidden_states=True).hidden_states
    for reads, expected in (
        ("caption", states[1][0, prompt:].mean(0)),
        ("last", states[1][0, -1]),
        ("all", states[1][0].mean(0)),
    ):
        found = read_states(vlm, image, QUESTION, text, ["all", reads])[1]
        assert found.shape[0] == len(vlm.parts.layers)
        torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["image", "degraded", "swapped"])
def test_an_artifact_says_where_it_comes_from(kind: Any, vlm: VLM, images: list[Any], tmp_path: Path) -> None:
    artifact = make_artifact(vlm, Nullu, images, pairs=kind, max_new_tokens=16)
    artifact.save(tmp_path / "a.safetensors")
    again = Artifact.load(tmp_path / "a.safetensors")
    assert again.info == artifact.info
    assert again.info.model == "tiny" and again.info.fingerprint == vlm.fingerprint
    assert (again.info.pairs, again.info.pairs_kind) == (4, kind)
    layers = range(len(vlm.parts.layers))
    assert set(again.tensors) == {SAMPLE, *(f"{name}.{i}" for name in ("layer", "published") for i in layers)}
    again.check(vlm.model, "nullu")
    if kind == "image":
        other = make_artifact(vlm, Nullu, images[:3], pairs=kind)
        assert other.info.pairs_hash != artifact.info.pairs_hash


def test_vti_reads_the_last_position_of_text_pairs(vlm: VLM, images: list[Any]) -> None:
    pairs = [TextPair(path, "There is a cup.", f"There is a {word}.") for path, word in zip(images, ("dog", "bus") * 2)]
    artifact = make_artifact(vlm, VTI, pairs)
    assert artifact.info.pairs_kind == "texts"
    states = [
        read_states(vlm, read_image(p.image), QUESTION, p.truthful, ["last"])[0]
        - read_states(vlm, read_image(p.image), QUESTION, p.hallucinated, ["last"])[0]
        for p in pairs
    ]
    torch.testing.assert_close(artifact.layers()[1], torch.stack(states).mean(0)[1], rtol=1e-4, atol=1e-4)


def test_nullu_keeps_the_directions_of_the_text_and_those_of_all_positions(vlm: VLM, images: list[Any]) -> None:
    pairs = [
        TextPair(path, "There is a cup.", f"There is a {word} and a cup.")
        for path, word in zip(images, ("dog", "bus") * 2)
    ]
    artifact = make_artifact(vlm, Nullu, pairs)
    for prefix, reads in (("layer", "caption"), ("published", "all")):
        D = torch.stack(
            [
                read_states(vlm, read_image(p.image), QUESTION, p.truthful, [reads])[0]
                - read_states(vlm, read_image(p.image), QUESTION, p.hallucinated, [reads])[0]
                for p in pairs
            ]
        )[:, -1]
        V = artifact.layers(prefix)[len(vlm.parts.layers) - 1]
        torch.testing.assert_close(D @ V @ V.T, D, rtol=1e-3, atol=1e-4)  # they span the differences
        first = np.linalg.svd(D.double().numpy())[2][0]
        assert abs(float(first @ V[:, 0].double().numpy())) == pytest.approx(1, abs=1e-4)


def test_var_measures_the_dimensions_that_stand_out_in_the_first_token(vlm: VLM, images: list[Any]) -> None:
    artifact = make_artifact(vlm, VAR, images)
    assert (artifact.info.pairs, artifact.info.pairs_kind) == (4, "images")
    sizes = []
    for path in images:
        inputs = vlm.builder.build([vlm.builder.read(read_image(path), QUESTION)], pixels=True)
        with torch.no_grad():
            states = vlm.model(**inputs, output_hidden_states=True).hidden_states
        for layer in range(2, len(vlm.parts.layers) - 1):  # inputs of all layers but the first two and the last
            h = states[layer][0, 0].double().numpy()
            sizes.append(np.abs(h) / np.sqrt((h**2).mean()))
    expected = np.argsort(-np.mean(sizes, 0))[:2]
    assert artifact.tensors["dims"].tolist() == expected.tolist()
    with pytest.raises(ValueError, match="measured on images, not on pairs"):
        make_artifact(vlm, VAR, images, pairs="image")


def test_too_few_pairs_and_broken_files_are_refused(vlm: VLM, images: list[Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only 0 of 2 images make a pair of the kind 'swapped'"):
        make_artifact(vlm, VTI, images[:2], nouns=["zeppelin"], max_new_tokens=4)
    with pytest.raises(ValueError, match="no images"):
        make_artifact(vlm, VTI, [])
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no")
    with pytest.raises(ArtifactError, match="not a readable artifact"):
        Artifact.load(broken)
    with pytest.raises(ArtifactError, match="No such file"):
        Artifact.load(tmp_path / "missing.safetensors")

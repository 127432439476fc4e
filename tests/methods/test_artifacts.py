"""Artifacts are written in one step, and nowhere else than to their own file."""

import copy
import dataclasses
from pathlib import Path

import pytest
import torch

from airvlm.methods.artifacts import SAMPLE, Artifact, ArtifactError, ArtifactInfo, sample_weights
from airvlm.models.loading import fingerprint

INFO = ArtifactInfo("vti", "tiny", "0" * 16, 4, "image", "1" * 16, "0.1.0")


def test_an_artifact_survives_the_round_trip(tmp_path: Path) -> None:
    artifact = Artifact({"layer.0": torch.arange(6.0).view(2, 3).T, "layer.3": torch.ones(3)}, INFO)
    artifact.save(tmp_path / "a.safetensors")
    found = Artifact.load(tmp_path / "a.safetensors")
    assert found.info == INFO
    assert list(found.layers()) == [0, 3]
    assert torch.equal(found.tensors["layer.0"], artifact.tensors["layer.0"])
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_symlink_that_was_left_there_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    folder = tmp_path / "own"
    folder.mkdir()
    for name in ("a.safetensors", "a.safetensors.part", ".a.safetensors.part"):
        (folder / name).symlink_to(victim)
    Artifact({"layer.0": torch.ones(2)}, INFO).save(folder / "a.safetensors")
    assert victim.read_text() == "untouched"
    assert not (folder / "a.safetensors").is_symlink()


def test_an_artifact_suits_the_weights_it_was_made_for_in_any_dtype() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    info = dataclasses.replace(INFO, fingerprint=fingerprint(model))
    artifact = Artifact({SAMPLE: sample_weights(model)}, info)
    artifact.check(model, "vti")
    artifact.check(copy.deepcopy(model).bfloat16(), "vti")
    with pytest.raises(ArtifactError, match="was made for vti, not for nullu"):
        artifact.check(model, "nullu")
    with torch.no_grad():
        model[0].weight.add_(1)
    with pytest.raises(ArtifactError, match=f"was made for tiny \\(fingerprint {info.fingerprint}\\)"):
        artifact.check(model, "vti")

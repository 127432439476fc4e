"""Nullu and CIPHER against their formulas in numpy; the baked weights against the hooks."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.methods.artifacts import Artifact, ArtifactError
from airvlm.methods.nullu import CIPHER, Nullu
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.testing import check_method, small_models
from tests.methods.direct import decoder_layers, finished, forward, rows_with_images, write_artifact
from tests.methods.families import ALL, FEW


def bases(differences: dict[int, Tensor], rank: int) -> dict[int, Tensor]:
    """The first right singular vectors of each layer, by numpy."""
    found = {}
    for layer, D in differences.items():
        _, _, right = np.linalg.svd(D.double().numpy(), full_matrices=False)
        found[layer] = torch.from_numpy(right[:rank].T).float()
    return found


@pytest.mark.parametrize("family", FEW)
def test_nullu_projects_every_feed_forward_output_of_the_upper_half(family: str, tmp_path: Path) -> None:
    path, differences = write_artifact(Nullu, family, tmp_path)
    model, processor = small_models.shared_model(family)
    batch = small_models.build_inputs(processor, rows_with_images())
    V = bases(differences, 4)
    expected = forward(model, batch, ffn=lambda i, y: y - (y @ V[i]) @ V[i].T if i >= 2 else y)
    with Nullu(artifact=path)(model) as run, torch.no_grad():
        found = model(**batch).logits
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert run.report.layers == (2, 3)


def test_faithful_takes_the_directions_of_all_positions(tmp_path: Path) -> None:
    path, _ = write_artifact(Nullu, "llava", tmp_path)
    with pytest.raises(ArtifactError, match=r"fewer than 4 directions \(published\)"):
        Nullu(artifact=path, faithful=True)(small_models.shared_model("llava")[0])
    made = Artifact.load(path)
    other = {i: torch.randn(12, 32, generator=torch.Generator().manual_seed(i)) for i in range(4)}
    published = {name.replace("layer", "published"): value for name, value in Nullu.fit(other).items()}
    Artifact({**made.tensors, **published}, made.info).save(path)
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, rows_with_images())
    V = bases(other, 4)
    expected = forward(model, batch, ffn=lambda i, y: y - (y @ V[i]) @ V[i].T if i >= 2 else y)
    with Nullu(artifact=path, faithful=True)(model), torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, expected, rtol=1e-3, atol=1e-3)


def test_cipher_projects_the_outputs_of_decode_steps_alone(tmp_path: Path) -> None:
    path, differences = write_artifact(CIPHER, "llava", tmp_path)
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, rows_with_images()[:1])
    prompt = batch["input_ids"].shape[1]
    with CIPHER(artifact=path, layers=(1, 4))(model):
        out = model.generate(
            **batch, max_new_tokens=4, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
    V = bases(differences, 8)

    def project(i: int, r: Tensor) -> Tensor:
        new = r - (r @ V[i]) @ V[i].T
        return torch.cat([r[:, :prompt], new[:, prompt:]], 1) if i >= 1 else r

    expected = forward(model, finished(batch, out.sequences), residual=project)[:, prompt - 1 : -1]
    torch.testing.assert_close(torch.stack(out.logits, 1), expected, rtol=1e-3, atol=1e-3)
    with pytest.warns(MethodInactiveWarning, match="second generated token"), CIPHER(artifact=path)(model):
        model.generate(**batch, max_new_tokens=1)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3", "glm4v"])
def test_baked_weights_are_the_hooks(family: str, tmp_path: Path) -> None:
    path, _ = write_artifact(Nullu, family, tmp_path)
    model, processor = small_models.build(family)
    batch = small_models.build_inputs(processor, small_models.sample_rows())
    method = Nullu(artifact=path, rank=6, layers=(1, 4))
    with method(model), torch.no_grad():
        hooks = model(**batch).logits
    plain = forward(model, batch)
    method.bake(model)
    torch.testing.assert_close(forward(model, batch), hooks, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(hooks, plain, atol=1e-2)
    once = copy.deepcopy([layer.mlp.state_dict() for layer in decoder_layers(model)])
    with pytest.raises(ArtifactError, match="was made for"):  # it is another model now
        method.bake(model)
    Nullu(rank=0).bake(model)
    for layer, before in zip(decoder_layers(model), once, strict=True):
        assert all(torch.equal(before[name], value) for name, value in layer.mlp.state_dict().items())


def test_a_mixture_of_experts_is_not_baked_but_hooked(tmp_path: Path) -> None:
    path, _ = write_artifact(Nullu, "qwen3_vl_moe", tmp_path)
    model, _ = small_models.build("qwen3_vl_moe")
    with pytest.raises(TypeError, match="Use the method as a hook"):
        Nullu(artifact=path).bake(model)


def test_what_is_missing_is_said_before_anything_runs(tmp_path: Path) -> None:
    model, _ = small_models.shared_model("llava")
    path, _ = write_artifact(Nullu, "llava", tmp_path, pairs=3)
    with pytest.raises(ArtifactError, match="airvlm calibrate nullu"):
        Nullu()(model)
    with pytest.raises(ArtifactError, match="fewer than 4 directions"):
        Nullu(artifact=path)(model)
    with pytest.raises(ArtifactError, match="made for nullu, not for cipher"):
        CIPHER(artifact=path)(model)
    other, _ = small_models.shared_model("vipllava")
    with pytest.raises(ArtifactError, match="made for llava"):
        Nullu(artifact=path, rank=2)(other)


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("kind", [Nullu, CIPHER])
def test_laws(kind: type[Nullu] | type[CIPHER], family: str, tmp_path: Path) -> None:
    path, _ = write_artifact(kind, family, tmp_path)
    check_method(kind(artifact=path, rank=8), [family])

"""VTI against its formula in numpy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.methods.artifacts import Artifact, ArtifactError
from airvlm.methods.vti import VTI
from airvlm.testing import check_method, small_models
from tests.methods.direct import forward, rows_with_images, write_artifact
from tests.methods.families import ALL, FEW


def turn(y: Tensor, v: Tensor, strength: float) -> Tensor:
    a, b = y.double().numpy(), v.double().numpy()
    length = np.linalg.norm(a, axis=-1, keepdims=True)
    new = a / length + 0.1 * strength * b / np.linalg.norm(b)
    return torch.from_numpy(new / np.linalg.norm(new, axis=-1, keepdims=True) * length).float()


@pytest.mark.parametrize("family", FEW)
def test_states_are_turned_towards_the_mean_difference(family: str, tmp_path: Path) -> None:
    path, differences = write_artifact(VTI, family, tmp_path)
    model, processor = small_models.shared_model(family)
    batch = small_models.build_inputs(processor, rows_with_images())
    expected = forward(model, batch, residual=lambda i, r: turn(r, differences[i].mean(0), 3.0) if i else r)
    with VTI(artifact=path, strength=3.0, layers=(1, 4))(model) as run, torch.no_grad():
        found = model(**batch).logits
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert run.report.layers == (1, 2, 3)


def test_faithful_turns_feed_forward_outputs_towards_mean_and_component(tmp_path: Path) -> None:
    path, differences = write_artifact(VTI, "llava", tmp_path)
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, rows_with_images())
    together = torch.stack(list(differences.values()), 1).double().numpy()  # (n, layers, d)
    flat = together.reshape(len(together), -1)
    component = np.linalg.svd(flat - flat.mean(0))[2][0]
    assert np.linalg.norm(component) == pytest.approx(1)
    component *= np.sign(component @ flat.mean(0))
    d = torch.from_numpy((flat.mean(0) + component).reshape(together.shape[1:])).float()
    expected = forward(model, batch, ffn=lambda i, y: turn(y, d[i], 0.9))
    with VTI(artifact=path, faithful=True)(model), torch.no_grad():
        found = model(**batch).logits
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    with VTI(artifact=path)(model), torch.no_grad():
        assert not torch.allclose(model(**batch).logits, found, atol=1e-2)


def test_an_artifact_is_the_models_own(tmp_path: Path) -> None:
    path, _ = write_artifact(VTI, "llava", tmp_path)
    other, _ = small_models.shared_model("qwen2_vl")
    with pytest.raises(ArtifactError, match="was made for llava"):
        VTI(artifact=path)(other)
    half, _ = small_models.shared_model("llava", dtype=torch.bfloat16)
    VTI(artifact=path)(half)  # the same weights, rounded
    assert Artifact.load(path).info.pairs == 12


@pytest.mark.parametrize("family", ALL)
def test_laws(family: str, tmp_path: Path) -> None:
    path, _ = write_artifact(VTI, family, tmp_path)
    check_method(VTI(artifact=path, strength=3.0), [family])

"""VTI against its formula in numpy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from airvlm.methods.artifacts import Artifact, ArtifactError
from airvlm.methods.composed import Composed
from airvlm.methods.crop_blend import CropBlend
from airvlm.methods.vti import VTI, mask_patches, tower_layers
from airvlm.models.parts import ModelParts
from airvlm.runtime.session import MethodNotApplied
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


# -- the visual half


def write_visual_artifact(family: str, folder: Path) -> str:
    """A file with both halves, the visual one measured on the sample images."""
    path, _ = write_artifact(VTI, family, folder)
    model, processor = small_models.shared_model(family)
    prompts = [small_models.build_inputs(processor, [row]) for row in rows_with_images()]
    made = Artifact.load(path)
    Artifact({**made.tensors, **VTI.measure(ModelParts.of(model), prompts, 5)}, made.info).save(path)
    return path


def test_visual_directions_are_masked_minus_whole_and_turn_the_towers_feed_forwards(tmp_path: Path) -> None:
    model, processor = small_models.shared_model("llava")
    layers = tower_layers(ModelParts.of(model))
    assert len(layers) == model.config.vision_config.num_hidden_layers
    found = VTI.measure(
        ModelParts.of(model), [small_models.build_inputs(processor, [r]) for r in rows_with_images()], 5
    )
    # by hand: the same masks, one pass each, hidden states by transformers
    draw, differences = torch.Generator().manual_seed(5), []
    for row in rows_with_images():
        view = small_models.build_inputs(processor, [row])["pixel_values"][:1]
        masked = [mask_patches(view, 8, draw) for _ in range(50)]
        with torch.no_grad():
            states = [
                torch.stack(model.model.vision_tower(v, output_hidden_states=True).hidden_states)
                for v in [view, *masked]
            ]
        differences.append(torch.stack(states[1:]).mean(0)[:, 0] - states[0][:, 0])  # (layers + 1, K, d)
    together = torch.stack(differences).double().numpy()
    for i in range(len(layers)):
        np.testing.assert_allclose(found[f"vision.{i}"].numpy(), together.mean(0)[i + 1], atol=1e-5)
    pieces = together.reshape(len(together), together.shape[2], -1)  # as the published code cuts them
    for k in range(pieces.shape[1]):
        centered = pieces[:, k] - pieces[:, k].mean(0)
        component = np.linalg.svd(centered, full_matrices=False)[2][0]
        pieces[0, k] = pieces[:, k].mean(0) + component * np.sign(component @ pieces[:, k].mean(0))
    published = pieces[0].reshape(together.shape[1:])
    for i in range(len(layers)):
        np.testing.assert_allclose(found[f"published_vision.{i}"].numpy(), published[i + 1], atol=1e-4)

    path = write_visual_artifact("llava", tmp_path)
    batch = small_models.build_inputs(processor, rows_with_images())
    for faithful, prefix in ((False, "vision"), (True, "published_vision")):
        hooks = []
        for i, layer in enumerate(layers):
            d = found[f"{prefix}.{i}"].double()

            def by_hand(m: nn.Module, args: object, y: Tensor, d: Tensor = d) -> Tensor:
                length = y.double().norm(dim=-1, keepdim=True)
                new = y.double() / length + 0.1 * 2.0 * d / d.norm(dim=-1, keepdim=True)
                return (new / new.norm(dim=-1, keepdim=True) * length).float()

            hooks.append(layer.mlp.register_forward_hook(by_hand))
        with torch.no_grad():
            expected = model(**batch).logits
        for hook in hooks:
            hook.remove()
        method = VTI(artifact=path, strength=0.0, visual_strength=2.0, faithful=faithful)
        with method(model) as run, torch.no_grad():
            seen = model(**batch).logits
        torch.testing.assert_close(seen, expected, rtol=1e-3, atol=1e-3)
        with torch.no_grad():
            assert not torch.allclose(model(**batch).logits, seen, atol=1e-2)
        assert run.report.fired


def test_a_mask_hides_nearly_all_patches() -> None:
    view = torch.arange(3 * 30 * 32, dtype=torch.float32).view(1, 3, 30, 32)
    masked = mask_patches(view, 2, torch.Generator().manual_seed(0))
    mean = view.mean((2, 3), keepdim=True).expand_as(view)
    assert int((masked == mean).all(1).sum()) == 4 * int(0.99 * 15 * 16)
    assert torch.equal(masked[masked != mean], view[masked != mean])


def test_the_visual_half_is_refused_where_it_cannot_act(tmp_path: Path) -> None:
    model, processor = small_models.shared_model("qwen2_5_vl")
    path = write_visual_artifact("qwen2_5_vl", tmp_path)
    with pytest.raises(ArtifactError, match="no directions for the vision tower of qwen2_5_vl"):
        with VTI(artifact=path, visual_strength=0.9)(model):
            pass
    model, processor = small_models.shared_model("llava")
    path = write_visual_artifact("llava", tmp_path)
    batch = small_models.build_inputs(processor, rows_with_images())
    with torch.no_grad():
        features = model.model.get_image_features(batch.pop("pixel_values"), return_dict=True).pooler_output
    encoded = {"image": BaseModelOutputWithPooling(pooler_output=features)}
    with pytest.raises(MethodNotApplied, match="encoded beforehand"):
        with VTI(artifact=path, visual_strength=0.9)(model):
            model.generate(**batch, mm_encoder_outputs=encoded, max_new_tokens=2)


def test_crops_that_are_kept_for_later_calls_are_not_steered(tmp_path: Path) -> None:
    model, processor = small_models.build("llava")  # nothing is kept yet
    path = write_visual_artifact("llava", tmp_path)
    rows = rows_with_images()
    batch = small_models.build_inputs(processor, rows)
    images = [own for _, own in rows]
    blend = CropBlend(num_crops=3, weight=0.5)
    with Composed(VTI(artifact=path, visual_strength=3.0), blend)(model, processor, images=images), torch.no_grad():
        model(**batch)
    with blend(model, processor, images=images), torch.no_grad():
        after = model(**batch).logits
    fresh, processor = small_models.build("llava")
    with blend(fresh, processor, images=images), torch.no_grad():
        assert torch.equal(fresh(**batch).logits, after)


FIXED = ("llava", "vipllava", "paligemma", "gemma3", "llava_next", "llava_onevision", "internvl", "idefics3", "smolvlm")


@pytest.mark.parametrize("family", [FIXED[0], *(pytest.param(f, marks=pytest.mark.exhaustive) for f in FIXED[1:])])
def test_laws_of_the_visual_half(family: str, tmp_path: Path) -> None:
    path = write_visual_artifact(family, tmp_path)
    check_method(VTI(artifact=path, strength=2.0, visual_strength=3.0), [family])


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

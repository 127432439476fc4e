"""What the plug-in does to visual tokens is what crop-blend does to them in transformers."""

import pytest
import torch

from airvlm import VLM, CropBlend
from airvlm.inputs.images import load_image
from airvlm.integrations.vllm.evidence import blend_crops, cut_crops, group_images
from airvlm.tiny import scenes

METHODS = [
    CropBlend(),
    CropBlend(weight=0.6, keep=3),
    CropBlend(num_prototypes=24, match="softmax"),
    CropBlend(match="geometry", keep=2),
    CropBlend(crop_layout="random", num_crops=5, crop_seed=3),
]


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


def _embeddings(vlm: VLM, image, method) -> torch.Tensor:
    """The visual rows of the decoder's input."""
    kept = []
    inputs = vlm.builder.build([vlm.builder.read(image, "What?")], pixels=True)
    layer = vlm.parts.layers[0]
    with torch.no_grad(), method(vlm.model, vlm.processor, images=[image]):
        handle = layer.register_forward_pre_hook(lambda module, given: kept.append(given[0]))
        vlm.model(**inputs)
        handle.remove()
    return kept[0][inputs["input_ids"] == vlm.parts.image_token_id]


def _encode(vlm: VLM, images) -> list[torch.Tensor]:
    return vlm.parts.encode(vlm.parts.pixels(vlm.processor, images))


@pytest.mark.slow
def test_the_tokens_are_those_of_the_decoders_input(vlm):
    images = [load_image(scene.path) for scene in scenes("test")[:2]]
    images[1] = images[1].crop((0, 0, 300, 180)).resize((2400, 1440))  # large: cropped from a reduced copy
    for image in images:
        [z] = _encode(vlm, [image])
        for method in METHODS:
            [new] = blend_crops([z], [_encode(vlm, cut_crops(image, method, vlm.processor))], [image.size], [method])
            assert new is not None
            assert not torch.equal(new, z)
            torch.testing.assert_close(new, _embeddings(vlm, image, method), atol=1e-5, rtol=1e-4)


def test_images_of_different_methods_together_equal_each_alone(vlm):
    images = [load_image(scene.path) for scene in scenes("test")[:5]]
    Z = _encode(vlm, images)
    crops = [_encode(vlm, cut_crops(image, method, vlm.processor)) for image, method in zip(images, METHODS)]
    sizes = [image.size for image in images]
    together = blend_crops(Z, crops, sizes, METHODS)
    for i, new in enumerate(together):
        [alone] = blend_crops([Z[i]], [crops[i]], [sizes[i]], [METHODS[i]])
        torch.testing.assert_close(new, alone)


def test_without_a_crop_that_is_kept_nothing_changes(vlm):
    image = load_image(scenes("test")[0].path)
    [z] = _encode(vlm, [image])
    for method in (CropBlend(num_crops=0), CropBlend(keep=0)):
        crops = _encode(vlm, cut_crops(image, method, vlm.processor)) if method.num_crops else []
        assert blend_crops([z], [crops], [image.size], [method]) == [None]


def test_images_share_calls_of_the_encoder_as_far_as_they_hold_their_crops():
    assert group_images([4, 4, 4], 45) == [[0, 1, 2]]  # all beside the images themselves
    assert group_images([4, 4, 4], 9, 48) == [[0, 1], [2]]
    assert group_images([4, 4, 4], 3, 8) == [[], [0, 1], [2]]
    assert group_images([12, 4, 4], 0, 8) == [[], [0], [1, 2]]  # too many for one call: alone
    assert group_images([0, 0], 0) == [[0, 1]]

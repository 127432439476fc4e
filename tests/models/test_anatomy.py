"""The parts of every family are found by transformers' own accessors, and what cannot be found is said."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText

from airvlm.models.parts import FAMILIES, ModelParts, UnsupportedModel
from tests import tiny_models

families = pytest.mark.parametrize("family", tiny_models.FAMILIES)


def decoder_inputs(model: nn.Module, decoder: nn.Module, batch: Any) -> torch.Tensor:
    """What the decoder reads, (B, L, d), seen from outside."""
    seen: list[torch.Tensor] = []
    handle = decoder.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["inputs_embeds"].clone()), with_kwargs=True
    )
    with torch.no_grad():
        model(**batch)
    handle.remove()
    return seen[0]


def test_every_supported_family_is_tested() -> None:
    assert set(FAMILIES) == set(tiny_models.FAMILIES)


@families
def test_parts_are_found(family: str) -> None:
    model, _ = tiny_models.shared(family)
    parts = ModelParts.of(model)
    assert parts.family == family
    assert parts.model is model
    assert parts.decoder is model.get_decoder()
    assert len(parts.layers) == len(parts.ffns) == tiny_models.LAYERS
    assert all(ffn is layer.mlp for ffn, layer in zip(parts.ffns, parts.layers, strict=True))
    assert parts.norm is model.get_decoder().norm
    assert parts.head is model.lm_head
    assert parts.image_token_id == tiny_models.IMAGE
    assert parts.hidden_size == tiny_models.WIDTH


@families
def test_encoded_images_are_what_the_decoder_reads(family: str) -> None:
    model, processor = tiny_models.shared(family)
    parts = ModelParts.of(model)
    batch = tiny_models.inputs(processor, tiny_models.rows())
    Z = decoder_inputs(model, parts.decoder, batch)[batch["input_ids"] == parts.image_token_id]
    images = {name: value for name, value in batch.items() if "ids" not in name}
    torch.testing.assert_close(torch.cat(parts.encode(images)), Z, rtol=0, atol=0)


@families
def test_one_tensor_an_image_and_each_as_if_alone(family: str) -> None:
    model, processor = tiny_models.shared(family)
    parts = ModelParts.of(model)
    images = [tiny_models.sample_image(seed, size) for seed, size in enumerate([(48, 40), (20, 30), (40, 64)])]
    together = parts.encode(parts.pixels(processor, images))
    assert [z.ndim for z in together] == [2, 2, 2]
    assert {z.shape[1] for z in together} == {tiny_models.WIDTH}
    for image, z in zip(images, together, strict=True):
        (alone,) = parts.encode(parts.pixels(processor, [image]))
        torch.testing.assert_close(z, alone, rtol=1e-4, atol=1e-4)
    assert not torch.equal(together[0][:4], together[1][:4])


def test_the_tiles_of_an_image_are_gathered() -> None:
    model, processor = tiny_models.shared("internvl")
    parts = ModelParts.of(model)
    tiled = processor.image_processor(
        [tiny_models.sample_image(0, (40, 64)), tiny_models.sample_image(1)], return_tensors="pt"
    )
    tiled["tiles"] = torch.as_tensor(tiled.pop("num_patches"))
    assert [len(z) for z in parts.encode(tiled)] == [16 * n for n in tiled["tiles"].tolist()] == [48, 16]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_pixels_take_the_models_dtype(dtype: torch.dtype) -> None:
    model, processor = tiny_models.shared("llava", dtype=dtype)
    parts = ModelParts.of(model)
    (z,) = parts.encode(parts.pixels(processor, [tiny_models.sample_image(0)]))
    assert z.dtype == dtype


def test_an_image_processor_alone_serves() -> None:
    model, processor = tiny_models.shared("llava")
    parts = ModelParts.of(model)
    pixels = parts.pixels(processor.image_processor, [tiny_models.sample_image(0)])
    assert pixels["pixel_values"].shape == (1, 3, tiny_models.VIEW, tiny_models.VIEW)
    with pytest.raises(ValueError, match="processor"):
        parts.pixels(None, [tiny_models.sample_image(0)])


def test_wrappers_are_looked_through() -> None:
    model, _ = tiny_models.shared("llava")
    assert ModelParts.of(torch.compile(model)).model is model
    peft = pytest.importorskip("peft", reason="PEFT is an extra")
    own, _ = tiny_models.build("llava")
    wrapped = peft.get_peft_model(own, peft.LoraConfig(target_modules=["q_proj"], r=2))
    assert ModelParts.of(wrapped).model is own


def test_an_unknown_model_says_what_to_pass_by_hand() -> None:
    with pytest.raises(UnsupportedModel, match=r"'Linear'.*ModelParts\(family="):
        ModelParts.of(nn.Linear(2, 2))


def test_a_model_without_image_tokens_is_refused() -> None:
    config = AutoConfig.for_model("mllama")
    with torch.device("meta"):
        config.text_config.num_hidden_layers = config.vision_config.num_hidden_layers = 1
        config.vision_config.num_global_layers = 1
        config.text_config.cross_attention_layers = []
        model = AutoModelForImageTextToText.from_config(config)
    with pytest.raises(UnsupportedModel, match="no image tokens"):
        ModelParts.of(model)


def test_a_headless_model_is_refused() -> None:
    model, _ = tiny_models.shared("llava")
    with pytest.raises(UnsupportedModel, match="AutoModelForImageTextToText"):
        ModelParts.of(model.base_model)


def test_a_model_without_an_image_token_id_is_refused() -> None:
    model, _ = tiny_models.build("llava")
    model.config.image_token_id = None
    with pytest.raises(UnsupportedModel, match="image_token_id"):
        ModelParts.of(model)


def test_an_anatomy_by_hand_is_taken_as_it_is() -> None:
    d = 4
    decoder = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(d, d)]), "norm": nn.LayerNorm(d)})
    parts = ModelParts(
        family="mine",
        model=decoder,
        decoder=decoder,
        layers=decoder["layers"],
        ffns=list(decoder["layers"]),
        norm=decoder["norm"],
        head=nn.Linear(d, 8),
        image_token_id=7,
        hidden_size=d,
        encode=lambda inputs: list(inputs["pixel_values"]),
    )
    assert len(parts.encode({"pixel_values": torch.zeros(2, 3, d)})) == 2


def test_a_family_may_bring_an_anatomy_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = tiny_models.shared("llava")
    usual = ModelParts.of(model)
    own = dataclasses.replace(usual, hidden_size=7)
    row = dataclasses.replace(FAMILIES["llava"], parts=lambda given: own if given is model else None)
    monkeypatch.setitem(FAMILIES, "llava", row)
    assert ModelParts.of(model) is own
    monkeypatch.setitem(FAMILIES, "llava", dataclasses.replace(row, parts=lambda given: "parts"))
    with pytest.raises(UnsupportedModel, match="gave str, no ModelParts"):
        ModelParts.of(model)


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_the_layout_of_pixels_is_what_the_family_says(family: str) -> None:
    _, processor = tiny_models.shared(family)
    inputs = tiny_models.inputs(processor, [("USER: <image> what ASSISTANT:", [tiny_models.sample_image(1)])])
    assert ("image_grid_thw" in inputs) is (FAMILIES[family].layout == "patches")
    if FAMILIES[family].layout == "images":
        assert inputs["pixel_values"].shape[0] == 1 and inputs["pixel_values"].ndim == 4

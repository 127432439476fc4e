"""The parts of every family are found by transformers' own accessors; an error says what could not be found."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, LlavaNextProcessor

from airvlm.methods import CropBlend
from airvlm.models import families as known
from airvlm.models.parts import ModelParts, UnsupportedModel, check_processor
from airvlm.testing import check_family, small_models
from airvlm.testing.small_models import sample_image
from airvlm.vlm import VLM
from tests.all_families import FAMILIES
from tests.checkpoints import TEMPLATE, save_llava

every_family = pytest.mark.parametrize("family", FAMILIES)


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
    assert set(known.FAMILIES.own) == set(FAMILIES)


@every_family
def test_parts_are_found(family: str) -> None:
    model, _ = small_models.shared_model(family)
    parts = ModelParts.of(model)
    assert parts.family == family
    assert parts.model is model
    assert parts.decoder is model.get_decoder()
    assert len(parts.layers) == len(parts.ffns) == small_models.LAYERS
    assert all(ffn is layer.mlp for ffn, layer in zip(parts.ffns, parts.layers, strict=True))
    assert parts.norm is model.get_decoder().norm
    assert parts.head is model.lm_head
    assert parts.image_token_id == small_models.IMAGE
    assert parts.hidden_size == small_models.WIDTH


@every_family
def test_encoded_images_are_what_the_decoder_reads(family: str) -> None:
    model, processor = small_models.shared_model(family)
    parts = ModelParts.of(model)
    batch = small_models.build_inputs(processor, small_models.sample_rows())
    Z = decoder_inputs(model, parts.decoder, batch)[batch["input_ids"] == parts.image_token_id]
    images = {name: value for name, value in batch.items() if "ids" not in name}
    torch.testing.assert_close(torch.cat(parts.encode(images)), Z, rtol=0, atol=0)


@every_family
def test_each_image_is_encoded_into_one_tensor_as_if_it_were_alone(family: str) -> None:
    model, processor = small_models.shared_model(family)
    parts = ModelParts.of(model)
    images = [sample_image(seed, size) for seed, size in enumerate([(48, 40), (20, 30), (40, 64)])]
    together = parts.encode(parts.pixels(processor, images))
    assert [z.ndim for z in together] == [2, 2, 2]
    assert {z.shape[1] for z in together} == {small_models.WIDTH}
    for image, z in zip(images, together, strict=True):
        (alone,) = parts.encode(parts.pixels(processor, [image]))
        torch.testing.assert_close(z, alone, rtol=1e-4, atol=1e-4)
    assert not torch.equal(together[0][:4], together[1][:4])


def test_the_tiles_of_an_image_are_gathered() -> None:
    model, processor = small_models.shared_model("internvl")
    parts = ModelParts.of(model)
    tiled = processor.image_processor([sample_image(0, (40, 64)), sample_image(1)], return_tensors="pt")
    tiled["tiles"] = torch.as_tensor(tiled.pop("num_patches"))
    assert [len(z) for z in parts.encode(tiled)] == [16 * n for n in tiled["tiles"].tolist()] == [48, 16]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_pixels_take_the_models_dtype(dtype: torch.dtype) -> None:
    model, processor = small_models.shared_model("llava", dtype=dtype)
    parts = ModelParts.of(model)
    (z,) = parts.encode(parts.pixels(processor, [sample_image(0)]))
    assert z.dtype == dtype


def test_an_image_processor_alone_is_enough() -> None:
    model, processor = small_models.shared_model("llava")
    parts = ModelParts.of(model)
    pixels = parts.pixels(processor.image_processor, [sample_image(0)])
    assert pixels["pixel_values"].shape == (1, 3, small_models.VIEW, small_models.VIEW)
    with pytest.raises(ValueError, match="processor"):
        parts.pixels(None, [sample_image(0)])


def test_wrappers_of_torch_compile_and_peft_are_taken_off() -> None:
    model, _ = small_models.shared_model("llava")
    assert ModelParts.of(torch.compile(model)).model is model
    peft = pytest.importorskip("peft", reason="PEFT is an extra")
    own, _ = small_models.build("llava")
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


def test_a_model_without_a_head_is_refused() -> None:
    model, _ = small_models.shared_model("llava")
    with pytest.raises(UnsupportedModel, match="AutoModelForImageTextToText"):
        ModelParts.of(model.base_model)


def test_a_model_without_an_image_token_id_is_refused() -> None:
    model, _ = small_models.build("llava")
    model.config.image_token_id = None
    with pytest.raises(UnsupportedModel, match="image_token_id"):
        ModelParts.of(model)


def test_parts_given_by_hand_are_used_as_they_are() -> None:
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


def test_a_family_may_find_its_parts_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = small_models.shared_model("llava")
    usual = ModelParts.of(model)
    own = dataclasses.replace(usual, hidden_size=7)
    row = dataclasses.replace(known.FAMILIES["llava"], parts=lambda given: own if given is model else None)
    monkeypatch.setitem(known.FAMILIES, "llava", row)
    assert ModelParts.of(model) is own
    monkeypatch.setitem(known.FAMILIES, "llava", dataclasses.replace(row, parts=lambda given: "parts"))
    with pytest.raises(UnsupportedModel, match="returned str, not ModelParts"):
        ModelParts.of(model)


@every_family
def test_the_layout_of_pixels_is_what_the_family_says(family: str) -> None:
    _, processor = small_models.shared_model(family)
    inputs = small_models.build_inputs(processor, [("USER: <image> what ASSISTANT:", [sample_image(1)])])
    assert ("image_grid_thw" in inputs) is (known.FAMILIES[family].layout == "patches")
    if known.FAMILIES[family].layout == "images":
        assert inputs["pixel_values"].shape[0] == 1 and inputs["pixel_values"].ndim == 4


@every_family
def test_every_family_keeps_the_laws_of_families(family: str) -> None:
    assert len(check_family(family)) == 7


@every_family
def test_heads_and_attention_of_every_layer_are_found(family: str) -> None:
    parts = ModelParts.of(small_models.shared_model(family)[0])
    assert len(parts.attentions) == len(parts.output_projections) == small_models.LAYERS
    assert [parts.num_heads(layer) for layer in range(small_models.LAYERS)] == [4] * small_models.LAYERS


# -- is it the model's processor?


def test_a_tokenizer_in_place_of_the_processor_is_refused_in_one_line() -> None:
    model, processor = small_models.shared_model("llava")
    tokenizer = processor.tokenizer
    for use in (lambda: VLM(model, tokenizer), lambda: CropBlend()(model, tokenizer)):
        with pytest.raises(
            ValueError, match=r"is a tokenizer, not the processor of llava\. Pass the model's"
        ) as caught:
            use()
        assert "\n" not in str(caught.value)


def test_the_processor_of_another_family_is_refused_in_one_line(tmp_path: Path) -> None:
    model, _ = small_models.shared_model("llava")
    own = AutoProcessor.from_pretrained(save_llava(tmp_path / "llava"))
    check_processor(own, ModelParts.of(model))
    other = LlavaNextProcessor(own.image_processor, own.tokenizer, patch_size=8, chat_template=TEMPLATE)
    for use in (lambda: VLM(model, other), lambda: CropBlend()(model, other)):
        message = "LlavaNextProcessor is the processor of llava_next, not of llava. Pass the model's own"
        with pytest.raises(ValueError, match=message) as caught:
            use()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("family", "other"), [("llava", "qwen2_5_vl"), ("qwen2_5_vl", "llava"), ("glm4v", "gemma3")])
def test_an_image_processor_for_another_layout_is_refused_in_one_line(family: str, other: str) -> None:
    model, own = small_models.shared_model(family)
    _, processor = small_models.shared_model(other)
    check_processor(own, ModelParts.of(model))
    message = rf"ImageProcessor(Pil)? prepares images for .*{other}.*, not for {family}\. Pass the model's own"
    for given in (processor, processor.image_processor):
        for use in (lambda: VLM(model, given), lambda: CropBlend()(model, given)):  # noqa: B023  # called at once
            with pytest.raises(ValueError, match=message) as caught:
                use()
            assert "\n" not in str(caught.value)


def test_a_processor_with_another_image_token_is_refused() -> None:
    model, _ = small_models.shared_model("llava")
    _, other = small_models.build("qwen2_5_vl")
    other.image_token_id = 9
    with pytest.raises(ValueError, match="its image token is 9, the model's is 4"):
        VLM(model, other)


def test_processors_of_relatives_with_the_same_layout_are_accepted(tmp_path: Path) -> None:
    own = AutoProcessor.from_pretrained(save_llava(tmp_path / "llava"))
    check_processor(own, ModelParts.of(small_models.shared_model("vipllava")[0]))
    check_processor(None, ModelParts.of(small_models.shared_model("vipllava")[0]))
    check_processor(own.image_processor, ModelParts.of(small_models.shared_model("llava")[0]))

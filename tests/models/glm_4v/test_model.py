"""GLM-4V computes what the original computes, and does right where the original goes wrong."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from airvlm import models
from airvlm.models.glm_4v.model import Glm4VForConditionalGeneration, image_positions
from tests.models.ported import golden_cases as golden
from tests.models.ported import tiny_checkpoints as tiny

FEATURES, STATES = 2e-6, 5e-5  # tolerances of the golden README
cases = pytest.mark.parametrize("name", golden.names("glm_4v"))


@cache
def golden_model(name: str) -> Any:
    models.register()
    changed = golden.meta("glm_4v")[name].get("config_override", {})
    return Glm4VForConditionalGeneration.from_pretrained(golden.folder("glm_4v"), **changed).eval()


def expanded(ids: Tensor, mask: Tensor, model: Any) -> dict[str, Tensor]:
    """The official three ids an image -> one id for each row, as the processor writes them; left-padded."""
    config, rows = model.config, []
    for row, real in zip(ids.tolist(), mask.tolist()):
        own = [token for token, seen in zip(row, real) if seen]
        if config.boi_token_id in own:
            at = own.index(config.boi_token_id) + 1
            own[at : at + 1] = [config.image_token_id] * config.num_image_tokens
        rows.append(own)
    length = max(map(len, rows))
    pads = [length - len(row) for row in rows]
    return {
        "input_ids": torch.tensor([[config.pad_token_id] * n + row for n, row in zip(pads, rows)]),
        "attention_mask": torch.tensor([[0] * n + [1] * len(row) for n, row in zip(pads, rows)]),
    }


def inputs(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    case = golden.case("glm_4v", name)
    given = expanded(case["input_ids"], case["attention_mask"], golden_model(name))
    if "pixel_values" in case:
        given["pixel_values"] = case["pixel_values"]
    return given, case


@cases
def test_every_layer_equals_the_original(name: str) -> None:
    given, case = inputs(name)
    model = golden_model(name)
    seen = golden.run(model, model.get_decoder(), **given)
    for key, ours in seen.items():
        if key in case:
            golden.close(ours, case[key], given["attention_mask"], STATES)
    assert {"logits", "mlp_out.0", "layer_out.3"} <= seen.keys() & case.keys()


@cases
def test_positions_equal_the_original(name: str) -> None:
    given, case = inputs(name)
    if "expanded_position_ids" not in case:
        pytest.skip("a case without positions")
    is_image = given["input_ids"] == golden_model(name).config.image_token_id
    ours = image_positions(is_image, given["attention_mask"])
    assert torch.equal(ours, case["expanded_position_ids"])


@cases
def test_image_features_equal_the_original(name: str) -> None:
    given, case = inputs(name)
    if "pixel_values" not in given:
        pytest.skip("a case without images")
    model = golden_model(name)
    whole = model.model.visual(given["pixel_values"]).pooler_output
    torch.testing.assert_close(whole, case["image_features"], rtol=0, atol=FEATURES)
    rows = model.get_image_features(given["pixel_values"]).pooler_output
    assert torch.equal(torch.stack(rows), whole[:, 1:-1])  # without the two learned rows around an image


@cases
@pytest.mark.parametrize("cache", [{}, {"use_cache": False}, {"cache_implementation": "static"}], ids=str)
def test_greedy_tokens_equal_the_original_with_every_cache(name: str, cache: dict[str, Any]) -> None:
    given, case = inputs(name)
    assert generate(golden_model(name), given, **cache).tolist() == case["generated"].tolist()


def generate(model: Any, given: dict[str, Tensor], tokens: int = 8, **options: Any) -> Tensor:
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": tokens}
    ids: Tensor = model.generate(**given, **{**settings, **options})
    return ids[:, given["input_ids"].shape[1] :]


def shown(model: Any, images: list[bool]) -> dict[str, Tensor]:
    """A left-padded batch of random text; some rows have an image."""
    draw = torch.Generator().manual_seed(4)
    config, rows = model.config, []
    triple = [config.boi_token_id, config.pad_token_id, config.eoi_token_id]
    for i, has in enumerate(images):
        ids = torch.randint(0, 200, (9 + 4 * i,), generator=draw).tolist()
        rows.append(ids[:3] + triple * has + ids[3:])
    length = max(map(len, rows))
    ids = torch.tensor([[0] * (length - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows])
    given = expanded(ids, mask, model)
    if any(images):
        given["pixel_values"] = torch.randn(sum(images), 3, 32, 32, generator=draw)
    return given


@pytest.mark.parametrize(
    "images", [[False, False, False], [True, False, True], [True, True]], ids=["text", "mixed", "images"]
)
@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"num_beams": 3}], ids=str)
def test_a_batch_equals_its_rows(images: list[bool], options: dict[str, Any]) -> None:
    model = tiny.model("chatglm")
    batch = shown(model, images)
    together = generate(model, batch, **options)
    for i, has in enumerate(images):
        ids = batch["input_ids"][i][batch["attention_mask"][i].bool()][None]
        alone = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if has:
            first = sum(images[:i])
            alone["pixel_values"] = batch["pixel_values"][first : first + 1]
        assert generate(model, alone, **options)[0].tolist() == together[i].tolist()


@torch.no_grad()
def test_a_hand_written_loop_over_a_cache_goes_on_after_the_image() -> None:
    model = tiny.model("chatglm")
    given = shown(model, [True])
    wanted = generate(model, given)
    out = model(**given, use_cache=True)
    said = []
    for _ in range(8):
        token = out.logits[:, -1:].argmax(-1)
        said.append(token)
        out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
    assert torch.cat(said, dim=1).tolist() == wanted.tolist()


@torch.no_grad()
def test_without_a_mask_a_prompt_is_one_sequence() -> None:
    model = tiny.model("chatglm")
    given = shown(model, [True])
    masked = model(**given, use_cache=False).logits
    assert torch.equal(model(**{**given, "attention_mask": None}, use_cache=False).logits, masked)


def test_images_and_places_must_agree() -> None:
    model = tiny.model("chatglm")
    given = shown(model, [True])
    with pytest.raises(ValueError, match=r"16 ids .* but 2 images give 32"):
        model(**{**given, "pixel_values": given["pixel_values"].repeat(2, 1, 1, 1)})


def test_another_image_size_is_refused() -> None:
    with pytest.raises(ValueError, match="positions for 64 patches and got 256"):
        tiny.model("chatglm").get_image_features(torch.zeros(1, 3, 64, 64))


@pytest.mark.parametrize("field", ["add_bias_linear", "fp32_residual_connection"])
def test_a_configuration_of_another_model_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}=True is not supported"):
        tiny.model("chatglm", **{field: True})


def test_the_norm_multiplies_before_it_casts() -> None:
    model = tiny.model("chatglm").to(torch.bfloat16)
    norm = model.get_decoder().norm
    with torch.no_grad():
        norm.weight.normal_(1.0, 0.2)
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    exact = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
    assert torch.equal(norm(x), (norm.weight.float() * exact).to(torch.bfloat16))

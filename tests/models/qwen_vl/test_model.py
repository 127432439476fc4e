"""Qwen-VL computes what the original computes, and does right where the original goes wrong."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from airvlm import CropBlend, models
from airvlm.models.ported.processing import SquareImageProcessor
from airvlm.models.qwen_vl.model import QwenVLForConditionalGeneration
from airvlm.testing.small_models import sample_image
from tests.models.ported import golden_cases as golden
from tests.models.ported import tiny_checkpoints as tiny

PAD = 256  # <|endoftext|> of the golden vocabulary
FEATURES, STATES = 2e-6, 3e-5  # tolerances of the golden README
cases = pytest.mark.parametrize("name", golden.names("qwen_vl"))


@cache
def golden_model() -> Any:
    models.register()
    return QwenVLForConditionalGeneration.from_pretrained(golden.folder("qwen_vl")).eval()


def inputs(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """A case's model inputs, all its tensors, and the rows to compare."""
    case = golden.case("qwen_vl", name)
    given = {k: case[k] for k in ("input_ids", "attention_mask", "pixel_values") if k in case}
    rows = case["attention_mask"].clone()
    if golden.meta("qwen_vl")[name].get("ntk_alpha", 1.0) > 1:
        # In a padded long batch the original counts the padding: only rows without any are right in it.
        rows[(rows == 0).any(dim=1)] = 0
    return given, case, rows


@cases
def test_every_layer_equals_the_original(name: str) -> None:
    given, case, rows = inputs(name)
    model = golden_model()
    seen = golden.run(model, model.get_decoder(), **given)
    for key, ours in seen.items():
        if key in case:
            golden.close(ours, case[key], rows, STATES)
    assert {"logits", "mlp_out.0", "layer_out.3"} <= seen.keys() & case.keys()


@cases
def test_image_features_equal_the_original(name: str) -> None:
    given, case, _ = inputs(name)
    if "pixel_values" not in given:
        pytest.skip("a case without images")
    features = golden_model().get_image_features(given["pixel_values"]).pooler_output
    torch.testing.assert_close(torch.stack(features), case["image_features"], rtol=0, atol=FEATURES)


@cases
@pytest.mark.parametrize("cache", [{}, {"use_cache": False}, {"cache_implementation": "static"}], ids=str)
def test_greedy_tokens_equal_the_original_with_every_cache(name: str, cache: dict[str, Any]) -> None:
    given, case, rows = inputs(name)
    said = generate(golden_model(), given, **cache)
    right = rows.any(dim=1)
    assert said[right].tolist() == case["generated"][right].tolist()


def generate(model: Any, given: dict[str, Tensor], tokens: int = 8, **options: Any) -> Tensor:
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": PAD, "max_new_tokens": tokens}
    ids: Tensor = model.generate(**given, **{**settings, **options})
    return ids[:, given["input_ids"].shape[1] :]


def padded(rows: list[Tensor], pad: int) -> dict[str, Tensor]:
    """Rows of ids -> a left-padded batch."""
    length = max(map(len, rows))
    ids = torch.full((len(rows), length), pad)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, length - len(row) :], mask[i, length - len(row) :] = row, 1
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(20, 7), (100, 23), (130, 64, 65)])
def test_a_padded_row_equals_the_row_alone_also_beyond_seq_length(lengths: tuple[int, ...]) -> None:
    model = tiny.model("qwen", seq_length=64)
    torch.manual_seed(1)
    rows = [torch.randint(0, 200, (n,)) for n in lengths]
    batch = padded(rows, PAD)
    with torch.no_grad():
        together = model(**batch).logits
        for i, row in enumerate(rows):
            alone = model(input_ids=row[None]).logits[0]
            torch.testing.assert_close(together[i, -len(row) :], alone, rtol=1e-4, atol=1e-4)
    said = generate(model, batch)
    for i, row in enumerate(rows):
        assert said[i].tolist() == generate(model, {"input_ids": row[None]})[0].tolist()


@pytest.mark.slow
@torch.no_grad()
def test_the_prompt_decides_the_rotary_base_with_and_without_a_cache() -> None:
    model = tiny.model("qwen", seq_length=16)
    ids = torch.randint(0, 200, (2, 14), generator=torch.Generator().manual_seed(2))
    cached = generate(model, {"input_ids": ids}, 12)
    assert generate(model, {"input_ids": ids}, 12, use_cache=False).tolist() == cached.tolist()
    assert generate(model, {"input_ids": ids}, 12, cache_implementation="static").tolist() == cached.tolist()
    # a hand-written loop that passes nothing but the cache
    past, said, token = None, [], ids
    for _ in range(12):
        out = model(input_ids=token, past_key_values=past, use_cache=True)
        past, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
        said.append(token)
    assert torch.cat(said, dim=1).tolist() == cached.tolist()
    # read anew as one prompt, the longer text has another base
    whole = torch.cat([ids, cached], dim=1)
    assert not torch.allclose(model(input_ids=whole).logits[:, -1], out.logits[:, -1], atol=1e-2)


@torch.no_grad()
def test_neither_long_rule_acts_in_training_mode() -> None:
    model = tiny.model("qwen", seq_length=16)
    plain = tiny.model("qwen", seq_length=16, use_dynamic_ntk=False, use_logn_attn=False)
    ids = torch.randint(0, 200, (1, 40), generator=torch.Generator().manual_seed(3))
    assert not torch.allclose(model(input_ids=ids).logits, plain(input_ids=ids).logits, atol=1e-2)
    assert torch.equal(model.train()(input_ids=ids).logits, plain.train()(input_ids=ids).logits)


def shown(model: Any, rows: list[list[int]]) -> dict[str, Tensor]:
    """A left-padded batch of random text with as many images a row as `rows` lists, each at its place."""
    draw = torch.Generator().manual_seed(4)
    start, pad = model.config.image_start_id, model.config.image_token_id
    span = [start, *[pad] * model.config.num_image_tokens, start + 1]
    made, count = [], 0
    for places in rows:
        ids = torch.randint(0, 200, (12 + 3 * len(made),), generator=draw).tolist()
        for place in sorted(places, reverse=True):
            ids[place:place] = span
        count += len(places)
        made.append(torch.tensor(ids))
    pixels = torch.randn(count, 3, 64, 64, generator=draw)
    return {**padded(made, 0), "pixel_values": pixels} if count else padded(made, 0)


def test_images_in_a_batch_reach_their_own_rows() -> None:
    model = tiny.model("qwen")
    batch = shown(model, [[2], [], [0, 5], [3]])
    together = generate(model, batch, output_logits=True, return_dict_in_generate=False)
    counts = [1, 0, 2, 1]
    for i, count in enumerate(counts):
        first = sum(counts[:i])
        mask = batch["attention_mask"][i].bool()
        alone = {"input_ids": batch["input_ids"][i][mask][None]}
        if count:
            alone["pixel_values"] = batch["pixel_values"][first : first + count]
        assert generate(model, alone)[0].tolist() == together[i].tolist()


def test_beams_carry_every_images_rows() -> None:
    model = tiny.model("qwen")
    batch = shown(model, [[2], [], [0, 5]])
    together = generate(model, batch, num_beams=3)
    mask = batch["attention_mask"][2].bool()
    alone = {"input_ids": batch["input_ids"][2][mask][None], "pixel_values": batch["pixel_values"][1:]}
    assert generate(model, alone, num_beams=3)[0].tolist() == together[2].tolist()


def test_images_and_places_must_agree() -> None:
    model = tiny.model("qwen")
    batch = shown(model, [[2]])
    with pytest.raises(ValueError, match="16 ids between <img> and </img>, but 2 images give 32 visual tokens"):
        model(**{**batch, "pixel_values": batch["pixel_values"].repeat(2, 1, 1, 1)})


@torch.no_grad()
def test_the_ids_inside_a_span_do_not_matter() -> None:
    model = tiny.model("qwen")
    batch = shown(model, [[2]])
    other = batch["input_ids"].clone()
    other[other == model.config.image_token_id] = 65  # the original writes the bytes of a path there
    assert torch.equal(model(**batch).logits, model(**{**batch, "input_ids": other}).logits)
    beams = generate(model, batch, num_beams=2)
    assert generate(model, {**batch, "input_ids": other}, num_beams=2).tolist() == beams.tolist()
    with CropBlend(num_crops=3)(
        model, SquareImageProcessor(size=64), images=[[sample_image(1)]], check_images=False
    ) as run:
        generate(model, {**batch, "input_ids": other})
    assert run.report.fired


def test_a_configuration_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="no_bias=False is not supported"):
        tiny.model("qwen", no_bias=False)

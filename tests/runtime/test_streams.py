"""A second stream beside the first: beams, positions, and what it refuses."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from airvlm.methods.vcd import VCD
from airvlm.models.parts import ModelParts
from airvlm.runtime.streams import edit_prompts, image_marks
from airvlm.testing import small_models

TOKENS = 5


def generate(model: Any, batch: Any, **options: Any) -> Any:
    options = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, **options}
    return model.generate(**batch, **options, return_dict_in_generate=True, output_logits=True)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "gemma3"])  # GLM's own beams differ without a cache
def test_beams_reorder_both_streams(family: str) -> None:
    model, processor = small_models.shared_model(family)
    batch = small_models.build_inputs(processor, [row for row in small_models.sample_rows() if row[1]])
    vcd = VCD(beta=0.0)  # a cut may leave fewer tokens than beams, whose order then means nothing
    with vcd(model):
        out = generate(model, batch, num_beams=3)
        uncached = generate(model, batch, num_beams=3, use_cache=False)
    assert torch.equal(out.sequences, uncached.sequences)
    for cached, fresh in zip(out.logits, uncached.logits, strict=True):
        torch.testing.assert_close(cached, fresh, rtol=1e-3, atol=5e-3)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "glm46v"])
def test_the_streams_do_not_disturb_each_others_rope_state(family: str) -> None:
    model, processor = small_models.shared_model(family)
    first, second = (small_models.build_inputs(processor, small_models.sample_rows()[i : i + 1]) for i in (0, 3))
    plain = generate(model, first)
    state = model.base_model.rope_deltas.clone()
    with VCD()(model):
        generate(model, first)
        assert torch.equal(model.base_model.rope_deltas, state)
        ours = generate(model, second)
        assert torch.equal(torch.stack(ours.logits), torch.stack(generate(model, second).logits))
    assert torch.equal(torch.stack(generate(model, first).logits), torch.stack(plain.logits))


@pytest.mark.parametrize("option", ["prompt_lookup_num_tokens"])
def test_decoding_that_takes_tokens_back_is_refused(option: str) -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:1])
    with pytest.raises(ValueError, match=option):
        with VCD()(model):
            generate(model, batch, **{option: 2})


def test_features_encoded_beforehand_are_refused() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:1])
    with torch.no_grad():
        features = model.base_model.get_image_features(batch["pixel_values"], return_dict=True)
    rest = {k: v for k, v in batch.items() if k != "pixel_values"}
    with pytest.raises(ValueError, match="give pixel_values"):
        with VCD()(model):
            generate(model, {**rest, "mm_encoder_outputs": {"image": features}})


def test_a_cache_that_the_second_stream_has_not_seen_is_refused() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:1])
    with torch.no_grad():
        cache = model(**batch, use_cache=True).past_key_values
    longer = {**batch, "attention_mask": torch.cat([batch["attention_mask"]] * 2, 1), "past_key_values": cache}
    with pytest.raises(ValueError, match="a cache that it has not seen"), torch.no_grad():
        with VCD()(model):
            model(**longer)


def test_marks_around_images_are_those_of_the_processor_and_of_tiles() -> None:
    parts = ModelParts.of(small_models.shared_model("llava")[0])
    vocabulary = {"<begin>": 91, "<other>": 92, "<row_1_col_2>": 93, "<end>": 94}
    tokenizer = SimpleNamespace(get_added_vocab=lambda: vocabulary)
    processor = SimpleNamespace(tokenizer=tokenizer, start_image_token="<begin>", end_image_token="<end>")
    assert image_marks(parts, processor) - image_marks(parts) == {91, 93, 94}


PARTS = SimpleNamespace(image_token_id=9, model=SimpleNamespace(generation_config=SimpleNamespace(pad_token_id=7)))
INPUTS = {
    "input_ids": torch.tensor([[7, 9, 1, 2, 3], [4, 9, 5, 2, 3]]),
    "attention_mask": torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]]),
    "pixel_values": torch.zeros(2, 3),
    "position_ids": torch.arange(5),
}


@pytest.mark.parametrize(
    ("answer", "ids", "suffix"),
    [(0, [[7, 7, 1, 2, 3], [4, 5, 2, 3, 3]], [3, 1]), (1, [[7, 7, 1, 2, 3], [4, 5, 2, 2, 3]], [3, 2])],
)
def test_edited_prompts_are_padded_again_and_keep_what_was_generated(answer: int, ids: Any, suffix: list[int]) -> None:
    def edit(row: list[int]) -> list[int]:
        """Without the image; a longer row ends with its last token twice."""
        text = [token for token in row if token != 9]
        return text if text[0] == 1 else [*text, text[-1]]

    edited = edit_prompts(PARTS, dict(INPUTS), edit, answer=answer)  # type: ignore[arg-type]
    assert edited["input_ids"].tolist() == ids
    assert edited["attention_mask"].tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]
    assert edited["common_suffix"].tolist() == suffix
    assert "pixel_values" not in edited and "position_ids" not in edited  # no image token is left


def test_prompts_that_keep_their_images_keep_their_pixels() -> None:
    edited = edit_prompts(PARTS, dict(INPUTS), lambda row: [*row, 8])  # type: ignore[arg-type]
    assert edited["input_ids"].tolist() == [[7, 9, 1, 2, 3, 8], [4, 9, 5, 2, 3, 8]]
    assert edited["pixel_values"] is INPUTS["pixel_values"] and edited["common_suffix"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda row: row if row[0] == 9 else [], "mine: nothing is left of the prompt in row 1"),
        (lambda row: row if row[0] == 9 else row[2:], "mine: a prompt with 1 image tokens was made of one with 2"),
    ],
)
def test_edited_prompts_need_text_and_all_images_or_none(edit: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        edit_prompts(PARTS, dict(INPUTS), edit, who="mine")  # type: ignore[arg-type]

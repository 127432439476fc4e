"""Official folders are read as they are: every name, every dtype, no remote code; a bad folder says what is wrong."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor

from airvlm import CropBlend, models
from airvlm.models import CheckpointError
from airvlm.models.families import is_port
from airvlm.models.ported import checkpoint
from airvlm.testing.small_models import sample_image
from airvlm.vlm import VLM
from tests.models.ported import tiny_checkpoints as tiny

model_types = pytest.mark.parametrize("model_type", tiny.MODELS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tiny.save(tmp_path_factory.mktemp("official") / name, name) for name in tiny.MODELS}


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path, model_type: str) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(folders[model_type], tmp_path / model_type))


def same_weights(model: Any, model_type: str, dtype: torch.dtype = torch.float32) -> None:
    wanted = tiny.model(model_type).state_dict()
    state = model.state_dict()
    assert state.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert state[name].dtype == dtype, name
        assert torch.equal(state[name].cpu(), weight.to(dtype)), name


@pytest.mark.slow
@model_types
@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_official_form_gives_the_same_weights(
    tmp_path: Path, model_type: str, pickled: bool, shards: int
) -> None:
    folder = tiny.save(tmp_path, model_type, shards=shards, pickled=pickled)
    model, _ = models.load(folder)
    same_weights(model, model_type)
    assert not model.training


@model_types
def test_the_stored_dtype_is_kept_and_another_may_be_asked_for(tmp_path: Path, model_type: str) -> None:
    folder = tiny.save(tmp_path, model_type, dtype=torch.bfloat16)
    model, _ = models.load(folder)
    same_weights(model, model_type, torch.bfloat16)
    assert models.load(folder, dtype=torch.float32)[0].dtype == torch.float32


@model_types
def test_a_device_map_places_the_parts(folders: dict[str, Path], tmp_path: Path, model_type: str) -> None:
    places = {"model.visual": "cpu", "model.language_model": "disk", "lm_head": "cpu"}
    model, processor = models.load(folders[model_type], device_map=places, offload_folder=str(tmp_path))
    assert model.hf_device_map == places
    whole, _ = models.load(folders[model_type])
    inputs = processor(text="Is there a dog?", return_tensors="pt")
    torch.testing.assert_close(logits(model, inputs), logits(whole, inputs))


@model_types
def test_the_auto_classes_know_both_after_registration(folders: dict[str, Path], model_type: str) -> None:
    models.register()
    models.register()  # again changes nothing
    model = AutoModelForImageTextToText.from_pretrained(folders[model_type])
    same_weights(model, model_type)
    processor = AutoProcessor.from_pretrained(folders[model_type])
    assert processor.image_token_id == model.config.image_token_id


@model_types
def test_saving_writes_official_names_and_loading_them_again_changes_nothing(
    folders: dict[str, Path], tmp_path: Path, model_type: str
) -> None:
    model, processor = models.load(folders[model_type])
    model.generation_config.do_sample = True
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    stored = checkpoint.list_weight_names(tmp_path)
    assert stored == checkpoint.list_weight_names(folders[model_type]) - {"transformer.rotary_pos_emb.inv_freq"}
    written = json.loads((tmp_path / "config.json").read_text())
    assert is_port(written) and "text_config" not in written
    again, processor_again = models.load(tmp_path)
    same_weights(again, model_type)
    text = "Is there a dog? <|im_end|> ok"
    assert processor_again.tokenizer(text)["input_ids"] == processor.tokenizer(text)["input_ids"]
    assert processor_again.num_image_tokens == processor.num_image_tokens


@model_types
def test_answers_end_where_the_original_chat_ends_them(folders: dict[str, Path], model_type: str) -> None:
    model, processor = models.load(folders[model_type])
    stops = {"qwen": ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]}.get(
        model_type, ["<|endoftext|>", "<|user|>", "<|observation|>"]
    )
    assert model.generation_config.eos_token_id == processor.tokenizer.convert_tokens_to_ids(stops)
    assert model.generation_config.pad_token_id == processor.tokenizer.pad_token_id


def test_a_changed_field_reaches_the_decoder(folders: dict[str, Path]) -> None:
    model, _ = models.load(folders["chatglm"], rope_ratio=7)
    assert model.config.text_config.rope_parameters["rope_theta"] == 70000.0


@pytest.mark.slow
@model_types
@pytest.mark.usefixtures("interpreted")
def test_a_quantized_model_can_be_asked(folders: dict[str, Path], model_type: str) -> None:
    pytest.importorskip("bitsandbytes", reason="quantized loading needs bitsandbytes")
    from transformers import BitsAndBytesConfig

    vlm = VLM.load(folders[model_type], quantization_config=BitsAndBytesConfig(load_in_4bit=True))
    answer = vlm.ask(sample_image(1), "Is there a dog?", method=CropBlend(num_crops=3), max_new_tokens=4)
    assert answer.report is not None and answer.report.fired


@pytest.mark.slow
@model_types
@pytest.mark.parametrize(("bits", "layer", "nearness"), [(8, "Linear8bitLt", 0.98), (4, "Linear4bit", 0.8)])
@pytest.mark.usefixtures("interpreted")
def test_quantized_loading_goes_through_transformers(
    folders: dict[str, Path], model_type: str, bits: int, layer: str, nearness: float
) -> None:
    pytest.importorskip("bitsandbytes", reason="quantized loading needs bitsandbytes")
    from transformers import BitsAndBytesConfig

    how = BitsAndBytesConfig(**{f"load_in_{bits}bit": True})
    quantized, processor = models.load(folders[model_type], quantization_config=how, dtype=torch.float32)
    first = quantized.get_decoder().layers[0]
    assert {type(part).__name__ for part in (first.self_attn.q_proj, first.mlp.down_proj)} == {layer}
    whole, _ = models.load(folders[model_type])
    inputs = processor(text="Is there a dog?", return_tensors="pt")
    near = torch.cosine_similarity(logits(quantized, inputs).float(), logits(whole, inputs), dim=-1)
    assert near.mean() > nearness


# -- folders that cannot be loaded


@model_types
def test_missing_and_unexpected_names_are_all_named(folder: Path, model_type: str) -> None:
    weights = tiny.official_weights(tiny.model(model_type))
    layer = (
        "transformer.h.{}.mlp.w1.weight"
        if model_type == "qwen"
        else "transformer.encoder.layers.{}.mlp.dense_h_to_4h.weight"
    )
    lost = [layer.format(i) for i in (0, 2, 3)] + [
        "lm_head.weight" if model_type == "qwen" else "transformer.vision.boi"
    ]
    for name in lost:
        weights["other." + name] = weights.pop(name)
    for file in folder.glob("model*"):
        file.unlink()
    tiny.save_weights(folder, weights, shards=1, pickled=False)
    with pytest.raises(CheckpointError) as caught:
        models.load(folder)
    assert caught.value.missing == set(lost)
    assert caught.value.unexpected == {f"other.{name}" for name in lost}
    together = layer.format("{0,2,3}")  # layers of one name are told together
    for name in (together, lost[-1]):
        assert f" {name}" in str(caught.value) and f" other.{name}" in str(caught.value)
    assert "4 missing" in str(caught.value) and "4 unexpected" in str(caught.value)


@model_types
def test_a_missing_shard_is_named(folder: Path, model_type: str) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"incomplete: 1 of 2 .*model-00002-of-00002.safetensors"):
        models.load(folder)


@model_types
@pytest.mark.parametrize("pickled", [False, True])
def test_a_shard_cut_short_is_named(tmp_path: Path, model_type: str, pickled: bool) -> None:
    folder = tiny.save(tmp_path, model_type, pickled=pickled)
    shard = sorted(folder.glob("*-00001-of-*"))[0]
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=f"{shard.name} is damaged or incomplete"):
        models.load(folder)


@model_types
def test_a_git_lfs_pointer_is_told_from_weights(folder: Path, model_type: str) -> None:
    shard = folder / "model-00001-of-00002.safetensors"
    shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        models.load(folder)


@pytest.mark.parametrize("model_type", ["qwen"])
def test_a_folder_without_weights_or_vocabulary_says_so(folder: Path, model_type: str) -> None:
    (folder / "qwen.tiktoken").unlink()
    with pytest.raises(CheckpointError, match=r"qwen\.tiktoken"):
        models.load(folder)
    for file in folder.glob("model*"):
        file.unlink()
    with pytest.raises(CheckpointError, match="has no weights"):
        models.load(folder)


@model_types
def test_sizes_that_do_not_fit_the_configuration_are_refused(folder: Path, model_type: str) -> None:
    settings = json.loads((folder / "config.json").read_text())
    field = "intermediate_size" if model_type == "qwen" else "ffn_hidden_size"
    (folder / "config.json").write_text(json.dumps(settings | {field: 2 * settings[field]}))
    with pytest.raises(CheckpointError, match="could not be loaded"):
        models.load(folder)


@model_types
def test_a_vocabulary_of_another_model_is_refused(folder: Path, model_type: str) -> None:
    file = next(iter(folder.glob("*.tiktoken")), folder / "tokenizer.model")
    tiny.write_vocabulary(file, tiny.vocabulary()[:-5])
    with pytest.raises(CheckpointError, match="belong to different models"):
        models.load(folder)


def test_text_only_models_of_the_same_type_are_not_ours(tmp_path: Path) -> None:
    assert not is_port({"model_type": "qwen", "hidden_size": 4096})
    assert not is_port({"model_type": "chatglm", "num_layers": 40})
    assert not is_port({"model_type": "llava", "vision_config": {"x": 1}})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen"}))
    with pytest.raises(CheckpointError, match="not Qwen-VL"):
        models.load(tmp_path)


def test_pickles_run_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    folder = tiny.save(tmp_path / "folder", "qwen", shards=1, pickled=True)
    weights: dict[str, Any] = torch.load(folder / "pytorch_model.bin", weights_only=True)
    torch.save(weights | {"evil": Evil()}, folder / "pytorch_model.bin", pickle_module=pickle)
    with pytest.raises(CheckpointError, match="not a plain file of weights"):
        models.load(folder)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(CheckpointError, match="weights_only"):
        models.load(folder, weights_only=False)


@torch.no_grad()
def logits(model: Any, inputs: Any) -> Tensor:
    out: Tensor = model(**inputs).logits
    return out

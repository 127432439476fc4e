"""smol is assembled from parts, merges its LoRA, refuses other parts, and answers. Small random parts, no download."""

import functools
import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from airvlm import VLM, smol
from airvlm.cli.common import load_model
from airvlm.cli.options import ModelOptions
from airvlm.models.loading import LoadError
from airvlm.smol.assembly import LANGUAGE_MODEL, PROBE, TOWER, PartsError, assemble, sample_weights

WIDTH, RANK, SCALE = 32, 4, 2.0
LAYER = "model.layers.1.self_attn.q_proj"
QUESTION = "Is there a dog in the image?"


def make_tokenizer() -> PreTrainedTokenizerFast:
    special = ["<unk>", "<|im_start|>", "<|im_end|>"]
    words = sorted({*PROBE.split(), *QUESTION.split(), "user", "assistant", "\n"})
    table = {word: k for k, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(table, unk_token="<unk>"))  # not a password
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
    )


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both public parts, small and random, in the form that the hub has them in."""
    folder = tmp_path_factory.mktemp("parts")
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 4}
    vision = CLIPVisionConfig(hidden_size=48, intermediate_size=64, image_size=56, patch_size=14, **sizes)
    CLIPVisionModel(vision).save_pretrained(folder / TOWER.folder)
    tokenizer = make_tokenizer()
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=64,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        eos_token_id=2,
        pad_token_id=2,
        **sizes,
    )
    LlamaForCausalLM(text).save_pretrained(folder / LANGUAGE_MODEL.folder)
    tokenizer.save_pretrained(folder / LANGUAGE_MODEL.folder)
    return folder


@pytest.fixture(scope="module")
def trained(parts: Path) -> Path:
    """A trained part that fits the random parts, with images of half their size."""
    torch.manual_seed(1)
    tensors = {
        "projector.linear_1.weight": torch.randn(WIDTH, 48),
        "projector.linear_1.bias": torch.zeros(WIDTH),
        "projector.linear_2.weight": torch.randn(WIDTH, WIDTH),
        "projector.linear_2.bias": torch.zeros(WIDTH),
        f"lora.{LAYER}.A": torch.randn(RANK, WIDTH),
        f"lora.{LAYER}.B": torch.randn(WIDTH, RANK),
    }
    for prefix, kind, part in (
        ("tower_sample", CLIPVisionModel, TOWER),
        ("language_model_sample", LlamaForCausalLM, LANGUAGE_MODEL),
    ):
        sample = sample_weights(kind.from_pretrained(parts / part.folder))
        tensors |= {f"{prefix}.{name}": tensor for name, tensor in sample.items()}
    probe = make_tokenizer()(PROBE, add_special_tokens=False)["input_ids"]
    facts = {"image_size": "28", "lora_scale": str(SCALE), "probe": json.dumps(probe)}
    path = parts / "trained.safetensors"
    save_file(tensors, path, facts)
    return path


def change(parts: Path, folder: Path, share: float) -> Path:
    """A copy of the parts in which the language model's weights differ by a share of their size."""
    shutil.copytree(parts, folder)
    model = LlamaForCausalLM.from_pretrained(folder / LANGUAGE_MODEL.folder)
    with torch.no_grad():
        for weight in model.parameters():
            weight += share * weight.abs().mean() * torch.randn_like(weight)
    model.save_pretrained(folder / LANGUAGE_MODEL.folder)
    return folder


def test_it_is_a_plain_llava_of_both_parts(parts: Path, trained: Path) -> None:
    model, processor = assemble(parts, trained=trained)
    assert type(model) is LlavaForConditionalGeneration
    tower = CLIPVisionModel.from_pretrained(parts / TOWER.folder)
    pixels = torch.randn(1, 3, 28, 28)
    wanted = tower(pixels, output_hidden_states=True, interpolate_pos_encoding=True).hidden_states[-2][:, 1:]
    tokens = model.model.multi_modal_projector(wanted)
    assert tokens.shape == (1, 4, WIDTH)
    torch.testing.assert_close(model.get_image_features(pixels).pooler_output[0], tokens[0], rtol=1e-5, atol=1e-4)
    assert processor.image_processor.size == {"height": 28, "width": 28}


def test_pickled_weights_are_refused(parts: Path, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    shutil.copytree(parts, folder)
    for part in (TOWER, LANGUAGE_MODEL):
        weights = folder / part.folder / "model.safetensors"
        torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
        kept = weights.rename(weights.with_suffix(".away"))
        with pytest.raises(PartsError, match=f"{part.folder}, a part of smol: .*safetensors"):
            assemble(folder, trained=trained)
        kept.rename(weights)
    assemble(folder, trained=trained)


def test_the_lora_is_merged(parts: Path, trained: Path) -> None:
    model, _ = assemble(parts, trained=trained)
    public = LlamaForCausalLM.from_pretrained(parts / LANGUAGE_MODEL.folder).state_dict()
    own = dict(model.model.language_model.state_dict().items())
    kept = load_file(trained)
    wanted = public[f"{LAYER}.weight"] + SCALE * kept[f"lora.{LAYER}.B"] @ kept[f"lora.{LAYER}.A"]
    torch.testing.assert_close(own[f"{LAYER.removeprefix('model.')}.weight"], wanted)
    other = LAYER.replace("q_proj", "k_proj")
    torch.testing.assert_close(own[f"{other.removeprefix('model.')}.weight"], public[f"{other}.weight"])


def test_parts_may_differ_by_their_quantization_only(parts: Path, trained: Path, tmp_path: Path) -> None:
    assemble(change(parts, tmp_path / "near", 0.05), trained=trained)
    with pytest.raises(PartsError, match=r"SmolLM2-135M-Instruct is not the checkpoint .* differs by"):
        assemble(change(parts, tmp_path / "far", 1.0), trained=trained)


def test_another_tokenizer_is_refused(parts: Path, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    shutil.copytree(parts, folder)
    file = folder / LANGUAGE_MODEL.folder / "tokenizer.json"
    table = json.loads(file.read_text())
    words = table["model"]["vocab"]
    words["dining"], words["table"] = words["table"], words["dining"]
    file.write_text(json.dumps(table))
    with pytest.raises(PartsError, match="tokenizer"):
        assemble(folder, trained=trained)


def test_it_answers(parts: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "model"
    package.mkdir()
    shutil.copyfile(trained, package / "trained.safetensors")
    shutil.copyfile(smol.model_path() / "chat_template.jinja", package / "chat_template.jinja")
    monkeypatch.setattr("airvlm.smol.assembly.model_path", lambda: package)
    monkeypatch.setenv(smol.PARTS_VARIABLE, str(parts))
    vlm = VLM.load("smol")
    assert vlm.name == "smol"
    answer = vlm.ask(Image.new("RGB", (40, 30), (90, 140, 200)), QUESTION, max_new_tokens=4)
    assert answer.prompt == f"<|im_start|>user\n<image>\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    assert answer.tokens > 0
    elsewhere = shutil.copytree(parts, tmp_path / "elsewhere")
    assert vlm.fingerprint == VLM.load("smol", parts=elsewhere).fingerprint  # boards of two machines can be merged


def test_attention_is_chosen(parts: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airvlm.smol.assembly.assemble", functools.partial(assemble, trained=trained))
    options = ModelOptions(model="smol", attention="eager")
    monkeypatch.setenv(smol.PARTS_VARIABLE, str(parts))
    eager, plain = load_model(options), load_model(ModelOptions(model="smol"))
    configs = [vlm.model.model.language_model.config for vlm in (eager, plain)]
    assert [config._attn_implementation for config in configs] == ["eager", "sdpa"]
    assert eager.fingerprint == plain.fingerprint
    with pytest.raises(LoadError, match=r"cannot load smol: .*nonsense"):
        VLM.load("smol", attn_implementation="nonsense")


def test_the_error_without_parts_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(smol.PARTS_VARIABLE, raising=False)
    with pytest.raises(LoadError, match=r"clip-vit-base-patch16.*subfolders"):
        VLM.load("smol", parts=tmp_path)
    with pytest.raises(LoadError, match=r"vit_base_patch16_clip_224.openai.*AIRVLM_SMOL_PARTS"):
        VLM.load("smol", local_files_only=True, cache_dir=tmp_path)

"""Loading: what a model may be loaded from, what is refused, and when two models are the same."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from airvlm import tiny
from airvlm.methods import AIR
from airvlm.models import loading
from airvlm.models.loading import LoadError, fingerprint, load_parts
from airvlm.testing import small_models
from airvlm.vlm import VLM
from tests.checkpoints import save_llava

QUESTION = "is there a fork in the image ?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llava(tmp_path_factory.mktemp("llava"))


def test_equal_weights_have_equal_fingerprints_wherever_they_are(folder: Path, tmp_path: Path) -> None:
    model, _, name = load_parts(folder)
    again = save_llava(tmp_path / "copy")
    assert name == str(folder)
    assert fingerprint(model) == fingerprint(load_parts(again)[0])


def test_one_changed_weight_changes_the_fingerprint(folder: Path) -> None:
    model, _, _ = load_parts(folder)
    before = fingerprint(model)
    with torch.no_grad():
        next(iter(model.parameters())).view(-1)[-1] += 1e-3
    assert fingerprint(model) != before


def test_on_a_cpu_weights_are_float32_by_default(folder: Path, tmp_path: Path) -> None:
    half = save_llava(tmp_path / "half", dtype=torch.float16)
    assert load_parts(half)[0].dtype == torch.float32
    assert load_parts(folder, dtype=torch.bfloat16)[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/folder", "no such model folder"),
        ("./nowhere", "no such model folder"),
    ],
)
def test_a_path_that_does_not_exist_is_not_taken_for_a_name(name: str, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        load_parts(name)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"no config\.json"):
        load_parts(tmp_path)


def test_a_file_is_refused(folder: Path) -> None:
    with pytest.raises(LoadError, match="give the folder"):
        load_parts(folder / "config.json")


def test_pickled_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    copy = save_llava(tmp_path / "pickled")
    model, _, _ = load_parts(copy)
    (copy / "model.safetensors").unlink()
    torch.save(model.state_dict(), copy / "pytorch_model.bin")
    with pytest.raises(LoadError, match="safetensors"):
        load_parts(copy)


def test_a_checkpoint_without_a_template_gets_the_prompt_of_its_family(tmp_path: Path) -> None:
    vlm = VLM.load(save_llava(tmp_path / "plain", template=None))
    answer = vlm.ask(small_models.sample_image(1), "what ?", max_new_tokens=2)
    assert answer.prompt == "USER: <image>\nwhat ? ASSISTANT:"


def lora(folder: Path, target: Path) -> Path:
    """A random LoRA on the attention of a checkpoint, as a fine-tune against hallucination would leave it."""
    model, _, _ = load_parts(folder)
    torch.manual_seed(3)
    config = LoraConfig(r=2, lora_alpha=16, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(model, config).save_pretrained(target)
    return target


def test_an_adapter_acts_and_methods_act_on_top_of_it(folder: Path, tmp_path: Path) -> None:
    adapter = lora(folder, tmp_path / "lora")
    base, tuned = VLM.load(folder), VLM.load(folder, adapter=adapter)
    image = small_models.sample_image(1)
    assert tuned.name == f"{folder}+lora"
    assert tuned.fingerprint != base.fingerprint
    vanilla = tuned.ask(image, QUESTION, max_new_tokens=8)
    assert vanilla.text != base.ask(image, QUESTION, max_new_tokens=8).text
    air = AIR(keep=2, num_crops=4, num_prototypes=4, strength=2.0, layers=(0, 3))
    report = tuned.ask(image, QUESTION, method=air, max_new_tokens=8).report
    assert report is not None
    assert report.fired
    likely = tuned.likelihood(image, QUESTION, ["yes", "no"])
    assert tuned.likelihood(image, QUESTION, ["yes", "no"], method=air) != likely
    off = replace(air, strength=0.0)
    assert tuned.likelihood(image, QUESTION, ["yes", "no"], method=off) == likely
    assert tuned.likelihood(image, QUESTION, ["yes", "no"]) == likely


def test_an_adapter_with_pickled_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    adapter = lora(folder, tmp_path / "lora")
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(LoadError, match="pickled"):
        VLM.load(folder, adapter=adapter)


def test_weights_spread_over_devices_answer_alike(folder: Path) -> None:
    image = small_models.sample_image(1)
    mapped = VLM.load(folder, device_map="cpu", dtype=torch.float32)
    assert (
        mapped.ask(image, QUESTION, max_new_tokens=6).text
        == VLM.load(folder).ask(image, QUESTION, max_new_tokens=6).text
    )


# -- weights that are not there


def without(folder: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """A copy of a checkpoint with other weights."""
    shutil.copytree(folder, target)
    weights = load_file(target / "model.safetensors")
    change(weights)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_a_missing_weight_is_an_error_unless_allowed(folder: Path, tmp_path: Path) -> None:
    def drop(weights: dict[str, torch.Tensor]) -> None:
        del weights[next(name for name in weights if "layers.1.mlp.up_proj" in name)]

    broken = without(folder, tmp_path / "broken", drop)
    with pytest.raises(LoadError, match=r"1 weights are missing .*up_proj.*--allow-missing"):
        VLM.load(broken)
    assert VLM.load(broken, allow_missing=True).ask(small_models.sample_image(1), QUESTION, max_new_tokens=1)


def test_a_weight_of_another_shape_is_an_error_unless_allowed(folder: Path, tmp_path: Path) -> None:
    def cut(weights: dict[str, torch.Tensor]) -> None:
        name = next(name for name in weights if "layers.1.mlp.up_proj" in name)
        weights[name] = weights[name][:-1].clone()

    broken = without(folder, tmp_path / "broken", cut)
    with pytest.raises(LoadError, match=r"1 weights have another shape .*up_proj"):
        VLM.load(broken)
    assert VLM.load(broken, allow_missing=True).name == str(broken)


def test_truncated_weights_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(folder, tmp_path / "broken")
    file = broken / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(LoadError, match="damaged or incomplete") as refused:
        VLM.load(broken)
    assert "\n" not in str(refused.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize("device", ["cuda", "cuda:7", "nonsense"])
def test_a_device_that_is_not_there_is_refused_in_one_line(folder: Path, device: str) -> None:
    with pytest.raises(LoadError, match=f"device {device} cannot be used") as refused:
        VLM.load(folder, device=device)
    assert "\n" not in str(refused.value)


# -- the hub


class Hub:
    """Stands for the hub: answers each HEAD request by a status, or raises."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[str, float]] = []

    def head(self, url: str, *, headers: Any, timeout: float) -> Any:
        self.asked.append((url, timeout))
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(status_code=self.answer)


def forbid(*_: Any, **__: Any) -> None:
    raise AssertionError("transformers was asked, which retries for half a minute")


def use_hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> Hub:
    hub = Hub(answer)
    monkeypatch.setattr(loading, "get_session", lambda: hub)
    monkeypatch.setattr(loading.PreTrainedConfig, "get_config_dict", forbid)
    return hub


def test_without_a_network_an_unknown_name_fails_at_once_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = use_hub(monkeypatch, OSError("Name or service not known\nmore"))
    message = r"cannot load owner/model: there is no such folder, and the hub cannot be reached \(Name or"
    with pytest.raises(LoadError, match=message) as caught:
        VLM.load("owner/model")
    assert "\n" not in str(caught.value)
    assert len(hub.asked) == 1 and hub.asked[0][1] <= 5
    assert "owner/model/resolve/main/config.json" in hub.asked[0][0]


@pytest.mark.parametrize("status", [401, 404])
def test_a_name_that_the_hub_does_not_have_fails_at_once(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    use_hub(monkeypatch, status)
    with pytest.raises(LoadError, match="cannot load owner/model: there is no such folder, and no such model on the"):
        VLM.load("owner/model")


def test_a_name_that_the_hub_has_is_left_to_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(monkeypatch, 200)
    with pytest.raises(AssertionError, match="transformers was asked"):
        VLM.load("owner/model")


@pytest.mark.parametrize("offline", [True, False])
def test_without_a_network_a_cached_model_is_loaded_from_the_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    snapshot = tmp_path / "models--owner--model" / "snapshots" / "0123"
    shutil.copytree(folder, snapshot)
    (tmp_path / "models--owner--model" / "refs").mkdir()
    (tmp_path / "models--owner--model" / "refs" / "main").write_text("0123")
    monkeypatch.setattr(loading, "get_session", lambda: Hub(OSError("no network")))
    monkeypatch.setattr(loading.constants, "HF_HUB_OFFLINE", offline)
    vlm = VLM.load("owner/model", cache_dir=str(tmp_path))
    assert vlm.name == "owner/model" and vlm.fingerprint == VLM.load(folder).fingerprint


def test_an_offline_hub_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(loading, "get_session", forbid)
    with pytest.raises(LoadError, match="the hub is switched off"):
        VLM.load("owner/model")


def test_what_cannot_be_a_name_of_the_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "get_session", forbid)
    with pytest.raises(LoadError, match="the hub has no such names"):
        VLM.load("my model!")


def test_a_model_of_text_alone_is_refused_in_one_line(tmp_path: Path) -> None:
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=128, **small)).save_pretrained(tmp_path)
    small_models.build_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(
        LoadError, match="has a tokenizer but no image processor: it is not a vision-language"
    ) as caught:
        VLM.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_without_its_image_processor_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    for file in ("processor_config.json", "preprocessor_config.json"):
        (copy / file).unlink(missing_ok=True)
    with pytest.raises(LoadError, match=f"cannot load {copy}: .*preprocessor_config.json") as caught:
        VLM.load(copy)
    assert "\n" not in str(caught.value)


# -- models of the package, and what loading imports


def test_tiny_names_the_embedded_model() -> None:
    named = VLM.load("tiny")
    assert named.name == "tiny" and named.fingerprint == VLM.load(tiny.model_path()).fingerprint


@pytest.mark.slow
def test_the_ports_are_imported_only_when_asked_for() -> None:
    script = (
        "from airvlm.evaluation import Results\n"  # first of all, as the documents import it
        "import sys, airvlm.vlm, airvlm.cli\n"
        "from airvlm import VLM\n"
        "VLM.load('tiny')\n"
        "print([m for m in sys.modules if m.startswith('airvlm.models.') and "
        "m.split('.')[2] in ('ported', 'qwen_vl', 'glm_4v')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"

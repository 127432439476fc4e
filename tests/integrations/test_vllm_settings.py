"""Which method a request to vLLM gets, and what is refused there by name."""

import json

import pytest

from airvlm import AIR, VAF, VCD, AIRMemory, Composed, CropBlend, MemVR
from airvlm.cli import run
from airvlm.cli.vllm import command_line
from airvlm.integrations.vllm import ARCHITECTURES, overrides
from airvlm.integrations.vllm.settings import from_tensor, resolve, to_tensor, written
from airvlm.tiny import model_path


@pytest.mark.parametrize(
    ("server", "request_", "expected"),
    [
        (None, None, CropBlend()),
        (True, None, CropBlend()),
        (False, None, None),
        (True, False, None),
        (False, True, CropBlend()),
        ("air:weight=0.4", None, CropBlend(weight=0.4)),
        ("air:weight=0.4", {"eps": 0.1}, CropBlend(weight=0.4, eps=0.1)),
        ("air:weight=0.4", {"method": "air", "eps": 0.1}, CropBlend(eps=0.1)),
        (False, {"weight": 0.1}, CropBlend(weight=0.1)),
        (True, {"method": "vanilla"}, None),
        (True, {"weight": 0}, None),
        (CropBlend(keep=3), None, CropBlend(keep=3)),
    ],
)
def test_a_request_changes_the_servers_method(server, request_, expected):
    assert resolve(server, request_) == expected


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("memvr", "memvr cannot run in vLLM"),
        ("vaf", "vaf cannot run in vLLM"),
        ({"method": "vcd"}, "vcd cannot run in vLLM"),
        ("air-lineage", "air-lineage .* cannot run in vLLM"),
        ("air-paper", "air-paper .* cannot run in vLLM"),
        ({"reading": "ffn"}, "air-paper .* cannot run in vLLM"),
        ("air+vaf", "cannot run in vLLM"),
        ({"source": "other"}, "source='other'"),
        ({"strange": 1}, "no field 'strange'"),
        ({"weight": "much"}, "weight = 'much'"),
        ({"weight": float("nan")}, "weight = nan"),
        ({"patches": True}, "patches = True"),
        ({"eps": 0}, "eps"),
        ({"method": "vanilla", "weight": 1}, "has no weight"),
        ("nonsense", "unknown method"),
        ("@calibration.json", "files are not read here"),
        ({"method": "os:getcwd"}, "unknown method"),
        (3, "airvlm = 3"),
    ],
)
def test_what_vllm_cannot_serve_is_refused_by_name(setting, message):
    with pytest.raises(ValueError, match=message):
        resolve(True, setting)


@pytest.mark.parametrize("method", [MemVR(), VAF(), VCD(), AIRMemory(), AIR(), Composed(CropBlend(), VAF())])
def test_a_server_of_such_a_method_does_not_start(method):
    with pytest.raises(ValueError, match="cannot run in vLLM"):
        overrides(["LlavaForConditionalGeneration"], method)


@pytest.mark.parametrize(
    "air", [CropBlend(), CropBlend(weight=0.4, keep=3), CropBlend(num_prototypes=7, match="softmax", layout="random")]
)
def test_a_method_travels_as_bytes(air):
    assert from_tensor(to_tensor(air)) == air
    assert resolve(json.loads(json.dumps(written(air)))) == air


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_variant_is_chosen_by_the_architecture(name):
    chosen = overrides([name], "air:weight=0.4")
    assert chosen["architectures"] == [ARCHITECTURES[name]]
    assert resolve(chosen["airvlm"]) == CropBlend(weight=0.4)
    assert overrides(chosen["architectures"])["architectures"] == chosen["architectures"]


def test_an_architecture_without_a_variant_is_refused():
    with pytest.raises(ValueError, match=r"InternVL.*airvlm serve"):
        overrides(["InternVLForConditionalGeneration"])


def test_the_command_line_is_vllms_own():
    model = str(model_path())
    rest = ["--port", "1", "--hf-overrides", '{"airvlm": false, "x": 1}', "--enforce-eager"]
    arguments = command_line(model, CropBlend(weight=0.4), rest)
    assert arguments[:4] == ["-m", "vllm.entrypoints.openai.api_server", "--model", model]
    chosen = json.loads(arguments[5])
    assert chosen["architectures"] == ["AirLlavaForConditionalGeneration"]
    assert chosen["x"] == 1
    assert resolve(chosen["airvlm"]) == CropBlend(weight=0.4)
    assert arguments[6:] == ["--port", "1", "--enforce-eager"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "memvr"], "memvr cannot run in vLLM"),
        (["--method", "air-lineage"], "air-lineage"),
        (["--set", "wieght=1"], "wieght"),
        (["--hf-overrides"], "needs a value"),
    ],
)
def test_bad_input_ends_in_one_line_and_code_2(arguments, message, capsys):
    assert run(["vllm", "serve", str(model_path()), *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told


def test_a_model_that_is_not_there_is_refused(capsys, tmp_path):
    assert run(["vllm", "serve", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err

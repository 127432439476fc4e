"""Which method a request to vLLM gets, and what is refused by name."""

import json

import pytest

from airvlm import AIR, VAF, VCD, AIRMemory, Composed, CropBlend, MemVR, RandomCrops
from airvlm.integrations.vllm import ARCHITECTURES, overrides
from airvlm.integrations.vllm.settings import from_tensor, resolve, to_setting, to_tensor


@pytest.mark.parametrize(
    ("server", "request_", "expected"),
    [
        (None, None, CropBlend()),
        (True, None, CropBlend()),
        (False, None, None),
        (True, False, None),
        (False, True, CropBlend()),
        ({"method": {"name": "crop-blend", "weight": 0.3}}, None, CropBlend(weight=0.3)),
        ({"method": {"weight": 0.3}}, None, CropBlend(weight=0.3)),
        ({"method": {"weight": 0.3}}, {"method": {"eps": 0.2}}, CropBlend(weight=0.3, eps=0.2)),
        ({"method": {"weight": 0.3}}, {"method": {"name": "crop-blend", "eps": 0.2}}, CropBlend(eps=0.2)),
        ({"method": {"weight": 0.3}}, {"method": "crop-blend"}, CropBlend()),
        (False, {"method": {"weight": 0.1}}, CropBlend(weight=0.1)),
        (True, {"method": "vanilla"}, None),
        (True, {"method": None}, None),
        (True, {"method": {"weight": 0}}, None),
        ({"method": {"num_crops": 100}}, {"method": {"keep": 3}}, CropBlend(num_crops=100, keep=3)),
    ],
)
def test_a_request_changes_the_servers_method(server, request_, expected):
    assert resolve(server, request_) == expected


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"method": "memvr"}, "memvr cannot run in vLLM"),
        ({"method": "vaf"}, "vaf cannot run in vLLM"),
        ({"method": {"name": "vcd"}}, "vcd cannot run in vLLM"),
        ({"method": "air-memory"}, "air-memory cannot run in vLLM"),
        ({"method": "air"}, "air cannot run in vLLM"),
        ({"method": {"name": "composed", "methods": [{"name": "crop-blend"}, {"name": "vaf"}]}}, "cannot run in vLLM"),
        ({"method": {"name": "mean-token", "method": {"name": "crop-blend"}}}, "cannot run in vLLM"),
        ({"method": {"strange": 1}}, "no option 'strange'"),
        ({"method": {"weight": "much"}}, "weight"),
        ({"method": {"weight": float("nan")}}, "weight = nan"),
        ({"method": {"num_crops": True}}, "num_crops = True"),
        ({"method": {"num_crops": 65}}, "at most 64"),
        ({"method": {"eps": 0}}, "eps"),
        ({"method": {"name": "vanilla", "weight": 1}}, "has no options"),
        ({"method": "nonsense"}, "unknown method"),
        ({"method": "crop-blend:weight=0.4"}, "unknown method"),
        ({"weight": 0.4}, "give false"),
        ("crop-blend", "give false"),
        ("@calibration.json", "give false"),
        (3, "give false"),
    ],
)
def test_what_vllm_cannot_run_is_refused_by_name(setting, message):
    with pytest.raises(ValueError, match=message):
        resolve(True, setting)


@pytest.mark.parametrize(
    "method", [MemVR(), VAF(), VCD(), AIRMemory(), AIR(), Composed(CropBlend(), VAF()), RandomCrops(CropBlend(keep=2))]
)
def test_a_server_with_such_a_method_does_not_start(method):
    with pytest.raises(ValueError, match="cannot run in vLLM"):
        overrides(["LlavaForConditionalGeneration"], method)


@pytest.mark.parametrize(
    "method",
    [
        CropBlend(),
        CropBlend(weight=0.3, keep=3),
        CropBlend(num_prototypes=7, match="softmax", crop_layout="random"),
        CropBlend(num_crops=200),
    ],
)
def test_a_method_travels_as_bytes_and_as_a_setting(method):
    assert from_tensor(to_tensor(method)) == method
    assert resolve(json.loads(json.dumps(to_setting(method)))) == method


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_variant_is_chosen_by_the_architecture(name):
    chosen = overrides([name], "crop-blend:weight=0.3")
    assert chosen["architectures"] == [f"CropBlend{name}"]
    assert resolve(chosen["airvlm"]) == CropBlend(weight=0.3)
    assert overrides(chosen["architectures"])["architectures"] == chosen["architectures"]
    assert resolve(overrides([name], False)["airvlm"]) is None


def test_an_architecture_without_a_variant_is_refused():
    with pytest.raises(ValueError, match=r"InternVL.*airvlm serve"):
        overrides(["InternVLForConditionalGeneration"])

"""The published settings fit the released models: every window lies in the decoder."""

import pytest

from airvlm import AIR
from airvlm.methods.air import default_span
from airvlm.methods.memvr import MemVR
from airvlm.models import PORTS
from airvlm.models.settings import SETTINGS

DEPTH = {"qwen": 32, "chatglm": 40}


def test_both_ports_have_settings() -> None:
    assert SETTINGS.keys() == PORTS.keys() == DEPTH.keys()


@pytest.mark.parametrize(("family", "name"), [(f, n) for f, methods in SETTINGS.items() for n in methods])
def test_the_window_is_the_published_one(family: str, name: str) -> None:
    method = SETTINGS[family][name]
    if isinstance(method, MemVR):
        first = 6 if (family, name) == ("chatglm", "memvr-demo") else 10
        assert method.watched(family, DEPTH[family]) == range(first, 16)  # strictly between, in the scripts' counting
    else:
        assert isinstance(method, AIR)
        assert method.layers is not None and range(*method.layers) == default_span(DEPTH[family])


def test_without_settings_a_method_takes_the_familys_own() -> None:
    assert MemVR().watched("qwen", 32) == range(10, 16)

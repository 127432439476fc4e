"""Weights in 4 or 8 bits by bitsandbytes: what it needs to run on a CPU as well, for layers of any size.

Knows the classes of bitsandbytes by name, so that it is never imported here, and nothing of methods.
"""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

__all__ = ["any_size_on_a_cpu"]

BLOCK = 64  # weights that share a scale
PACKED = 32  # output features that the packed form takes together


def any_size_on_a_cpu(model: nn.Module) -> None:
    """Keep bitsandbytes from packing layers that its packed form cannot hold; they are unpacked pass by pass instead.

    On processors with AVX512-BF16 it packs every 4-bit layer in its first pass, and fails on those whose inputs are
    no multiple of 64 or whose outputs are none of 32. In 8 bits it tells in every layer that float32 is cast.
    """
    modules: list[Any] = list(model.modules())
    if any(type(module).__name__ == "Linear8bitLt" for module in modules):
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    for module in modules:
        fits = type(module).__name__ != "Linear4bit" or not (module.in_features % BLOCK or module.out_features % PACKED)
        if not fits:
            module.support_avx512bf16_for_cpu = False

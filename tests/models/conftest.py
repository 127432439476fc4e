"""What tests of models share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def interpreted() -> Iterator[None]:
    """bitsandbytes compiles its arithmetic on the CPU at its first call: longer than all that these tests ask for."""
    import torch

    with torch.compiler.set_stance("force_eager"):
        yield

"""The fakes of fake_models.py, and a method by any name that shifts how far the fake model sees."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from airvlm.methods.base import Method

sys.path.insert(0, str(Path(__file__).parent))  # workers unpickle the fakes by these names
from fake_models import (  # noqa: F401 - what tests import from here
    TASKS,
    FakeAnswer,
    FakeCaptions,
    FakeQuestions,
    FakeVLM,
    MortalVLM,
    PlainMethod,
    first_come,
)


@dataclass(frozen=True)
class FakeMethod(Method):
    """Stands for a method of any name."""

    name: ClassVar[str] = "fake"

    kind: str = "fake"  # the name that it is stored under
    bias: float = 0.0
    fires: bool = True

    @property
    def label(self) -> str:
        options = [f"bias={self.bias:g}"] * bool(self.bias) + ["fires=false"] * (not self.fires)
        return f"{self.kind}:{','.join(options)}" if options else self.kind

    def to_json(self) -> dict[str, Any]:
        return {"name": self.kind, "bias": self.bias, "fires": self.fires}


def parse_fake(text: str) -> FakeMethod | None:
    """`kind:bias=1` -> the method."""
    kind, _, rest = text.partition(":")
    if kind == "vanilla":
        return None
    options = dict(pair.split("=") for pair in rest.split(",") if pair)
    return FakeMethod(kind, float(options.get("bias", 0)), options.get("fires", "true") == "true")

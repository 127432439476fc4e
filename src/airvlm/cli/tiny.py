"""`airvlm tiny`: what the embedded model is, how it was made, what it scores, what it cannot do.

Reads the card beside the weights; loads no weights.
"""

import json as json_files
from typing import Any

from rich.table import Table

from airvlm import tiny as embedded
from airvlm.cli.console import Failure, emit, out
from airvlm.cli.options import JsonOption
from airvlm.tiny.world import CONTEXTS, OBJECTS

__all__ = ["tiny"]

LIMITS = (
    "It knows its own little world only: emoji objects on coloured grounds. Photographs are beyond it.",
    "It hallucinates because it is small and its world has habits; nothing was done to make it hallucinate.",
    "What helps it need not help a large model: effects here are evidence about mechanisms, not about LLaVA-7B.",
)


def tiny(json: JsonOption = False) -> None:
    """About the embedded model: size, training, scores, limits.

    [bold]Examples[/bold]

    airvlm tiny

    airvlm tiny --json
    """
    facts = about()
    if json:
        emit(facts)
        return
    console = out()
    table = Table.grid(padding=(0, 3))
    for name, value in flat(facts):
        table.add_row(name, str(value))
    console.print(table)


def about() -> dict[str, Any]:
    """The card, and what can be read from the files themselves."""
    folder = embedded.model_path()
    if not (folder / "config.json").is_file():
        raise Failure(f"the embedded model is not in this installation ({folder}); `make train` makes it")
    config = json_files.loads((folder / "config.json").read_text())
    text, vision = config.get("text_config", {}), config.get("vision_config", {})
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    architecture = {
        "type": config.get("model_type"),
        "decoder layers": text.get("num_hidden_layers"),
        "decoder width": text.get("hidden_size"),
        "vision layers": vision.get("num_hidden_layers"),
        "vision width": vision.get("hidden_size"),
        "picture side (pixels)": vision.get("image_size"),
        "weights (MB)": round(size / 1e6, 1),
    }
    world = {"objects": len(OBJECTS), "contexts": len(CONTEXTS)}
    return {
        "architecture": architecture,
        "world": world,
        **(embedded.model_card() if (folder / "card.json").is_file() else {}),
        "limits": list(LIMITS),
    }


def flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """Nested facts as lines: ("architecture · width", 96)."""
    if isinstance(value, dict):
        return [
            row for key, inner in value.items() for row in flat(inner, f"{name} · {key}" if name else key)
        ]
    if isinstance(value, list):
        return [(name if i == 0 else "", item) for i, item in enumerate(value)]
    return [(name, value)]

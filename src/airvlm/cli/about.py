"""`airvlm about`: what the embedded models are, how they were made, what they score, what they cannot do.

Reads the cards beside the weights; loads no weights.
"""

import json as json_files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from airvlm import photo, tiny
from airvlm.cli.console import Failure, emit, out
from airvlm.cli.options import JsonOption
from airvlm.tiny.world import CONTEXTS, OBJECTS

__all__ = ["about", "facts_of"]

MODELS = {"photo": photo, "tiny": tiny}
WORLDS = {
    "photo": {"images": "photographs", "objects": 80, "learnt from": "COCO train2017"},
    "tiny": {"images": "emoji on coloured grounds", "objects": len(OBJECTS), "contexts": len(CONTEXTS)},
}
LIMITS = {
    "photo": (
        "It knows COCO's 80 objects and a few kinds of sentences; an image of anything else still gets an answer.",
        "It sees every image squashed to a small square: what is small in it is often missed, or guessed.",
    ),
    "tiny": ("It knows its own little world only: emoji objects on coloured grounds. Photographs are beyond it.",),
}
BOTH = (
    "It hallucinates because it is small and its world has habits; nothing was done to make it hallucinate.",
    "What helps it need not help a large model: effects here are evidence about mechanisms, not about LLaVA-7B.",
)


def about(
    model: Annotated[str | None, typer.Argument(help="photo or tiny. Default: both.")] = None,
    json: JsonOption = False,
) -> None:
    """About the embedded models: size, training, scores, limits.

    [bold]Examples[/bold]

    airvlm about

    airvlm about photo --json
    """
    if model is not None and model not in MODELS:
        raise Failure(f"no embedded model {model!r}; there are {' and '.join(MODELS)}")
    here = [name for name, own in MODELS.items() if (own.model_path() / "config.json").is_file()]
    facts = {name: facts_of(name) for name in ([model] if model else here or MODELS)}
    if json:
        emit(facts)
        return
    console = out()
    for name, own in facts.items():
        console.print(f"[bold]{name}[/bold]")
        table = Table.grid(padding=(0, 3))
        for label, value in flat(own):
            table.add_row(f"  {label}", str(value))
        console.print(table)


def facts_of(name: str) -> dict[str, Any]:
    """The card, and what can be read from the files themselves."""
    folder = Path(MODELS[name].model_path())
    if not (folder / "config.json").is_file():
        made = "make train" if name == "tiny" else "make train-photo"
        raise Failure(f"the embedded model {name} is not in this installation ({folder}); `{made}` makes it")
    config = json_files.loads((folder / "config.json").read_text())
    text, vision = config.get("text_config", {}), config.get("vision_config", {})
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    architecture = {
        "type": config.get("model_type"),
        "decoder layers": text.get("num_hidden_layers"),
        "decoder width": text.get("hidden_size"),
        "vision tower": vision.get("model_type"),
        "vision width": vision.get("hidden_size"),
        "image side (pixels)": vision.get("image_size"),
        "visual tokens": config.get("image_seq_length"),
        "weights (MB)": round(size / 1e6, 1),
    }
    card = json_files.loads((folder / "card.json").read_text()) if (folder / "card.json").is_file() else {}
    return {"architecture": architecture, "world": WORLDS[name], **card, "limits": [*LIMITS[name], *BOTH]}


def flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """Nested facts as lines: ("architecture · width", 96)."""
    if isinstance(value, dict):
        return [row for key, inner in value.items() for row in flat(inner, f"{name} · {key}" if name else key)]
    if isinstance(value, list):
        return [(name if i == 0 else "", item) for i, item in enumerate(value)]
    return [(name, value)]

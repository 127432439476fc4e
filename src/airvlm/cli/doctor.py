"""`airvlm doctor`: what is installed, what each optional part opens, and how to install what is missing.

Asks the installation's metadata; imports torch only to name the devices, and no optional package at all.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from airvlm import __version__
from airvlm.cli.console import emit, out
from airvlm.cli.options import JsonOption

__all__ = ["DOORS", "Door", "doctor"]

CORE = (
    "torch", "transformers", "safetensors", "Pillow", "numpy", "typer", "rich", "filelock", "jinja2", "matplotlib",
    "pydantic",
)  # fmt: skip


@dataclass(frozen=True)
class Door:
    """One thing that an optional package opens."""

    name: str
    opens: str  # what becomes possible
    modules: tuple[str, ...]  # what must be importable
    install: str  # the command


def _extra(name: str, opens: str, *modules: str) -> Door:
    return Door(name, opens, modules, f"pip install 'airvlm[{name}]'")


DOORS = (
    _extra("lora", "--adapter: a LoRA on the model", "peft"),
    _extra("offload", "--device-map: weights spread over devices", "accelerate"),
    _extra("ray", "evaluate --ray: workers on several machines", "ray"),
    _extra("nltk", "the trained tagger of chair's variant wordnet and of amber; rules serve else", "nltk"),
    _extra("xlsx", "benchmarks and predictions in .xlsx files", "openpyxl"),
    _extra("judge", "benchmarks that a judge grades (AIRVLM_JUDGE_URL)", "openai"),
    _extra("photos", "airvlm demo: a photograph beside the scene (or your own: --image)", "skimage"),
    _extra("serve", "airvlm serve: an OpenAI-compatible server", "fastapi", "uvicorn", "prometheus_client"),
    _extra("web", "airvlm web: a page in the browser", "gradio"),
    Door("lmms-eval", "lmms-eval --model airvlm", ("lmms_eval",), "pip install lmms-eval"),
    Door("vllm", "methods inside vLLM", ("vllm",), "pip install vllm"),
    Door("quantise", "--quantise: weights in 4 or 8 bits", ("bitsandbytes",), "pip install 'airvlm[quantise]'"),
)


def doctor(json: JsonOption = False) -> None:
    """What is installed, what is missing, and the command that installs it.

    [bold]Examples[/bold]

    airvlm doctor

    airvlm doctor --json
    """
    facts = examine()
    if json:
        emit(facts)
        return
    console = out()
    table = Table.grid(padding=(0, 2))
    for name, value in facts["installed"].items():
        table.add_row(name, escape(value or "missing"))
    for name, value in facts["here"].items():
        table.add_row(name, escape(value))
    console.print(table)
    console.print()
    for door in facts["doors"]:
        state = "[green]open[/green]  " if door["open"] else "[yellow]closed[/yellow]"
        console.print(f"{state}  [bold]{door['name']}[/bold]  {escape(door['opens'])}", soft_wrap=True)
        if not door["open"]:
            console.print(f"        {escape(door['missing'])}: {escape(door['install'])}", soft_wrap=True)


def examine() -> dict[str, Any]:
    """Everything that the command tells."""
    installed = {"python": platform.python_version(), "airvlm": __version__}
    installed |= {name: _version(name) for name in CORE}
    doors = [_door(door) for door in DOORS]
    return {"installed": installed, "here": _here(), "doors": [*doors, _nltk_data()]}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _door(door: Door) -> dict[str, Any]:
    missing = [module for module in door.modules if not _importable(module)]
    return {
        "name": door.name,
        "opens": door.opens,
        "open": not missing,
        "missing": f"{', '.join(missing)} is not installed" if missing else "",
        "install": door.install,
    }


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a parent package that is missing or broken
        return False


def _here() -> dict[str, str]:
    from airvlm import photo, tiny

    facts = {}
    for name, folder, made in (
        ("photo", photo.model_path(), "train-photo"),
        ("tiny", tiny.model_path(), "train"),
    ):
        there = (folder / "model.safetensors").is_file()
        facts[f"embedded {name}"] = str(folder) if there else f"missing: `make {made}` makes it"
    try:
        import torch
    except (ImportError, OSError) as error:
        return facts | {"devices": f"torch cannot be imported: {error}"}
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return facts | {"devices": ", ".join([*gpus, *mps, f"cpu ({torch.get_num_threads()} threads)"])}


def _nltk_data() -> dict[str, Any]:
    """The tagger's data, found without importing nltk: where NLTK_DATA points, or in the usual places."""
    named = [Path(place) for place in os.environ.get("NLTK_DATA", "").split(os.pathsep) if place]
    usual = [Path.home() / "nltk_data", Path("/usr/share/nltk_data"), Path("/usr/local/share/nltk_data")]
    found = any((place / "taggers").is_dir() for place in (*named, *usual))
    return {
        "name": "nltk data",
        "opens": "the data of the extra nltk",
        "open": found,
        "missing": "" if found else "no taggers in NLTK_DATA or the usual places",
        "install": "python -m nltk.downloader averaged_perceptron_tagger wordnet omw-1.4 punkt",
    }

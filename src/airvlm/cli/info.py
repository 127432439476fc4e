"""`airvlm info`: models, methods, tasks, the installation, and how a model sees an image.

Everything but the installation's devices, methods of other packages and images is told without importing torch.
"""

from __future__ import annotations

import difflib
import json as json_files
import os
import platform
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airvlm import __version__, photo, tiny
from airvlm.cli import common
from airvlm.cli.console import Failure, emit, print_columns, warn
from airvlm.cli.method_table import describe_method, outside_methods, read_table
from airvlm.cli.options import JsonOption, MarkdownOption, ModelOptions

if TYPE_CHECKING:
    from PIL import Image

    from airvlm.vlm import VLM

__all__ = ["CORE", "EXTRAS", "Extra", "image_facts", "info", "methods_markdown", "model_facts", "models_markdown"]

TOPICS = ("models", "methods", "tasks", "installation")


def info(
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="models, methods, tasks, installation, a method, or an image file."),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One model, method or task, with everything known of it.")
    ] = None,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    model: ModelOptions = ModelOptions(),
) -> None:
    """Show models, methods, tasks, the installation, or an image's tokens.

    Without a topic: the version, the optional packages and the embedded models. With an image: how many visual tokens
    the model gets for it, the size that it is resized to, and its tiles.

    \b
    Examples:
      airvlm info
      airvlm info methods
      airvlm info methods crop-blend
      airvlm info models photo
      airvlm info tasks
      airvlm info installation
      airvlm info photo.jpg --model photo
    A method of your own, by its module and class:
      airvlm info methods airvlm.methods.vaf:VAF
    """
    if markdown:
        tables = {"models": models_markdown, "methods": methods_markdown}
        if topic not in tables:
            raise Failure("--markdown is for `info models` and `info methods`")
        print(tables[topic]())
    elif topic is None:
        _show(overview(), _print_overview, json)
    elif topic == "models":
        _show(models(), _print_models, json) if name is None else _show(model_facts(name), _print_facts, json)
    elif topic == "methods":
        _show(methods(), _print_methods, json) if name is None else _show(method_facts(name), _print_method, json)
    elif topic == "tasks":
        _show(tasks(name), _print_tasks, json)
    elif topic == "installation":
        _show(installation(), _print_installation, json)
    elif topic in MODELS:
        _show(model_facts(topic), _print_facts, json)
    elif topic == "-" or topic.startswith(("data:", "http://", "https://")) or Path(topic).is_file():
        image = common.read_images([topic], allow_urls=True, model=model.model)[0]
        _show(image_facts(common.load_model(model), image), _print_facts, json)
    elif topic in read_table() or topic in outside_methods() or ":" in topic:
        _show(method_facts(topic), _print_method, json)
    else:
        near = difflib.get_close_matches(topic, [*TOPICS, *MODELS, *read_table()], 1)
        hint = f"did you mean {near[0]}?" if near else f"give {', '.join(TOPICS)}, a method, or an image file"
        raise Failure(f"nothing is known of {topic!r}; {hint}")


def _show(facts: dict[str, Any], show: Any, json: bool) -> None:
    emit(facts) if json else show(facts)


def _print_facts(facts: dict[str, Any]) -> None:
    print_columns(_flatten(facts))


def _flatten(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested facts as rows: ("architecture, decoder width", "96")."""
    if isinstance(value, dict):
        return [row for key, inner in value.items() for row in _flatten(inner, f"{name}, {key}" if name else key)]
    if isinstance(value, list):
        return [(name if i == 0 else "", str(item)) for i, item in enumerate(value)]
    return [(name, str(value))]


# -- overview


def overview() -> dict[str, Any]:
    """What `airvlm info` alone shows."""
    extras = {extra.name: not extra.missing() for extra in EXTRAS}
    return {
        "version": __version__,
        "python": platform.python_version(),
        "models": embedded_models(),
        "installed": [name for name, there in extras.items() if there],
        "not_installed": [name for name, there in extras.items() if not there],
    }


def _print_overview(facts: dict[str, Any]) -> None:
    print(f"airvlm {facts['version']}, Python {facts['python']}\n\nEmbedded models")
    _print_embedded(facts["models"])
    print("\nOptional packages")
    rows = [("installed", ", ".join(facts["installed"]) or "none")]
    if facts["not_installed"]:
        rows.append(("not installed", ", ".join(facts["not_installed"]) + " (see airvlm info installation)"))
    print_columns(rows, indent=2)
    print("\nMore")
    rows = [
        ("airvlm demo", "see what a method does"),
        ("airvlm info methods", "all methods, one line each"),
        ("airvlm info methods crop-blend", "one method with its options"),
        ("airvlm info models", "the model families that can be used"),
        ("airvlm info tasks", "the benchmarks"),
        ("airvlm info photo.jpg", "how a model sees an image"),
    ]
    print_columns(rows, indent=2)


# -- models

MODELS = {"photo": photo, "tiny": tiny}
IMAGES = {"photo": "photographs with COCO's 80 objects", "tiny": "emoji scenes, as `airvlm scene` draws them"}
LIMITS = {
    "photo": [
        "It knows COCO's 80 objects and a few kinds of sentences, and answers questions about anything else too.",
        "Every image is resized to a small square: small objects are often missed or guessed.",
    ],
    "tiny": ["It knows emoji scenes only, and no photographs."],
}
COMMON_LIMITS = [
    "It was trained on single questions, not on conversations.",
    "It hallucinates because it is small; nothing was done to make it hallucinate.",
    "Effects on it are evidence about mechanisms, not about models of billions of parameters.",
]


def embedded_models() -> dict[str, dict[str, Any]]:
    """The models inside the package: what they know, their size and their scores."""
    found = {}
    for name, module in MODELS.items():
        folder = Path(module.model_path())
        if (folder / "card.json").is_file():
            card: dict[str, Any] = module.model_card()
            found[name] = {
                "images": IMAGES[name],
                "parameters": card.get("parameters"),
                "megabytes": _megabytes(folder),
                "scores": card.get("scores", {}),
                "scored on": card.get("scored on", ""),
            }
    return found


def _megabytes(folder: Path) -> float:
    return round(sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6, 1)


def _print_embedded(found: dict[str, dict[str, Any]]) -> None:
    rows = []
    for name, facts in found.items():
        size = f"{(facts['parameters'] or 0) / 1e6:.1f} M parameters, {facts['megabytes']} MB"
        rows.append((name, f"{facts['images']}; {size}"))
        scores = ", ".join(f"{key} {value:.1f}" for key, value in facts["scores"].items() if "-" not in key)
        rows.append(("", f"{scores} ({facts['scored on']})"))
    if not rows:
        rows = [("none", "`make train` and `make train-photo` train them")]
    print_columns(rows, indent=2)


def models() -> dict[str, Any]:
    """The embedded models and the supported families."""
    from airvlm.models.families import FAMILIES, REFUSED

    rows = [_family_facts(name) for name in FAMILIES]
    for problem in FAMILIES.problems.values():
        warn(f"left out: {problem}")
    return {"embedded": embedded_models(), "families": rows, "refused": dict(REFUSED)}


def _family_facts(name: str) -> dict[str, Any]:
    from airvlm.models.families import FAMILIES

    f = FAMILIES[name]
    return {
        "model_type": f.model_type,
        "title": f.title,
        "checkpoint": f.checkpoint,
        "resolution": f.resolution,
        "note": f.note,
        "package": FAMILIES.package(name),
    }


def _print_models(facts: dict[str, Any]) -> None:
    print("Embedded models")
    _print_embedded(facts["embedded"])
    print("\nFamilies, by transformers' model type, with one checkpoint each")
    rows = []
    for f in facts["families"]:
        package = "" if f["package"] == "airvlm" else f" (of {f['package']})"
        rows.append((f["model_type"], f["checkpoint"], f"{f['title']}{package}: {f['resolution']}"))
    print_columns(rows, indent=2)
    if facts["refused"]:
        print("\nNot supported")
        print_columns(list(facts["refused"].items()), indent=2)


def model_facts(name: str) -> dict[str, Any]:
    """Everything known of an embedded model or a family."""
    from airvlm.models.families import FAMILIES

    if name not in MODELS:
        by_checkpoint = {f.checkpoint: key for key, f in FAMILIES.items()}
        if by_checkpoint.get(name, name) in FAMILIES:
            return _family_facts(by_checkpoint.get(name, name))
        near = difflib.get_close_matches(name, [*MODELS, *FAMILIES, *by_checkpoint], 1)
        raise Failure(
            f"unknown model {name!r}; "
            + (f"did you mean {near[0]}?" if near else "`airvlm info models` lists the embedded ones and the families")
        )
    folder = Path(MODELS[name].model_path())
    if not (folder / "config.json").is_file():
        target = "train" if name == "tiny" else "train-photo"
        raise Failure(f"the embedded model {name} is not in this installation ({folder}); train it: make {target}")
    config = json_files.loads((folder / "config.json").read_text())
    text, vision = config.get("text_config", {}), config.get("vision_config", {})
    architecture = {
        "model type": config.get("model_type"),
        "decoder layers": text.get("num_hidden_layers"),
        "decoder width": text.get("hidden_size"),
        "vision tower": vision.get("model_type"),
        "vision width": vision.get("hidden_size"),
        "image side (pixels)": vision.get("image_size"),
        "visual tokens": config.get("image_seq_length"),
        "weights (MB)": _megabytes(folder),
    }
    card = json_files.loads((folder / "card.json").read_text()) if (folder / "card.json").is_file() else {}
    limits = [*LIMITS[name], *COMMON_LIMITS]
    return {"name": name, "images": IMAGES[name], "architecture": architecture} | card | {"limits": limits}


def models_markdown() -> str:
    """A Markdown table with one row per family."""
    from airvlm.models.families import FAMILIES

    lines = ["| family | model type | for example | images |", "|---|---|---|---|"]
    lines += [
        f"| {f.title} | `{f.model_type}` | {f.checkpoint} | {f.resolution}{'; ' + f.note if f.note else ''} |"
        for f in FAMILIES.own.values()
    ]
    return "\n".join(lines)


# -- methods


def methods() -> dict[str, Any]:
    """All methods: the built-in ones with their facts, others by name and package."""
    return {"methods": read_table(), "outside": outside_methods()}


def _print_methods(facts: dict[str, Any]) -> None:
    by_site: dict[str, list[tuple[str, str]]] = {}
    for name, method in facts["methods"].items():
        by_site.setdefault(method["site"], []).append((name, method["summary"].removeprefix("control: ")))
    if facts["outside"]:
        by_site["other packages"] = [(name, f"of {package}") for name, package in facts["outside"].items()]
    width = max(len(name) for rows in by_site.values() for name, _ in rows)
    for site, rows in by_site.items():
        title = {"control": "Controls", "other packages": "Of other packages"}.get(site, f"Changes {site}")
        print(title)
        print_columns([(name.ljust(width), summary) for name, summary in rows], indent=2)
    print("\nairvlm info methods NAME shows a method's options; combine methods with +, as in crop-blend+vaf")


def method_facts(name: str) -> dict[str, Any]:
    """One method: its paper, cost and options."""
    table = read_table()
    if name in table:
        return {"name": name, "package": "airvlm"} | table[name]
    from airvlm.methods.names import METHODS

    if name in METHODS:
        return {"name": name, "package": METHODS.package(name)} | describe_method(METHODS[name])
    if ":" not in name:
        raise Failure(METHODS.unknown("method", name))
    method = common.choose_method(name)
    assert method is not None, "vanilla has no options, so it is refused"
    return {"name": name, "package": name.split(":")[0]} | describe_method(type(method))


def _print_method(facts: dict[str, Any]) -> None:
    print(f"{facts['name']}: {facts['summary']}\n")
    rows = [
        ("paper", facts["paper"] or "none: a method of this package"),
        ("acts on", facts["site"]),
        ("cost", facts["cost"]),
        ("needs", facts["data"] or "image and question only"),
        ("decoding", facts["decoding"]),
        ("engines", facts["engines"]),
    ]
    if facts["package"] != "airvlm":
        rows.append(("package", facts["package"]))
    print_columns(rows, indent=2)
    print("\nOptions")
    for option in facts["options"]:
        values = f" ({option['values']})" if option["values"] else ""
        print_columns([(f"{option['name']}={option['default']}".ljust(26), option["help"] + values)], indent=2)
    example = next((o for o in facts["options"] if o["name"] in ("weight", "strength", "alpha")), None)
    if example is not None:
        print(f"\nairvlm ask photo.jpg --method {facts['name']}:{example['name']}={example['default']}")


def methods_markdown() -> str:
    """A Markdown table with one row per method."""
    lines = ["| method | what it does | acts on | forward passes | paper |", "|---|---|---|---|---|"]
    for name, facts in read_table().items():
        summary = facts["summary"].removeprefix("control: ")
        lines.append(f"| `{name}` | {summary} | {facts['site']} | {facts['cost']} | {facts['paper'] or ''} |")
    return "\n".join(lines)


# -- tasks


def tasks(name: str | None) -> dict[str, Any]:
    """The benchmarks by name, or one of them."""
    from airvlm.tasks import TASKS

    if name is not None and name not in TASKS:
        raise Failure(TASKS.unknown("task", name))
    chosen = TASKS if name is None else [name]
    return {"tasks": {each: {"summary": TASKS[each].about, "package": TASKS.package(each)} for each in chosen}}


def _print_tasks(facts: dict[str, Any]) -> None:
    rows = []
    for name, task in facts["tasks"].items():
        package = "" if task["package"] == "airvlm" else f" (of {task['package']})"
        rows.append((name, task["summary"] + package))
    print_columns(rows)
    print("\nairvlm evaluate NAME runs one. tiny-* need nothing else; the others need --data FOLDER.")


# -- the installation

CORE = (
    "torch", "transformers", "safetensors", "Pillow", "numpy", "typer", "rich", "filelock", "jinja2", "matplotlib",
    "pydantic",
)  # fmt: skip


@dataclass(frozen=True)
class Extra:
    """Optional packages and what they are for."""

    name: str
    purpose: str
    modules: tuple[str, ...]  # what must be importable
    install: str = ""  # the command; by default the extra of this name

    @property
    def command(self) -> str:
        return self.install or f"pip install 'airvlm[{self.name}]'"

    def missing(self) -> list[str]:
        """Modules that are not installed."""
        return [module for module in self.modules if not _is_importable(module)]


EXTRAS = (
    Extra("lora", "--adapter: a LoRA on the model", ("peft",)),
    Extra("offload", "--device-map: weights spread over devices", ("accelerate",)),
    Extra("quantise", "--quantize: weights in 4 or 8 bits", ("bitsandbytes",)),
    Extra("ray", "evaluate --ray: workers on several machines", ("ray",)),
    Extra("nltk", "the tagger that chair --variant wordnet and amber use", ("nltk",)),
    Extra("xlsx", "benchmarks and predictions in .xlsx files", ("openpyxl",)),
    Extra("judge", "benchmarks that a judge grades", ("openai",)),
    Extra("photos", "photographs for airvlm demo", ("skimage",)),
    Extra("serve", "airvlm serve", ("fastapi", "uvicorn", "prometheus_client")),
    Extra("web", "airvlm serve --page", ("gradio",)),
    Extra("vllm", "airvlm serve --engine vllm", ("vllm",), "pip install vllm, in an environment of its own"),
    Extra("lmms-eval", "lmms-eval --model airvlm", ("lmms_eval",), "pip install lmms-eval"),
)


def _is_importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a parent package that is missing or broken
        return False


def installation() -> dict[str, Any]:
    """Versions, devices, embedded models and optional packages."""
    versions = {"python": platform.python_version(), "airvlm": __version__}
    versions |= {name: _version(name) for name in CORE}
    folders = {
        name: str(module.model_path()) if (Path(module.model_path()) / "config.json").is_file() else "missing"
        for name, module in MODELS.items()
    }
    extras = [{"name": e.name, "purpose": e.purpose, "missing": e.missing(), "install": e.command} for e in EXTRAS] + [
        _nltk_data()
    ]
    return {"versions": versions, "devices": _devices(), "models": folders, "extras": extras}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def _devices() -> str:
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"torch cannot be imported: {error}"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return ", ".join([*gpus, *mps, f"cpu ({torch.get_num_threads()} threads)"])


def _nltk_data() -> dict[str, Any]:
    """Whether NLTK's data is there, found without importing nltk."""
    places = [Path(place) for place in os.environ.get("NLTK_DATA", "").split(os.pathsep) if place]
    places += [Path.home() / "nltk_data", Path("/usr/share/nltk_data"), Path("/usr/local/share/nltk_data")]
    found = any((place / "taggers").is_dir() for place in places)
    return {
        "name": "nltk data",
        "purpose": "data of the extra nltk",
        "missing": [] if found else ["taggers in NLTK_DATA"],
        "install": "python -m nltk.downloader averaged_perceptron_tagger wordnet omw-1.4 punkt",
    }


def _print_installation(facts: dict[str, Any]) -> None:
    rows = [*facts["versions"].items(), ("devices", facts["devices"])]
    print_columns([*rows, *((f"model {name}", folder) for name, folder in facts["models"].items())])
    print("\nOptional packages")
    print_columns(
        [(e["name"], "not installed" if e["missing"] else "installed", e["purpose"]) for e in facts["extras"]], indent=2
    )
    missing = [(e["name"], e["install"]) for e in facts["extras"] if e["missing"]]
    if missing:
        print("\nTo install")
        print_columns(missing, indent=2)


# -- images


def image_facts(vlm: VLM, image: Image.Image) -> dict[str, Any]:
    """How a model sees an image: visual tokens, the size it is resized to, tiles."""
    from airvlm.inputs.prompts import DESCRIBE

    inputs = vlm.builder.build([vlm.builder.read(image, DESCRIBE)], pixels=True)
    ids = inputs["input_ids"][0]
    visual = int((ids == vlm.parts.image_token_id).sum())
    facts: dict[str, Any] = {
        "model": vlm.name,
        "image (pixels)": f"{image.width} x {image.height}",
        "visual tokens": visual,
        "prompt tokens": len(ids),
    }
    pixels, grid = inputs.get("pixel_values"), inputs.get("image_grid_thw")
    if grid is not None:
        patch = int(getattr(vlm.processor.image_processor, "patch_size", 14))
        _, rows, columns = grid[0].tolist()
        facts |= {"resized to (pixels)": f"{columns * patch} x {rows * patch}", "views": 1}
    elif pixels is not None and pixels.dim() in (4, 5):
        *views, _, height, width = pixels.shape
        facts |= {"resized to (pixels)": f"{width} x {height}", "views": max(views)}
        if max(views) > 1:
            facts["resized to (pixels)"] += " per view"
    return facts

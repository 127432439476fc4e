"""`airvlm info`: models, methods, tasks, the installation, and how a model sees an image.

torch is imported for methods of other packages, for images, and for the installation where there may be a GPU.
"""

from __future__ import annotations

import difflib
import json as json_files
import mimetypes
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airvlm import __version__, photo, smol, tiny
from airvlm.cli import common
from airvlm.cli.console import Failure, emit, print_columns, warn
from airvlm.cli.method_table import describe_method, outside_methods, read_table
from airvlm.cli.options import JsonOption, MarkdownOption, ModelOptions

if TYPE_CHECKING:
    from PIL import Image

    from airvlm.vlm import VLM

__all__ = ["CORE", "EXTRAS", "Extra", "image_facts", "info", "methods_markdown", "models_markdown"]

TOPICS = ("models", "methods", "tasks", "installation")
Facts = dict[str, Any]
Section = tuple[str, Sequence[Sequence[str]]]  # a heading and rows of text


def info(
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="models, methods, tasks, installation, a method, or an image file."),
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One model, method or task, in detail.")] = None,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    model: ModelOptions = ModelOptions(),
) -> None:
    """Show models, methods, tasks, the installation, or an image's tokens.

    Without a topic: the version, the optional packages and the embedded models. With an image: how many visual tokens
    the model gets for it, the size that it is resized to, and its views (tiles).

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
        if topic not in tables or name is not None:
            raise Failure("--markdown is for `info models` and `info methods`")
        print(tables[topic]())
        return
    facts, sections = _find(topic, name, model)
    if json:
        emit(facts)
        return
    for number, (title, rows) in enumerate(sections):
        if title:
            print(title if number == 0 else f"\n{title}")
        print_columns(rows, indent=2 if title else 0)


def _find(topic: str | None, name: str | None, model: ModelOptions) -> tuple[Facts, list[Section]]:
    """What is known of a topic: as JSON, and as sections of a page."""
    if topic is None:
        return _overview()
    if topic == "models":
        return _models() if name is None else _model(name)
    if topic == "methods":
        return _methods() if name is None else _method(name)
    if topic == "tasks":
        return _tasks(name)
    if topic == "installation":
        return _installation()
    if topic in MODELS or topic == SMOL:
        return _model(topic)
    if topic == "-" or topic.startswith(("data:", "http://", "https://")) or Path(topic).is_file():
        image = common.read_images([topic], allow_urls=True, model=model.model)[0]
        facts = image_facts(common.load_model(model), image)
        return facts, [("", _flatten(facts))]
    if topic in read_table() or topic in outside_methods() or ":" in topic:
        return _method(topic)
    if (mimetypes.guess_type(topic)[0] or "").startswith("image/"):
        raise Failure(f"{topic} does not exist")
    near = difflib.get_close_matches(topic, [*TOPICS, *MODELS, SMOL, *read_table()], 1)
    hint = f"did you mean {near[0]}?" if near else f"give {', '.join(TOPICS)}, a method, or an image file"
    raise Failure(f"unknown topic {topic!r}; {hint}")


def _flatten(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested facts as rows: ("architecture, decoder width", "96")."""
    if isinstance(value, dict):
        return [row for key, inner in value.items() for row in _flatten(inner, f"{name}, {key}" if name else key)]
    if isinstance(value, list) and all(isinstance(item, float) for item in value):
        return [(name, ", ".join(map(str, value)))]
    if isinstance(value, list):
        return [(name if i == 0 else "", str(item)) for i, item in enumerate(value)]
    return [(name, str(value))] if value != "" else []


def _overview() -> tuple[Facts, list[Section]]:
    installed = [extra.name for extra in EXTRAS if not extra.list_missing()]
    absent = [extra.name for extra in EXTRAS if extra.list_missing()]
    facts = {"version": __version__, "python": platform.python_version(), "models": _list_embedded()}
    more = [
        ("airvlm demo", "see what a method does"),
        ("airvlm info methods", "all methods, one line each"),
        ("airvlm info methods crop-blend", "one method with its options"),
        ("airvlm info models", "the model families that can be used"),
        ("airvlm info tasks", "the benchmarks"),
        ("airvlm info photo.jpg", "how a model sees an image"),
    ]
    packages = [
        ("installed", ", ".join(installed) or "none"),
        ("not installed", f"{', '.join(absent) or 'none'} (airvlm info installation says what they are for)"),
    ]
    sections: list[Section] = [
        (f"airvlm {__version__}, Python {platform.python_version()}", []),
        ("Models of this package", _package_rows()),
        ("Optional packages", packages),
        ("More", more),
    ]
    return facts | {"installed": installed, "not_installed": absent}, sections


# -- models

MODELS = {"photo": photo, "tiny": tiny}
SMOL = "smol"
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


def _card(name: str) -> Facts:
    """What was written when an embedded model was trained; empty if it is not in this installation."""
    path = Path(MODELS[name].model_path()) / "card.json"
    card: Facts = json_files.loads(path.read_text()) if path.is_file() else {}
    return card


def _megabytes(name: str) -> float:
    return round(sum(f.stat().st_size for f in Path(MODELS[name].model_path()).glob("*.safetensors")) / 1e6, 1)


def _list_embedded() -> dict[str, Facts]:
    found = {}
    for name in MODELS:
        if card := _card(name):
            own = {key: card.get(key) for key in ("parameters", "scores", "scored on")}
            found[name] = {"images": IMAGES[name], "megabytes": _megabytes(name)} | own
    return found


def _package_rows() -> list[tuple[str, str]]:
    rows = []
    for name, facts in _list_embedded().items():
        size = f"{(facts['parameters'] or 0) / 1e6:.1f} M parameters, {facts['megabytes']} MB"
        scores = ", ".join(f"{key} {value:.1f}" for key, value in (facts["scores"] or {}).items() if "-" not in key)
        rows += [(name, f"{facts['images']}; {size}"), ("", f"{scores} ({facts['scored on']})")]
    return [*(rows or [("none", "`make train` and `make train-photo` train them")]), *_smol_rows()]


def _smol() -> Facts:
    """The model whose larger parts come from the hub."""
    megabytes = round(sum(f.stat().st_size for f in smol.model_path().glob("*.safetensors")) / 1e6, 1)
    return {"megabytes in the package": megabytes} | smol.model_card()


def _smol_rows() -> list[tuple[str, str]]:
    card: Any = _smol()
    size = f"{card['parameters'] / 1e6:.0f} M parameters, {card['megabytes in the package']} MB"
    described = card["scores"]["descriptions"]
    scores = ", ".join(f"{key} {described[key][0]:.1f}" for key in ("CHAIR_S", "CHAIR_I", "recall"))
    return [
        (SMOL, f"photographs; {size} and, from the hub at its first use, {' and '.join(card['parts'])}"),
        ("", f"{scores} ({described['photographs']} test photographs described, greedy)"),
    ]


def _family(name: str) -> Facts:
    from airvlm.models.families import FAMILIES, MAX_CROP_BATCH, VIEW_SIDE

    family, fields = FAMILIES[name], ("model_type", "title", "checkpoint", "resolution", "note")
    facts: Facts = {field: getattr(family, field) for field in fields} | {"package": FAMILIES.package(name)}
    views = f"one per {VIEW_SIDE} x {VIEW_SIDE} pixels" if family.views_per_crop is None else family.views_per_crop
    crops = {
        "views of a crop": views,
        "views per call of the vision tower": f"at most {MAX_CROP_BATCH} (--max-crop-batch)",
    }
    if family.view_bytes is not None:
        used = f"{MAX_CROP_BATCH * family.view_bytes / 1e9:.1f} GB in half precision, weights not counted"
        crops["memory of such a call"] = used
    return facts | {"crops": crops}


def _models() -> tuple[Facts, list[Section]]:
    from airvlm.models.families import FAMILIES, REFUSED

    families = [_family(name) for name in FAMILIES]
    for problem in FAMILIES.problems.values():
        warn(f"left out: {problem}")
    rows = []
    for family in families:
        package = "" if family["package"] == "airvlm" else f" (of {family['package']})"
        what = f"{family['title']}{package}: {family['resolution']}"
        rows.append((family["model_type"], family["checkpoint"], what))
    sections: list[Section] = [
        ("Models of this package", _package_rows()),
        ("Families, by transformers' model type, with one checkpoint each", rows),
        ("Not supported", list(REFUSED.items())),
    ]
    return {"embedded": _list_embedded(), "families": families, "refused": dict(REFUSED)}, sections


def _model(name: str) -> tuple[Facts, list[Section]]:
    """Everything known of an embedded model or a family."""
    from airvlm.models.families import FAMILIES

    if name in MODELS:
        facts = _embedded_model(name)
    elif name == SMOL:
        facts = _smol()
    else:
        by_checkpoint = {family.checkpoint: key for key, family in FAMILIES.items()}
        key = by_checkpoint.get(name, name)
        if key not in FAMILIES:
            near = difflib.get_close_matches(name, [*MODELS, SMOL, *FAMILIES, *by_checkpoint], 1)
            hint = f"did you mean {near[0]}?" if near else "`airvlm info models` lists what there is"
            raise Failure(f"unknown model {name!r}; {hint}")
        facts = _family(key)
    return facts, [("", _flatten(facts))]


def _embedded_model(name: str) -> Facts:
    path = Path(MODELS[name].model_path()) / "config.json"
    if not path.is_file():
        target = "train" if name == "tiny" else "train-photo"
        raise Failure(f"the embedded model {name} is not in this installation ({path.parent}): make {target} trains it")
    config = json_files.loads(path.read_text())
    text, vision = config.get("text_config", {}), config.get("vision_config", {})
    architecture = {
        "model type": config.get("model_type"),
        "decoder layers": text.get("num_hidden_layers"),
        "decoder width": text.get("hidden_size"),
        "vision tower": vision.get("model_type"),
        "vision width": vision.get("hidden_size"),
        "image side (pixels)": vision.get("image_size"),
        "visual tokens": config.get("image_seq_length"),
        "weights (MB)": _megabytes(name),
    }
    limits = [*LIMITS[name], *COMMON_LIMITS]
    return {"name": name, "images": IMAGES[name], "architecture": architecture} | _card(name) | {"limits": limits}


def models_markdown() -> str:
    """A Markdown table with one row per family."""
    from airvlm.models.families import FAMILIES

    lines = ["| family | model type | for example | images |", "|---|---|---|---|"]
    for f in FAMILIES.own.values():
        lines.append(
            f"| {f.title} | `{f.model_type}` | {f.checkpoint} | {'; '.join(filter(None, (f.resolution, f.note)))} |"
        )
    return "\n".join(lines)


# -- methods


def _methods() -> tuple[Facts, list[Section]]:
    """All methods: the built-in ones with their facts, those of other packages by name."""
    table, outside = read_table(), outside_methods()
    width = max(map(len, [*table, *outside]))
    by_site: dict[str, list[tuple[str, str]]] = {}
    for name, facts in table.items():
        title = "Controls" if facts["site"] == "control" else f"Changes {facts['site']}"
        by_site.setdefault(title, []).append((name.ljust(width), facts["summary"].removeprefix("control: ")))
    sections: list[Section] = list(by_site.items())
    if outside:
        sections.append(("Of other packages", [(name.ljust(width), f"of {p}") for name, p in outside.items()]))
    sections.append(("airvlm info methods NAME shows the options; + combines methods, as in crop-blend+vaf", []))
    return {"methods": table, "outside": outside}, sections


def _method(name: str) -> tuple[Facts, list[Section]]:
    """One method: its paper, cost and options."""
    table = read_table()
    if name in table:
        facts = {"name": name, "package": "airvlm"} | table[name]
    else:
        from airvlm.methods.names import METHODS

        if name not in METHODS and ":" not in name:
            raise Failure(METHODS.unknown("method", name))
        package = METHODS.package(name) if name in METHODS else name.split(":")[0]
        method = None if name in METHODS else common.choose_method(name)
        facts = {"name": name, "package": package} | describe_method(type(method) if method else METHODS[name])
    rows = [
        ("paper", facts["paper"] or f"none: a method of {'this' if facts['package'] == 'airvlm' else 'that'} package"),
        ("acts on", facts["site"]),
        ("cost", facts["cost"]),
        ("needs", facts["data"] or "image and question only"),
        ("decoding", facts["decoding"]),
        ("engines", facts["engines"]),
        ("package", facts["package"]),
    ]
    options = [
        (f"{o['name']}={o['default']}".ljust(26), o["help"] + (f" ({o['values']})" if o["values"] else ""))
        for o in facts["options"]
    ]
    return facts, [(f"{name}: {facts['summary']}", rows), ("Options", options)]


def methods_markdown() -> str:
    """A Markdown table with one row per method."""
    lines = ["| method | what it does | acts on | forward passes | paper |", "|---|---|---|---|---|"]
    for name, facts in read_table().items():
        summary = facts["summary"].removeprefix("control: ")
        lines.append(f"| `{name}` | {summary} | {facts['site']} | {facts['cost']} | {facts['paper'] or ''} |")
    return "\n".join(lines)


# -- tasks


def _tasks(name: str | None) -> tuple[Facts, list[Section]]:
    from airvlm.tasks import TASKS

    if name is not None and name not in TASKS:
        raise Failure(TASKS.unknown("task", name))
    facts = {n: {"summary": TASKS[n].about, "package": TASKS.package(n)} for n in ([name] if name else TASKS)}
    rows = []
    for each, task in facts.items():
        package = "" if task["package"] == "airvlm" else f" (of {task['package']})"
        rows.append((each, task["summary"] + package))
    note = (
        "airvlm evaluate NAME runs one. tiny-* need nothing else; data of most others are fetched (airvlm data list)."
    )
    return {"tasks": facts}, [("", rows), (note, [])]


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

    def list_missing(self) -> list[str]:
        """Modules that are not installed."""
        return [module for module in self.modules if find_spec(module) is None]

    def to_json(self) -> Facts:
        command = self.install or f"pip install 'airvlm[{self.name}]'"
        return {"name": self.name, "purpose": self.purpose, "missing": self.list_missing(), "install": command}


EXTRAS = (
    Extra("lora", "--adapter: a LoRA on the model", ("peft",)),
    Extra("offload", "--device-map: weights spread over devices", ("accelerate",)),
    Extra("quantize", "--quantize: weights in 4 or 8 bits", ("bitsandbytes",)),
    Extra("ray", "evaluate --ray: workers on several machines", ("ray",)),
    Extra("frame", "Results.to_frame: tables of pandas", ("pandas",)),
    Extra("data", "benchmarks from the hub, fetched by name", ("huggingface_hub", "pyarrow")),
    Extra("nltk", "the tagger that chair --variant wordnet and amber use", ("nltk",)),
    Extra("xlsx", "benchmarks and predictions in .xlsx files", ("openpyxl",)),
    Extra("judge", "benchmarks that a judge grades", ("openai",)),
    Extra("serve", "airvlm serve", ("fastapi", "uvicorn", "prometheus_client")),
    Extra("web", "airvlm serve --page", ("gradio",)),
    Extra(
        "vllm",
        "airvlm serve --engine vllm",
        ("vllm",),
        "pip install vllm, then pip install --no-deps airvlm, in an environment of its own",
    ),
    Extra("lmms-eval", "lmms-eval --model airvlm", ("lmms_eval",), "pip install lmms-eval"),
)


def _installation() -> tuple[Facts, list[Section]]:
    """Versions, devices, embedded models and optional packages."""
    versions = {"python": platform.python_version(), "airvlm": __version__} | {name: _version(name) for name in CORE}
    folders = {
        name: str(module.model_path()) if (Path(module.model_path()) / "config.json").is_file() else "missing"
        for name, module in MODELS.items()
    }
    extras = [*(extra.to_json() for extra in EXTRAS), _nltk_data()]
    devices = _devices()
    facts = {"versions": versions, "devices": devices, "models": folders, "extras": extras}
    rows = [*versions.items(), ("devices", devices), *((f"model {n}", path) for n, path in folders.items())]
    states = [(e["name"], "not installed" if e["missing"] else "installed", e["purpose"]) for e in extras]
    commands = [(e["name"], e["install"]) for e in extras if e["missing"]]
    return facts, [("", rows), ("Optional packages", states), *([("To install", commands)] if commands else [])]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


# What drivers of GPUs leave in the file system: NVIDIA's, those of Jetson, ROCm and WSL
DRIVERS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/nvmap", "/dev/kfd", "/dev/dxg")


def _devices() -> str:
    """The devices; torch takes seconds to import, and is asked only where there may be more than a CPU."""
    cpu = f"cpu ({os.cpu_count()} logical cores)"
    if sys.platform == "linux" and not any(Path(driver).exists() for driver in DRIVERS):
        return cpu
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"torch cannot be imported: {error}"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return ", ".join([*gpus, *mps, cpu])


def _nltk_data() -> Facts:
    """Whether NLTK's data is there, found without importing nltk."""
    places = [Path(place) for place in os.environ.get("NLTK_DATA", "").split(os.pathsep) if place]
    places += [Path.home() / "nltk_data", Path("/usr/share/nltk_data"), Path("/usr/local/share/nltk_data")]
    missing = [] if any((place / "taggers").is_dir() for place in places) else ["taggers in NLTK_DATA"]
    command = "python -m nltk.downloader averaged_perceptron_tagger_eng punkt_tab wordnet"
    return {"name": "nltk data", "purpose": "data of the extra nltk", "missing": missing, "install": command}


# -- images


def image_facts(vlm: VLM, image: Image.Image) -> Facts:
    """How a model sees an image: visual tokens, the size it is resized to, and the number of views."""
    from airvlm.inputs.prompts import DESCRIBE

    inputs = vlm.builder.build([vlm.builder.read(image, DESCRIBE)], pixels=True)
    ids = inputs["input_ids"][0]
    facts: Facts = {
        "model": vlm.name,
        "image (pixels)": f"{image.width} x {image.height}",
        "visual tokens": int((ids == vlm.parts.image_token_id).sum()),
        "prompt tokens": len(ids),
    }
    pixels, grid = inputs.get("pixel_values"), inputs.get("image_grid_thw")
    if grid is not None:
        patch = int(getattr(vlm.processor.image_processor, "patch_size", 14))
        _, rows, columns = grid[0].tolist()
        facts |= {"resized to (pixels)": f"{columns * patch} x {rows * patch}", "views": 1}
    elif pixels is not None and pixels.dim() in (4, 5):
        *views, _, height, width = pixels.shape
        each = " per view" if max(views) > 1 else ""
        facts |= {"resized to (pixels)": f"{width} x {height}{each}", "views": max(views)}
    return facts

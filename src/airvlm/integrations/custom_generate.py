"""`generate` under a method, for transformers' `custom_generate`: what an exported folder calls.

It serves `model.generate(..., custom_generate=FOLDER, trust_remote_code=True, method="crop-blend")`, and every
`generate` of a model that was loaded with trust from a folder with an export, as `transformers serve` loads it. Calls
from several threads run one after another.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from pprint import pformat
from typing import Any
from weakref import WeakKeyDictionary

from airvlm import Method, get_method

__all__ = ["export", "generate"]

TEMPLATE = '''"""Written by airvlm: generate under a method. Needs airvlm to be installed."""

from airvlm.integrations.custom_generate import generate as _generate

METHOD = {method}
REPORTS = {reports!r}


def generate(*inputs, model, method=METHOD, images=None, processor=None, **options):
    return _generate(
        *inputs, model=model, method=method, images=images, processor=processor, reports=REPORTS, **options
    )
'''

_copies: WeakKeyDictionary[Any, tuple[Any, threading.Lock]] = WeakKeyDictionary()
_guard = threading.Lock()


def generate(
    *inputs: Any,
    model: Any,
    method: str | Method | Mapping[str, Any] | None = "crop-blend",
    images: Any = None,
    processor: Any = None,
    reports: str | None = None,
    **options: Any,
) -> Any:
    """What transformers' own generate returns, under the method.

    Args:
        inputs: as in `model.generate`.
        model: the model.
        method: a method, its spelling, or its JSON.
        images: the images of each row, for models whose pixels cannot be cropped; needs `processor` too.
        processor: the model's processor.
        reports: a JSON Lines file to which each call appends the method's report.
        options: as in `model.generate`.
    """
    chosen = Method.from_json(method) if isinstance(method, Mapping) else get_method(method)
    inner, lock = _shallow_copy(model)
    with lock:
        if chosen is None or not _has_images(model, inputs, options):
            return inner.generate(*inputs, **options)
        with chosen(inner, processor, images=images) as run:
            ids = inner.generate(*inputs, **options)
        if reports is not None:
            with Path(reports).open("a") as file:
                file.write(json.dumps(run.report.to_json()) + "\n")
        return ids


def _shallow_copy(model: Any) -> tuple[Any, threading.Lock]:
    """The model as another object with the same modules and hooks, whose `generate` a session may replace.

    A server takes `model.generate` when a request arrives, perhaps while another one runs: it must always get the
    exported function, never the one that a session puts in its place for a while.
    """
    with _guard:
        if model not in _copies:
            inner = copy.copy(model)
            inner.__dict__.pop("generate", None)  # the exported function itself
            _copies[model] = inner, threading.Lock()
        return _copies[model]


def _has_images(model: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether any prompt has image tokens; text alone is answered by the model as it is."""
    ids = options.get("input_ids", options.get("inputs", inputs[0] if inputs else None))
    token = getattr(model.config, "image_token_id", None)
    return ids is None or token is None or bool((ids == token).any())


def export(folder: Path, method: Method | None, reports: Path | None = None) -> Path:
    """Write `custom_generate/generate.py` into a folder and return its path.

    Args:
        folder: a model's folder, or a new one.
        method: the method of calls that name none.
        reports: a JSON Lines file for the reports of all calls.
    """
    target = folder / "custom_generate"
    target.mkdir(parents=True, exist_ok=True)
    fields = None if method is None else method.to_json()
    kept = None if reports is None else str(reports.resolve())
    (target / "generate.py").write_text(TEMPLATE.format(method=pformat(fields, sort_dicts=False), reports=kept))
    (target / "requirements.txt").write_text("airvlm\n")
    return target / "generate.py"

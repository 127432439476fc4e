"""`generate` under a method, for transformers' `custom_generate`: the function that an exported folder calls.

`model.generate(..., custom_generate=DIR, trust_remote_code=True, method="air")`, and every `generate` of a model that
was loaded with trust from a folder that holds it, as `transformers serve` does. Calls from several threads take turns.
Knows nothing of what a method computes.
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

from airvlm import Method
from airvlm.integrations.choice import chosen_method

__all__ = ["export", "generate"]

GENERATE = '''"""Written by `airvlm export-generate`: generate under a method. Needs airvlm installed."""

from airvlm.integrations.custom_generate import generate as _generate

METHOD = {method}
REPORTS = {reports!r}


def generate(*inputs, model, method=METHOD, images=None, processor=None, **options):
    return _generate(
        *inputs, model=model, method=method, images=images, processor=processor, reports=REPORTS, **options
    )
'''

_twins: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_locks: WeakKeyDictionary[Any, threading.Lock] = WeakKeyDictionary()
_guard = threading.Lock()


def generate(
    *inputs: Any,
    model: Any,
    method: str | Method | Mapping[str, Any] | None = "air",
    images: Any = None,
    processor: Any = None,
    reports: str | None = None,
    **options: Any,
) -> Any:
    """What transformers' own generate returns, under the method.

    images: the images of each row, for models whose pixels cannot be cropped; with them `processor` is needed too.
    reports: a JSON Lines file to which each call adds what the method did.
    """
    chosen = chosen_method(method)
    twin, lock = _twin(model)
    with lock:
        if chosen is None or not _shows_images(model, inputs, options):
            return twin.generate(*inputs, **options)
        with chosen(twin, processor, images=images) as run:
            ids = twin.generate(*inputs, **options)
        if reports is not None:
            with Path(reports).open("a") as file:
                file.write(json.dumps(run.report.to_json()) + "\n")
        return ids


def _twin(model: Any) -> tuple[Any, threading.Lock]:
    """The same model as another object, whose `generate` a run may replace.

    A server takes `model.generate` when a request arrives, perhaps while another runs: what it takes must always be
    the function above, never the one that a run puts there for its own time. All modules and hooks are shared.
    """
    with _guard:
        if model not in _twins:
            twin = copy.copy(model)
            twin.__dict__.pop("generate", None)  # the exported function itself
            _twins[model], _locks[model] = twin, threading.Lock()
        return _twins[model], _locks[model]


def _shows_images(model: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether any prompt has image tokens: a text alone is answered by the model as it is."""
    ids = options.get("input_ids", options.get("inputs", inputs[0] if inputs else None))
    token = getattr(model.config, "image_token_id", None)
    return ids is None or token is None or bool((ids == token).any())


def export(folder: Path, method: Method | None, reports: Path | None = None) -> Path:
    """Write `custom_generate/generate.py` into a folder, a model's or a new one; the file's path."""
    target = folder / "custom_generate"
    target.mkdir(parents=True, exist_ok=True)
    fields = None if method is None else method.to_json()
    kept = None if reports is None else str(reports.resolve())
    (target / "generate.py").write_text(GENERATE.format(method=pformat(fields, sort_dicts=False), reports=kept))
    (target / "requirements.txt").write_text("airvlm\n")
    return target / "generate.py"

"""All analyses on one page that needs nothing besides itself."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment

from airvlm import __version__
from airvlm.analysis.result import Analysis
from airvlm.storage.atomic import write_atomically

__all__ = ["write_page"]

TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>airvlm: analyses of {{ model }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #20242a; }
img { max-width: 100%; } .warning { color: #9a3412; } pre { overflow-x: auto; font-size: .8rem; }
</style></head><body>
<h1>{{ model }}</h1><p>Made by airvlm {{ version }}, <code>airvlm analyse all</code>.</p>
{% for one in analyses %}<section><h2 id="{{ one.name }}">{{ one.name }}</h2>
<p>{{ one.question }}</p><p><strong>{{ one.finding }}</strong></p>
{% for warning in one.warnings %}<p class="warning">{{ warning }}</p>{% endfor %}
<img alt="{{ one.question }}" src="data:image/png;base64,{{ one.drawing }}">
<details><summary>numbers</summary><pre>{{ one.numbers }}</pre></details></section>{% endfor %}
</body></html>
"""


def write_page(analyses: Sequence[Analysis], folder: Path, model: str) -> Path:
    """index.html in the folder."""
    shown = [
        {
            "name": one.name,
            "question": one.question,
            "finding": one.finding,
            "warnings": one.warnings,
            "drawing": _encoded(one),
            "numbers": json.dumps(one.to_json(), indent=1),
        }
        for one in analyses
    ]
    template = Environment(autoescape=True).from_string(TEMPLATE)
    path = folder / "index.html"
    write_atomically(path, template.render(model=model, version=__version__, analyses=shown))
    return path


def _encoded(one: Analysis) -> str:
    file = io.BytesIO()
    one.figure.savefig(file, format="png", dpi=110, bbox_inches="tight")
    return base64.b64encode(file.getvalue()).decode()

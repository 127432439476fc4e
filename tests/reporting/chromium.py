"""A look at a page with a real browser, without a window: what it lays out, not only what it was sent."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_OUTER = """<!doctype html><iframe id="frame" style="width:{width}px;height:2000px;border:0" srcdoc="{page}"></iframe>
<pre id="probe"></pre><script>
frame.onload = () => {{
  const page = frame.contentDocument, right = frame.contentWindow.innerWidth;
  const out = [...page.querySelectorAll("body *")].filter(
    (one) => !one.closest(".scroll") && one.getBoundingClientRect().right > right + 1);
  const {script} = (page) => {{ {body} }};
  probe.textContent = JSON.stringify({{
    width: page.documentElement.scrollWidth, inner: right, title: page.title,
    outside: out.map((one) => one.outerHTML.slice(0, 80)).slice(0, 3), said: {script}(page)}});
}};
</script>"""


def laid_out(page: Path, width: int, body: str = "return null") -> dict[str, Any]:
    """How the page comes out in a frame of a given width (a window cannot be narrower than 500 pixels).

    `body` is JavaScript that gets the page's document and returns what the test wants to know.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium here to look at the page with")
    outer = page.with_name(f"frame-{width}.html")
    content = html.escape(page.read_text(), quote=True)
    outer.write_text(_OUTER.format(width=width, page=content, script="look", body=body))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--dump-dom"]
    home = page.parent / "profile"
    command = [chromium, *flags, f"--user-data-dir={home}", outer.as_uri()]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
    found = re.search(r'<pre id="probe">(\{.*?\})</pre>', said, re.DOTALL)
    if found is None:
        pytest.skip("Chromium is here but does not run")
    answer: dict[str, Any] = json.loads(html.unescape(found[1]))
    return answer

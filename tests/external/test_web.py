"""The page in a real browser: upload, ask, compare, change a strength, a bad file, two visitors, a narrow screen.

Runs in an environment of its own (make test-doors): gradio, playwright and Debian's chromium.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import free_port, serving

from airvlm import VLM, CropBlend, tiny

sync_api = pytest.importorskip("playwright.sync_api", reason="make test-doors installs it")
pytest.importorskip("gradio", reason="make test-doors installs it")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
SHOTS = os.environ.get("AIRVLM_SCREENSHOTS")  # a folder to keep screenshots in


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "airvlm", "web", "--model", "tiny", "--port", str(port)]
    quiet = {"GRADIO_ANALYTICS_ENABLED": "False"}
    log = tmp_path_factory.mktemp("served") / "log"
    with serving(command, log, port=port, health="/", environment=quiet) as server:
        yield server.address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    opened = _open(context, address)
    yield opened
    context.close()


def _open(context: Any, address: str) -> Any:
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    page.wait_for_selector("#ask")
    return page


def _answers(page: Any, count: int) -> list[str]:
    """The texts of that many finished cards."""
    page.wait_for_function(
        "n => { const f = [...document.querySelectorAll('#answers .air-foot')];"
        " return f.length == n && f.every(e => /s$/.test(e.textContent)); }",
        arg=count,
    )
    return [re.sub(r"\s+", " ", text).strip() for text in page.locator("#answers .air-text").all_inner_texts()]


def _upload(page: Any, path: Path) -> None:
    page.locator("#image input[type=file]").set_input_files(str(path))
    page.wait_for_selector("#image img")


def _type_number(page: Any, field: str, number: str) -> None:
    """As a person would, who types again what the page took back: gradio resets a field that is still being opened."""
    for _ in range(5):
        page.locator(field).fill(number)
        page.locator(field).press("Tab")
        page.wait_for_timeout(200)
        if page.locator(field).input_value() == number:
            return
    pytest.fail(f"{field} does not keep {number}")


def _shot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


def test_an_uploaded_image_is_asked_about_under_both(page: Any, vlm: VLM) -> None:
    scene = tiny.scenes("test")[20]
    _upload(page, scene.path)
    page.locator("#question textarea").fill("Is there a dog in the image?")
    page.locator("#ask").click()
    texts = _answers(page, 2)
    question = "Is there a dog in the image?"
    assert texts == [vlm.ask(scene.path, question).text, vlm.ask(scene.path, question, method=CropBlend()).text]
    assert "crops" in page.locator("#answers").inner_text()
    page.wait_for_selector("#drawing img")
    assert "--method air" in page.locator("#share textarea, #share input").first.input_value()
    _shot(page, "asked")


def test_an_example_is_described_with_its_wrong_objects_in_red(page: Any, vlm: VLM) -> None:
    page.locator("#examples button.thumbnail-item, #examples .thumbnail-item").first.click()
    page.wait_for_selector("#image img")
    page.locator("#describe").click()
    texts = _answers(page, 2)
    scene = tiny.scenes("test")[0]
    told = [
        vlm.describe(scene.path, max_new_tokens=96),
        vlm.describe(scene.path, method=CropBlend(), max_new_tokens=96),
    ]
    assert texts == [re.sub(r"\s+", " ", answer.text) for answer in told]
    _shot(page, "described")


def test_a_changed_strength_changes_the_method(page: Any, vlm: VLM) -> None:
    scene = tiny.scenes("test")[3]
    _upload(page, scene.path)
    page.get_by_text("Strengths").click()
    _type_number(page, "#strength-air input[type=number]", "0.9")
    page.locator("#ask").click()
    texts = _answers(page, 2)
    assert texts[1] == re.sub(
        r"\s+", " ", vlm.describe(scene.path, method=CropBlend(weight=0.9), max_new_tokens=96).text
    )
    assert "air:weight=0.9" in page.locator("#answers").inner_text()


def test_a_file_that_is_no_image_is_refused_and_the_page_goes_on(page: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"this is no image")
    page.locator("#image input[type=file]").set_input_files(str(bad))
    page.wait_for_timeout(1000)
    page.locator("#ask").click()
    page.wait_for_selector(".toast-wrap, .toast-body, [data-testid=toast-body]")
    _shot(page, "refused")


def test_two_visitors_get_their_own_answers(browser: Any, address: str, vlm: VLM) -> None:
    contexts = [browser.new_context() for _ in range(2)]
    scenes = [tiny.scenes("test")[i] for i in (5, 6)]
    pages = [_open(context, address) for context in contexts]
    for opened, scene in zip(pages, scenes, strict=True):
        _upload(opened, scene.path)
    for opened in pages:
        opened.locator("#ask").click()
    for opened, scene in zip(pages, scenes, strict=True):
        own = [
            vlm.describe(scene.path, max_new_tokens=96),
            vlm.describe(scene.path, method=CropBlend(), max_new_tokens=96),
        ]
        assert _answers(opened, 2) == [re.sub(r"\s+", " ", answer.text) for answer in own]
    for context in contexts:
        context.close()


def test_it_works_from_a_keyboard_on_a_narrow_screen(browser: Any, address: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    opened = _open(context, address)
    _upload(opened, tiny.scenes("test")[1].path)
    opened.locator("#ask").focus()
    opened.keyboard.press("Enter")
    assert len(_answers(opened, 2)) == 2
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    _shot(opened, "narrow")
    context.close()

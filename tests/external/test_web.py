"""The page in a real browser: upload, ask, compare, change a strength, bad files, two visitors, a narrow screen.

Runs in an environment of its own (make test-integrations) with gradio, playwright and Debian's chromium.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers import free_port, serving

from airvlm import VLM, CropBlend, tiny
from airvlm.serve.page import examples

sync_api = pytest.importorskip("playwright.sync_api", reason="make test-integrations installs it")
pytest.importorskip("gradio", reason="make test-integrations installs it")
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
    command = [sys.executable, "-m", "airvlm", "serve", "--page", "--model", "tiny", "--port", str(port)]
    command += ["--max-tokens", "96"]
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
    page.wait_for_function("n => document.querySelectorAll('#answers .air-seconds').length == n", arg=count)
    page.wait_for_selector("#ask:visible")
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


def _describe(vlm: VLM, path: Path, method: CropBlend | None = None) -> str:
    return re.sub(r"\s+", " ", vlm.describe(path, method=method, max_new_tokens=96).text)


def test_an_uploaded_image_is_asked_about_under_both(page: Any, vlm: VLM, tmp_path: Path) -> None:
    scene = tiny.scenes("test")[20]
    file = tmp_path / "my picture.webp"
    shutil.copy(scene.path, file)
    _upload(page, file)
    page.locator("#question textarea").fill("Is there a dog in the image?")
    page.locator("#ask").click()
    texts = _answers(page, 2)
    question = "Is there a dog in the image?"
    assert texts == [vlm.ask(scene.path, question).text, vlm.ask(scene.path, question, method=CropBlend()).text]
    assert page.locator("#drawing .air-crop").count() == CropBlend().num_crops
    # the command works in the folder of the image
    command = shlex.split(page.locator("#command textarea, #command input").first.input_value())
    assert command[:4] == ["airvlm", "ask", file.name, question]
    command = [sys.executable, "-m", *command, "--json"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert texts[0] in printed
    _shot(page, "asked")


def test_an_example_is_described_with_its_wrong_objects_underlined(page: Any, vlm: VLM, tmp_path: Path) -> None:
    page.locator("#examples .thumbnail-item").first.click()
    page.wait_for_selector("#image img")
    page.locator("#ask").click()
    texts = _answers(page, 2)
    first = examples(vlm)[0]
    assert texts == [_describe(vlm, first.path), _describe(vlm, first.path, CropBlend())]
    assert page.locator("#answers .air-text mark.air-absent").count() > 0
    # the command works in any folder
    command = [
        sys.executable,
        "-m",
        *shlex.split(page.locator("#command textarea, #command input").first.input_value()),
    ]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert all(text in printed for text in texts)
    _shot(page, "described")


def test_every_image_has_an_alternative_text(page: Any) -> None:
    page.locator("#examples .thumbnail-item").first.click()
    page.wait_for_selector("#image img")
    page.locator("#ask").click()
    _answers(page, 2)
    assert all(image.get_attribute("alt") for image in page.locator("img").all())


def test_a_changed_strength_changes_the_method(page: Any, vlm: VLM) -> None:
    scene = tiny.scenes("test")[3]
    _upload(page, scene.path)
    page.get_by_text("Strengths").click()
    _type_number(page, "#strength-crop-blend input[type=number]", "0.9")
    page.locator("#ask").click()
    texts = _answers(page, 2)
    assert texts[1] == _describe(vlm, scene.path, CropBlend(weight=0.9))
    assert "crop-blend:weight=0.9" in page.locator("#answers").inner_text()


def test_mistakes_are_named_where_they_are_and_the_page_goes_on(page: Any, tmp_path: Path) -> None:
    page.locator("#ask").click()
    page.wait_for_selector("#image-note .air-error")
    assert "Choose an image first" in page.locator("#image-note").inner_text()
    for name, content in {
        "bad.png": b"this is no image",
        "drawing.svg": b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        "print.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
    }.items():
        bad = tmp_path / name
        bad.write_bytes(content)
        page.locator("#image input[type=file]").set_input_files(str(bad))
        page.wait_for_timeout(1000)
        page.locator("#ask:visible").click()
        page.wait_for_selector("#image-note .air-error")
        assert "not a readable image" in page.locator("#image-note").inner_text()
        assert page.locator(".toast-body").count() == 0
        page.reload()
        page.wait_for_selector("#ask")
    _upload(page, tiny.scenes("test")[1].path)
    page.locator("#ask").click()
    assert len(_answers(page, 2)) == 2


def test_stop_is_there_only_while_something_runs(page: Any) -> None:
    assert not page.locator("#stop").is_visible()
    _upload(page, tiny.scenes("test")[1].path)
    for label in ("air:keep=3", "memvr", "vaf", "vcd"):
        page.get_by_label(label).check()
    page.locator("#ask").click()
    page.wait_for_selector("#stop:visible")
    assert not page.locator("#ask").is_visible()
    page.locator("#stop").click()
    page.wait_for_selector("#ask:visible")
    assert not page.locator("#stop").is_visible()
    assert page.locator("#answers .air-seconds").count() < 6
    page.locator("#ask").click()
    assert len(_answers(page, 6)) == 6


def test_two_visitors_get_their_own_answers(browser: Any, address: str, vlm: VLM) -> None:
    contexts = [browser.new_context() for _ in range(2)]
    scenes = [tiny.scenes("test")[i] for i in (5, 6)]
    pages = [_open(context, address) for context in contexts]
    for opened, scene in zip(pages, scenes, strict=True):
        _upload(opened, scene.path)
    for opened in pages:
        opened.locator("#ask").click()
    for opened, scene in zip(pages, scenes, strict=True):
        assert _answers(opened, 2) == [_describe(vlm, scene.path), _describe(vlm, scene.path, CropBlend())]
    for context in contexts:
        context.close()


def test_on_a_phone_the_answer_is_below_the_button_and_readable(browser: Any, address: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    opened = _open(context, address)
    _upload(opened, tiny.scenes("test")[1].path)
    opened.locator("#ask").focus()
    opened.keyboard.press("Enter")
    assert len(_answers(opened, 2)) == 2
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    button, answers = opened.locator("#ask").bounding_box(), opened.locator("#answers").bounding_box()
    assert 0 <= answers["y"] - (button["y"] + button["height"]) < 60
    sizes = opened.evaluate(
        "[...document.querySelectorAll('#answers *, #drawing *')].map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 12
    _shot(opened, "narrow")
    context.close()


# -- attacks


def test_other_hosts_and_origins_are_refused(address: str) -> None:
    port = address.rpartition(":")[2]
    for headers in (
        {"Host": "evil.example"},
        {"Host": f"evil.example:{port}"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ):
        for path in ("/", "/config", "/gradio_api/info", "/gradio_api/upload"):
            answer = httpx.get(f"{address}{path}", headers=headers)
            assert answer.status_code == 403, (path, headers)
            assert "access-control-allow-origin" not in answer.headers
    assert httpx.get(f"{address}/config", headers={"Origin": address}).status_code == 200


@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/self/environ", str(Path(__file__))])
def test_no_file_that_was_not_uploaded_is_read(address: str, path: str) -> None:
    for route in ("gradio_api/file", "file"):
        assert httpx.get(f"{address}/{route}={path}").status_code in (403, 404)
    data = {"path": path, "meta": {"_type": "gradio.FileData"}}
    for image in (data, {"url": f"file://{path}", **data}, {"url": "http://127.0.0.1:1/x.png", "path": "x"}):
        answered = _call(address, [image, "", ["crop-blend"], None, "", 0.4, 0.1, 0.1, 1.0])
        assert "air-seconds" not in answered
        assert "root:" not in answered


@pytest.mark.parametrize("label", ["os:system", "@/etc/passwd", "crop-blend+os:system", "eos-bias", "__class__", ""])
def test_no_method_that_is_not_offered_is_built(address: str, label: str) -> None:
    image = _uploaded(address)
    answered = _call(address, [image, "", [label], None, "", 0.4, 0.1, 0.1, 1.0])
    assert "air-seconds" not in answered
    for value in (f"0.4+{label}", label, [label], 1e9, -1):
        answered = _call(address, [image, "", ["crop-blend"], None, "", value, 0.1, 0.1, 1.0])
        assert "air-seconds" not in answered
    answered = _call(address, [image, "Is there a dog?", ["crop-blend"], None, "", 0.4, 0.1, 0.1, 1.0])
    assert "air-seconds" in answered  # the form itself is right


SHORT = """
import sys
from airvlm import VLM
from airvlm.serve import web
web.KEPT = 6
web.run_page(VLM.load("tiny"), port=int(sys.argv[1]))
"""


def test_uploads_are_deleted(tmp_path: Path) -> None:
    port, kept = free_port(), tmp_path / "kept"
    environment = {"GRADIO_TEMP_DIR": str(kept), "GRADIO_ANALYTICS_ENABLED": "False"}
    command = [sys.executable, "-c", SHORT, str(port)]
    with serving(command, tmp_path / "log", port=port, health="/", environment=environment) as server:
        images = [_uploaded(server.address) for _ in range(2)]
        assert all(Path(image["path"]).is_relative_to(kept) for image in images)
        deadline = time.monotonic() + 60
        while any(Path(image["path"]).exists() for image in images) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not any(Path(image["path"]).exists() for image in images)
        answered = _call(server.address, [images[0], "", ["crop-blend"], None, "", 0.4, 0.1, 0.1, 1.0])
        assert "no longer kept" in answered


def _uploaded(address: str) -> dict[str, Any]:
    scene = tiny.scenes("test")[1].path
    [path] = httpx.post(
        f"{address}/gradio_api/upload", files={"files": (f"{uuid.uuid4().hex}.webp", scene.read_bytes())}
    ).json()
    return {"path": path, "meta": {"_type": "gradio.FileData"}}


def _call(address: str, data: list[Any]) -> str:
    """What the page's own endpoint answers, as an attacker would call it."""
    config = httpx.get(f"{address}/config").json()
    index = next(one["id"] for one in config["dependencies"] if one["api_name"] == "compare")
    session = {"session_hash": uuid.uuid4().hex}
    body = {"data": data, "fn_index": index, **session}
    joined = httpx.post(f"{address}/gradio_api/queue/join", json=body, timeout=60)
    if joined.status_code != 200:
        return joined.text
    return httpx.get(f"{address}/gradio_api/queue/data", params=session, timeout=120).text

"""The page in the browser: an image, a question, and several methods side by side. Needs `airvlm[web]`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI
from PIL import Image

from airvlm import VLM, Answer, Method
from airvlm.inputs.images import FORMATS, load_image, read_image
from airvlm.inputs.prompts import DESCRIBE
from airvlm.serve.guard import HostGuard, is_loopback
from airvlm.serve.limits import Limits
from airvlm.serve.page import (
    CHOICES,
    STRENGTHS,
    Card,
    answers_html,
    choose_methods,
    command_line,
    crops_html,
    examples,
    message_html,
)
from airvlm.serve.run import run_server

__all__ = ["make_page", "make_page_app", "run_page"]

HERE = Path(__file__).parent
KEPT = 3600  # seconds that an uploaded image is kept
LONGEST = 2000  # characters of a question


def run_page(
    vlm: VLM,
    *,
    options: Sequence[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 7860,
    password: str | None = None,
    allow_hosts: tuple[str, ...] = (),
    max_tokens: int = 96,
) -> None:
    """Serve the page until SIGTERM or SIGINT.

    Args:
        vlm: the model.
        options: of `airvlm ask`, with which it answers as the page does; None offers visitors no command.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        password: visitors log in as airvlm with it; None asks for none.
        allow_hosts: further names by which visitors may reach the page.
        max_tokens: new tokens per answer.
    """
    app = make_page_app(
        vlm, options=options, host=host, password=password, allow_hosts=allow_hosts, max_tokens=max_tokens
    )
    run_server(app, host=host, port=port, limits=Limits(shutdown_seconds=5))


def make_page_app(
    vlm: VLM,
    *,
    options: Sequence[str] | None = None,
    host: str = "127.0.0.1",
    password: str | None = None,
    allow_hosts: tuple[str, ...] = (),
    max_tokens: int = 96,
) -> FastAPI:
    """The page as an ASGI application. Arguments are those of `run_page`."""
    app = FastAPI(title="airvlm", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(HostGuard, host=host, allow_hosts=allow_hosts)
    page = make_page(vlm, options=options, local=is_loopback(host), max_tokens=max_tokens)
    folders = {str(example.path.parent) for example in examples(vlm)}
    mounted: FastAPI = gr.mount_gradio_app(
        app,
        page.queue(max_size=64),
        path="/",
        auth=("airvlm", password) if password else None,
        allowed_paths=sorted(folders),  # gradio shows files of known folders only
        max_file_size="32mb",
        show_error=True,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        css=(HERE / "web.css").read_text(encoding="utf-8"),
        js=(HERE / "web.js").read_text(encoding="utf-8"),
    )
    return mounted


def make_page(
    vlm: VLM,
    *,
    options: Sequence[str] | None = None,
    local: bool = True,
    max_tokens: int = 96,
    max_pixels: int = 40_000_000,
) -> gr.Blocks:
    """The layout of the page and its events.

    Args:
        vlm: the model.
        options: as in `run_page`.
        local: whether visitors sit at this machine, so that a path of an example means something to them.
        max_tokens: new tokens per answer.
        max_pixels: of an uploaded image.
    """
    shown = examples(vlm)
    by_name = {example.name: example for example in shown}

    def read(path: str | None) -> Image.Image:
        if path is None:
            raise ValueError("Choose an image first: drop one here, or take an example.")
        if not Path(path).exists():
            raise ValueError("This image is no longer kept here: drop it again.")
        try:
            return load_image(Path(path), max_pixels=max_pixels)
        except ValueError as error:
            if "too large" in str(error):
                raise ValueError(f"This image has more than {max_pixels // 10**6} million pixels.") from error
            raise ValueError(f"This file is not a readable image ({', '.join(FORMATS)}).") from error

    def compare(
        path: str | None, question: str, labels: list[str], example: str | None, file: str, *values: float
    ) -> Iterator[dict[Any, Any]]:
        # errors are shown where the mistake is: below the image, the question or the methods
        yield {notes[place]: "" for place in notes} | {ask: gr.update(visible=False), stop: gr.update(visible=True)}
        try:
            image = read_image(read(path))
        except ValueError as error:
            yield {notes["image"]: message_html(str(error))}
            return
        asked = question.strip() or DESCRIBE
        if len(asked) > LONGEST:
            yield {notes["question"]: message_html(f"The question is longer than {LONGEST} characters.")}
            return
        try:
            methods: list[Method | None] = [None, *choose_methods(labels, dict(zip(STRENGTHS, values, strict=True)))]
        except ValueError as error:
            yield {notes["methods"]: message_html(str(error))}
            return
        known = by_name.get(example or "")
        truth = None if known is None or asked != DESCRIBE else known.truth
        spelled = ["vanilla" if method is None else method.label for method in methods]
        source = file if known is None else str(known.path) if local else ""
        line = command_line(source, asked, spelled, options) if source and options is not None else ""
        place = "The same in a terminal" + ("" if known else ", in the folder of the image")
        cards: list[Card] = []
        drawn = ""
        for method, label in zip(methods, spelled, strict=True):
            started, text = time.perf_counter(), ""
            yield {answers: answers_html([*cards, Card(label)], truth), drawing: drawn}
            stream = vlm.stream(image, asked, method=method, max_new_tokens=max_tokens)
            try:
                while True:
                    text += next(stream)
                    yield {answers: answers_html([*cards, Card(label, text)], truth)}
            except StopIteration as end:
                answer: Answer = end.value
                cards.append(Card(label, answer.text, answer.report, time.perf_counter() - started))
                if answer.report is not None and answer.report.crops and not drawn:
                    drawn = crops_html(image.rgb, answer.report)
            except Exception as error:  # one method that fails must not hide the answers of the others
                cards.append(Card(label, error=f"{type(error).__name__}: {error}"))
            yield {answers: answers_html(cards, truth), drawing: drawn}
        yield {command: gr.update(value=line, visible=bool(line), label=place)}

    def reset_buttons() -> tuple[Any, Any]:
        return gr.update(visible=True), gr.update(visible=False)

    def take_example(event: gr.SelectData) -> tuple[str, str, str]:
        chosen = shown[event.index]
        return str(chosen.path), chosen.name, ""

    def take_upload(path: str | None) -> tuple[None, str, str]:
        return None, "" if path is None else Path(path).name, ""

    with gr.Blocks(title=f"airvlm: {vlm.name}", analytics_enabled=False, delete_cache=(KEPT // 6, KEPT)) as page:
        gr.Markdown(f"# airvlm\nThe model **{vlm.name}**, as it is and under methods against hallucination.")
        example, file = gr.State(None), gr.State("")
        notes: dict[str, Any] = {}
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=300):
                image = gr.Image(
                    type="filepath", label="Image", height=260, sources=["upload", "clipboard"], elem_id="image"
                )
                # gradio would decode the file itself, without our limits
                image.preprocess = lambda payload: None if payload is None else payload.path
                notes["image"] = gr.HTML(elem_id="image-note")
                gallery = gr.Gallery(
                    [(str(one.path), one.alt) for one in shown],
                    label="Examples" + (" (the first was chosen because answers differ)" if vlm.name == "tiny" else ""),
                    columns=len(shown),
                    rows=1,
                    height="auto",
                    object_fit="cover",
                    allow_preview=False,
                    interactive=False,
                    elem_id="examples",
                )
                question = gr.Textbox(
                    label="Question", placeholder="Leave empty to describe the image", lines=1, elem_id="question"
                )
                notes["question"] = gr.HTML(elem_id="question-note")
                methods = gr.CheckboxGroup(
                    list(CHOICES), value=[next(iter(CHOICES))], label="Compare vanilla with", elem_id="methods"
                )
                notes["methods"] = gr.HTML(elem_id="methods-note")
                ask = gr.Button("Ask", variant="primary", elem_id="ask")
                stop = gr.Button("Stop", visible=False, elem_id="stop")
            with gr.Column(scale=3, min_width=300):
                answers = gr.HTML(answers_html([]), elem_id="answers")
                drawing = gr.HTML(elem_id="drawing")
                command = gr.Textbox(
                    label="The same in a terminal",
                    interactive=False,
                    visible=False,
                    buttons=["copy"],
                    elem_id="command",
                )
                with gr.Accordion("Strengths", open=False):
                    sliders = [
                        gr.Slider(
                            strength.low,
                            strength.high,
                            value=getattr(CHOICES[label], strength.option),
                            step=0.01,
                            label=f"{label}: {strength.option}",
                            info=strength.help,
                            elem_id=f"strength-{CHOICES[label].name}",
                        )
                        for label, strength in STRENGTHS.items()
                    ]
        gallery.select(take_example, None, [image, example, file])
        image.upload(take_upload, image, [example, file, notes["image"]])
        image.clear(lambda: (None, ""), None, [example, file])
        running = gr.on(
            [ask.click, question.submit],
            compare,
            [image, question, methods, example, file, *sliders],
            [*notes.values(), answers, drawing, command, ask, stop],
            concurrency_limit=1,  # there is one model
            concurrency_id="model",
            show_progress="hidden",
        )
        running.then(reset_buttons, None, [ask, stop], show_progress="hidden")  # also after an error
        stop.click(reset_buttons, None, [ask, stop], cancels=[running], show_progress="hidden")
    return page

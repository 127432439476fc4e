"""The page in the browser: an image, a question, several methods side by side as they write.

Layout and events alone; what is shown is page.py. Needs `airvlm[web]`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from airvlm import VLM, Answer, parse_method, tiny
from airvlm.analysis.look import draw_look
from airvlm.inputs.images import load_image, read_image
from airvlm.inputs.prompts import DESCRIBE
from airvlm.serve.page import STRENGTHS, MethodCard, cards, command_line, specs

__all__ = ["make_page"]

CSS = (Path(__file__).parent / "web.css").read_text(encoding="utf-8")
CHOICES = ["air", "air-paper", "memvr", "vaf", "vcd"]
EXAMPLES = 8
LEGEND = "Marked: differs from vanilla. Underlined in red: not in the image (known for the built-in scenes)."


def _or_told(preprocess: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A visitor whose file is no image is told so, in place of gradio's traceback."""

    def told(payload: Any) -> Any:
        try:
            return preprocess(payload)
        except Exception as error:
            message = "This file is no image: give a PNG, JPEG, WebP, GIF or BMP."
            raise gr.Error(message, print_exception=False) from error

    return told


def make_page(vlm: VLM, *, max_tokens: int = 96, max_pixels: int = 40_000_000) -> gr.Blocks:
    """The page over one model."""
    scenes = {scene.id: scene for scene in tiny.scenes("test")[:EXAMPLES]} if vlm.name == "tiny" else {}

    def compare(
        path: str | None, question: str, methods: list[str], scene: str | None, *values: float
    ) -> Iterator[tuple[Any, ...]]:
        if path is None:
            raise gr.Error("Drop one, or take an example.", title="Choose an image first", print_exception=False)
        try:
            image = read_image(load_image(path, max_pixels=max_pixels))
        except ValueError as error:
            told = str(error).replace(path, "the file")
            raise gr.Error(f"This image cannot be read: {told}", print_exception=False) from error
        asked = question.strip() or DESCRIBE
        known = scenes.get(scene or "")
        truth = None if known is None else set(known.names)
        chosen = specs(methods, dict(zip(STRENGTHS, values)))
        line = command_line(f"{scene}.webp" if scene else "IMAGE", asked, chosen, vlm.name)
        shown: list[MethodCard] = []
        drawing: Any = None
        for spelled in chosen:
            method = parse_method(spelled)
            started, text = time.perf_counter(), ""
            stream = vlm.stream(image, asked, method=method, max_new_tokens=max_tokens)
            try:
                while True:
                    text += next(stream)
                    yield cards([*shown, MethodCard(spelled, text)], truth), drawing, line
            except StopIteration as end:
                answer: Answer = end.value
                shown.append(MethodCard(spelled, answer.text, answer.report, time.perf_counter() - started))
                if answer.report is not None and answer.report.crops and drawing is None:
                    drawing = draw_look(image.rgb, answer.report)
            except Exception as error:  # one method that cannot act must not take the others' answers away
                shown.append(MethodCard(spelled, error=f"{type(error).__name__}: {error}"))
            yield cards(shown, truth), drawing, line

    def example(event: gr.SelectData) -> tuple[str, str]:
        scene = list(scenes.values())[event.index]
        return str(scene.path), scene.id

    with gr.Blocks(title=f"airvlm: {vlm.name}") as page:
        gr.Markdown(f"# airvlm\nThe same model, **{vlm.name}**, as it is and under methods that need no training.")
        scene = gr.State(None)
        with gr.Row():
            with gr.Column(scale=2, min_width=300):
                image = gr.Image(type="filepath", label="Image", height=320, elem_id="image")
                image.preprocess = _or_told(image.preprocess)
                if scenes:
                    gallery = gr.Gallery(
                        [str(s.path) for s in scenes.values()],
                        label="Built-in scenes, with their truth",
                        columns=4,
                        height=180,
                        allow_preview=False,
                        elem_id="examples",
                    )
                question = gr.Textbox(DESCRIBE, label="Question", lines=2, elem_id="question")
                methods = gr.CheckboxGroup(CHOICES, value=["air"], label="Methods beside vanilla", elem_id="methods")
                with gr.Accordion("Strengths", open=False):
                    sliders = [
                        gr.Slider(
                            s.low,
                            s.high,
                            value=s.default(name),
                            step=0.01,
                            label=f"{name}: {s.field}",
                            info=s.meaning,
                            elem_id=f"strength-{name}",
                        )
                        for name, s in STRENGTHS.items()
                    ]
                with gr.Row():
                    ask = gr.Button("Ask", variant="primary", elem_id="ask")
                    describe = gr.Button("Describe", elem_id="describe")
                    stop = gr.Button("Stop", elem_id="stop")
            with gr.Column(scale=3, min_width=300):
                answers = gr.HTML(elem_id="answers")
                gr.Markdown(LEGEND)
                gr.Markdown("### Crops, their distances, and which were kept")
                drawn = gr.Image(show_label=False, interactive=False, elem_id="drawing")
                share = gr.Textbox(label="The same in a terminal", interactive=False, buttons=["copy"], elem_id="share")
        inputs = [image, question, methods, scene, *sliders]
        outputs = [answers, drawn, share]
        if scenes:
            gallery.select(example, None, [image, scene])
        image.upload(lambda: None, None, scene)
        image.clear(lambda: None, None, scene)
        # one answer at a time: the model is one
        asking = {"inputs": inputs, "outputs": outputs, "concurrency_limit": 1, "concurrency_id": "model"}
        running = [
            ask.click(compare, **asking),
            question.submit(compare, **asking),
            describe.click(lambda: DESCRIBE, None, question).then(compare, **asking),
        ]
        stop.click(None, cancels=running)
    return page

"""`airvlm ask`: ask about images or describe them, under one method, under several side by side, or in a chat."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from rich.columns import Columns
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from airvlm.cli import common
from airvlm.cli.console import Failure, emit, err, out, warn
from airvlm.cli.options import (
    DEFAULT_METHOD,
    GenerationOptions,
    ImageArgument,
    ImagesOption,
    JsonOption,
    MethodsOption,
    ModelOptions,
    QuestionArgument,
    SetOption,
    option,
)

if TYPE_CHECKING:
    from PIL import Image

    from airvlm.methods.base import Method
    from airvlm.vlm import VLM, Answer

__all__ = ["ask", "mark_differences"]

CHAT_HELP = """/method METHOD  use another method, as in /method vanilla
/report         show everything that the method did in the last answer
/image FILE     show one more image with the next question
/reset          forget what was said; the images stay
/help           show this list
/quit           end (also Ctrl-D)"""
EMBEDDED = ("photo", "tiny")


def ask(
    image: ImageArgument,
    question: QuestionArgument = None,
    method: MethodsOption = None,
    settings: SetOption = None,
    more_images: ImagesOption = None,
    chat: Annotated[bool, option("--chat", None, "Talk turn by turn; /help lists what else can be typed.")] = False,
    system: Annotated[str | None, option("--system", "TEXT", "The system prompt of a chat.")] = None,
    allow_urls: Annotated[bool, option("--allow-urls", None, "Let images be downloaded from http(s).")] = False,
    json: JsonOption = False,
    model: ModelOptions = ModelOptions(),
    generation: GenerationOptions = GenerationOptions(),
) -> None:
    """Ask about an image, or describe it; compare methods; chat.

    The answer is printed as it is generated, and what the method did goes to standard error. Without a question the
    image is described. With several --method the answers stand side by side, and words that differ from the first
    answer are marked.

    \b
    Examples:
      airvlm ask photo.jpg
      airvlm ask photo.jpg "Is there a fork in the image?"
      airvlm ask photo.jpg --method vanilla --method crop-blend --method vcd
      airvlm ask photo.jpg "What is on the table?" --method air --set keep=3
      airvlm ask photo.jpg --temperature 0.7 --seed 1
      airvlm ask - --json < photo.jpg
    An emoji scene is for the model tiny:
      airvlm scene --seed 5 --context kitchen
      airvlm ask scene.png "Is there a cup in the image?" --model tiny
    In a chat, questions can also be piped in, one per line:
      airvlm ask photo.jpg --chat < questions.txt
    A larger model (needs the network):
      airvlm ask photo.jpg --chat --model llava-hf/llava-1.5-7b-hf
    """
    names = method or [DEFAULT_METHOD]
    text = common.check_question(question)
    if settings and len(names) > 1:
        raise Failure("--set with several --method: write options after the name, as in --method crop-blend:weight=0.2")
    if chat and len(names) > 1:
        raise Failure("--chat uses one --method at a time; /method changes it during the chat")
    if system is not None and not chat:
        raise Failure("--system is for --chat; put what you want to say into the question")
    sources = [image, *(more_images or ())]
    if chat and "-" in sources:
        raise Failure("--chat reads questions from standard input: give the image as a file")
    arguments = common.generation_arguments(generation)
    images = common.read_images(sources, allow_urls=allow_urls, model=model.model)
    methods = [common.choose_method(name, settings) for name in names]
    labels = ["vanilla" if one is None else one.label for one in methods]
    if len(set(labels)) < len(labels):
        raise Failure("--method: the same method is given twice")
    vlm = common.load_model(model)
    asked = {"image": image, "question": text, "model": vlm.name}
    with common.exit_on_method_error():
        if chat:
            first = [question] if question else []
            _chat(Conversation(vlm, images, methods[0], system, arguments), first, asked, allow_urls, json=json)
        elif len(methods) > 1:
            by_label = dict(zip(labels, methods, strict=True))
            _compare(asked, vlm.compare(images, text, by_label, **arguments), json=json)
        elif json:
            answer = vlm.ask(images, text, method=methods[0], **arguments)
            emit(asked | {"method": _method_json(methods[0])} | common.answer_json(answer))
        else:
            stream = vlm.stream(images, text, method=methods[0], **arguments)
            _print_report(common.print_stream(stream))


def _method_json(method: Method | None) -> dict[str, Any] | None:
    return None if method is None else method.to_json()


def _print_report(answer: Answer) -> None:
    text = "vanilla: the model as it is" if answer.report is None else str(answer.report)
    err().print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)


# -- several methods


def _compare(asked: dict[str, Any], answers: dict[str, Answer], *, json: bool) -> None:
    if json:
        emit(asked | {"answers": {label: common.answer_json(answer) for label, answer in answers.items()}})
        return
    first = next(iter(answers.values())).text
    console = out()
    panels = []
    for label, answer in answers.items():
        body = mark_differences(first, answer.text)
        if answer.report is not None and not answer.report.fired:
            body.append(f"\n{answer.report}", style="dim")
        if not console.is_terminal:
            console.print(f"{label}: {body.plain}", markup=False, soft_wrap=True)
            continue
        body.append(f"\n{answer.tokens} tokens, {answer.seconds:.2f} s", style="dim")
        width = min(max(38, console.width // min(len(answers), 3) - 2), console.width)
        title = label
        if len(title) > width - 4:  # of a frame and its corners: rich would cut it
            title = title.partition(":")[0]
            body = Text.assemble((label.replace(",", ", ") + "\n", "dim"), body)
        panels.append(Panel(body, title=escape(title), title_align="left", width=width))
    if panels:
        console.print(Columns(panels))
    same = [label for label, answer in list(answers.items())[1:] if answer.text == first]
    if same:
        console.print(f"the same text as {next(iter(answers))}: {', '.join(same)}", markup=False, soft_wrap=True)


def mark_differences(before: str, after: str) -> Text:
    """`after`, with the words that `before` does not have in their places in bold yellow."""
    from airvlm.reporting.differences import differences

    text = Text()
    for piece, differs in differences(before, after):
        text.append(piece, style="bold yellow" if differs else "")
    return text


# -- chat


@dataclass
class Conversation:
    """A chat about images: what was said so far, and how the next answer is generated."""

    vlm: VLM
    images: list[Image.Image]
    method: Method | None
    system: str | None
    arguments: dict[str, Any]
    turns: list[dict[str, Any]] = field(default_factory=list)
    new_images: int = 0  # images that the next question shows
    last: Answer | None = None

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was said; the images stay."""
        self.turns = [] if self.system is None else [{"role": "system", "content": self.system}]
        self.new_images = len(self.images)

    def add_image(self, image: Image.Image) -> None:
        """Show one more image with the next question."""
        self.images.append(image)
        self.new_images += 1

    def ask(self, question: str, *, show: bool) -> Answer:
        """The answer to the next question, printed as it is generated if `show` is set."""
        parts = [{"type": "image"}] * self.new_images + [{"type": "text", "text": question}]
        turns = [*self.turns, {"role": "user", "content": parts}]
        stream = self.vlm.stream(self.images, turns, method=self.method, **self.arguments)
        self.last = common.print_stream(stream, show=show)
        self.turns, self.new_images = [*turns, {"role": "assistant", "content": self.last.text}], 0
        return self.last


def _chat(talk: Conversation, first: list[str], asked: dict[str, Any], allow_urls: bool, *, json: bool) -> None:
    interactive = sys.stdin.isatty() and not json
    if interactive:
        err().print("[dim]Type a question. /help lists commands, /quit ends.[/dim]")
    if talk.vlm.name in EMBEDDED and not json:
        err().print(f"[dim]{talk.vlm.name} was trained on single questions: expect little of a second turn[/dim]")
    said: list[dict[str, Any]] = []
    while (line := first.pop(0) if first else _read_line("you> " if interactive else "")) not in (None, "/quit"):
        assert line is not None, "the loop ends at the end of the input"
        if not line:
            continue
        if line.startswith("/"):
            _run_chat_command(talk, line, allow_urls)
            continue
        answer = talk.ask(line, show=not json)
        said.append({"question": line, "method": _method_json(talk.method)} | common.answer_json(answer))
        if not json:
            _print_report(answer)
    if json:
        emit({"image": asked["image"], "model": asked["model"], "turns": said})


def _read_line(prompt: str) -> str | None:
    """One line of standard input; None at its end."""
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip() if line else None


def _run_chat_command(talk: Conversation, line: str, allow_urls: bool) -> None:
    """Run what begins with a slash. A mistake is printed and does not end the chat."""
    word, _, rest = line.partition(" ")
    rest = rest.strip()
    try:
        if word == "/reset":
            talk.reset()
        elif word == "/image" and rest:
            talk.add_image(common.read_image(shlex.split(rest)[0], allow_urls))
        elif word == "/method" and rest:
            talk.method = common.choose_method(rest)
            err().print("vanilla" if talk.method is None else talk.method.label, style="dim", markup=False)
        elif word == "/report":
            _print_full_report(talk.last)
        elif word == "/help":
            err().print(CHAT_HELP, style="dim", markup=False)
        else:
            warn(f"unknown command {line!r}; type /help")
    except (Failure, ValueError) as error:
        warn(error)


def _print_full_report(answer: Answer | None) -> None:
    if answer is None or answer.report is None:
        warn("there is no report: nothing was asked yet, or the last answer was vanilla's")
        return
    facts = {name: value for name, value in answer.report.to_json().items() if value not in (None, [], (), {})}
    for name, value in facts.items():
        if name not in ("rows", "parts", "expected"):
            err().print(f"{name}: {value}", style="dim", markup=False, soft_wrap=True)

"""`airvlm chat`: a conversation about images, turn by turn, under a method.

Reads questions from standard input, a line each, so that a file of questions can be piped into it. The conversation
itself is a list of turns that `VLM.stream` takes; it is written through the model's own chat template.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from airvlm.cli import asking
from airvlm.cli.console import Failure, emit, err, warn
from airvlm.cli.options import Asking, Choosing, ImageArgument, JsonOption

if TYPE_CHECKING:
    from PIL import Image

    from airvlm.vlm import VLM, Answer

__all__ = ["Conversation", "chat"]

HELP = "/image FILE shows another image, /again forgets what was said, /quit (or Ctrl-D) ends"


def chat(
    image: ImageArgument,
    by: Choosing = Choosing(),
    how: Asking = Asking(),
    system: Annotated[
        str | None, typer.Option("--system", help="What the model is told before the first question.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Talk about an image, turn by turn.

    Type a question, then another. /image FILE shows another image, /again forgets what was said, /quit or Ctrl-D ends.
    Questions may be piped in, a line each.

    [bold]Examples[/bold]

    airvlm chat scene.png

    airvlm chat photo.jpg -m llava-hf/llava-1.5-7b-hf --method air --system "Answer in one sentence."

    airvlm chat scene.png --json < questions.txt
    """
    if "-" in (image, *(how.more_images or ())):
        raise Failure("chat reads its questions from standard input: give the image as a file")
    method = asking.chosen_method(by.method, by.settings)
    images = asking.read_images(image, how)
    generation = asking.decoding(how)
    talk = Conversation(asking.load_for(how), images, system, method, generation)
    watched = sys.stdin.isatty() and not json
    if watched:
        err().print(f"[dim]{escape(HELP)}[/dim]")
    said: list[dict[str, Any]] = []
    while (line := _line("you> " if watched else "")) not in (None, "/quit"):
        assert line is not None, "the loop ends at the end of the input"
        if line.startswith("/") or not line:
            _command(talk, line, how)
            continue
        with asking.explained():
            answer = talk.ask(line, show=not json)
        said.append({"question": line} | asking.answer_json(answer))
        if not json and answer.report is not None:
            err().print(f"[dim]{escape(str(answer.report))}[/dim]")
    if json:
        named = None if method is None else method.to_json()
        emit({"image": image, "model": talk.vlm.name, "method": named, "turns": said})


class Conversation:
    """What was said so far, and to whom."""

    def __init__(
        self,
        vlm: VLM,
        images: list[Image.Image],
        system: str | None,
        method: Any,
        generation: dict[str, Any],
    ) -> None:
        self.vlm, self.method, self.generation, self.system = vlm, method, generation, system
        self.images = list(images)
        self.again()

    def again(self) -> None:
        """Forget what was said; the images stay."""
        self.lock: list[dict[str, Any]] = []
        if self.system is not None:
            self.lock.append({"role": "system", "content": self.system})
        self.unseen = len(self.images)  # images that the next question shows

    def show_image(self, image: Image.Image) -> None:
        """One more image, shown with the next question."""
        self.images.append(image)
        self.unseen += 1

    def ask(self, question: str, *, show: bool) -> Answer:
        """The next turn and its answer, printed as it comes where `show` is set."""
        parts = [{"type": "image"}] * self.unseen + [{"type": "text", "text": question}]
        turns = [*self.lock, {"role": "user", "content": parts}]
        stream = self.vlm.stream(self.images, turns, method=self.method, **self.generation)
        answer = asking.spoken(stream, show=show)
        self.lock, self.unseen = [*turns, {"role": "assistant", "content": answer.text}], 0
        return answer


def _line(prompt: str) -> str | None:
    """One line of the input without its end; None where there is no more."""
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip() if line else None


def _command(talk: Conversation, line: str, how: Asking) -> None:
    """What begins with a slash; a mistake there is told and does not end the conversation."""
    word, _, rest = line.partition(" ")
    if not line:
        return
    if word == "/again":
        talk.again()
    elif word == "/image" and rest.strip():
        try:
            talk.show_image(asking.read_image(rest.strip(), how.allow_urls))
        except (Failure, ValueError) as error:
            warn(error)
    else:
        warn(f"{line}: {HELP}")

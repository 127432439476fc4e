"""The command line: a table of sub-commands, each in a file of its own, imported when it is used.

`airvlm --help` must answer at once, so the table holds each command's one line, and torch is imported with the
command that needs it.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from airvlm import __version__
from airvlm.cli.console import err, warn
from airvlm.cli.options import grouped

__all__ = ["COMMANDS", "app", "main", "run"]

# name -> where its function is, and what it does in one line
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("airvlm.cli.demo:demo", "See it: a scene and a photograph described without and with AIR."),
    "ask": ("airvlm.cli.ask:ask", "Ask a question about an image."),
    "describe": ("airvlm.cli.describe:describe", "Describe an image in detail."),
    "chat": ("airvlm.cli.chat:chat", "Talk about an image, turn by turn."),
    "compare": ("airvlm.cli.compare:compare", "One question under several methods, differences marked."),
    "look": ("airvlm.cli.look:look", "Draw what AIR looked at: crops, distances, what was kept."),
    "evaluate": ("airvlm.cli.evaluate:evaluate", "Run benchmarks under methods and keep the answers."),
    "score": ("airvlm.cli.score:score", "Score answers that you already have."),
    "ablate": ("airvlm.cli.ablate:ablate", "Vary a method's fields and tabulate the effect."),
    "calibrate": (
        "airvlm.cli.calibrate:calibrate",
        "Find the method and setting that help your model, and what they are worth.",
    ),
    "analyse": ("airvlm.cli.analyse:analyse", "Look into a model: tokens, layers, distances, crops."),
    "reproduce": (
        "airvlm.cli.reproduce:reproduce",
        "A table of the paper measured again, its figures beside ours; or the README's.",
    ),
    "report": ("airvlm.cli.report:report", "Tables and a page from stored answers."),
    "serve": ("airvlm.cli.serve:serve", "An OpenAI-compatible server, every answer under a method."),
    "web": ("airvlm.cli.web:web", "A page in the browser: methods side by side."),
    "bench": ("airvlm.cli.bench:bench", "Measure speed and memory against vanilla."),
    "models": ("airvlm.cli.models:models", "Which models are embedded, and which families are supported."),
    "methods": (
        "airvlm.cli.methods:methods",
        "Which methods there are: every field, its meaning and default.",
    ),
    "scene": ("airvlm.cli.scene:scene", "Draw a new scene of the tiny model's world, with its truth."),
    "doctor": ("airvlm.cli.doctor:doctor", "What is installed, what is missing, and how to get it."),
    "vllm": ("airvlm.cli.vllm:vllm", "Serve a model by vLLM with AIR in front of the decoder."),
    "export-generate": (
        "airvlm.cli.export_generate:export_generate",
        "A folder that makes transformers' own generate run under a method.",
    ),
    "about": ("airvlm.cli.about:about", "About the embedded models: size, training, scores, limits."),
}

RENAMED = {"tiny": "about"}  # old name -> the new one; the old one goes on working
INTERRUPTED, STOPPED = 130, "stopped by Ctrl-C"

EXAMPLES = """[bold]Examples[/bold]

airvlm ask photo.jpg "Is there a fork in the image?"

airvlm ask photo.jpg "What is on the table?" --model llava-hf/llava-1.5-7b-hf --method air-paper --set keep=3

airvlm compare photo.jpg "Please describe this image in detail."

airvlm look photo.jpg --output looked.png
"""


class Commands(TyperGroup):
    """A group that imports a sub-command's file only when that command is run."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in with the command's one line, enough for the overview."""
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else TyperCommand(name=cmd_name, help=entry[1])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in RENAMED:
            warn(f"airvlm {args[0]} is now called airvlm {RENAMED[args[0]]}")
            args = [RENAMED[args[0]], *args[1:]]
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else stand_in, rest


@cache
def load_command(name: str) -> Any:
    """The sub-command itself, built once: its options take longer to declare than many a command to run."""
    module, function = COMMANDS[name][0].split(":")
    single = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    command = getattr(import_module(module), function)
    settings = getattr(command, "context_settings", None)  # of a command that hands options on
    single.command(name, context_settings=settings)(grouped(command))
    return typer.main.get_command(single)


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog=EXAMPLES,
)


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def overview(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Multimodal language models that hallucinate less, without training.

    Each command explains itself: [bold]airvlm COMMAND --help[/bold].
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code. Input that cannot be used ends in one line and code 2."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    command = typer.main.get_command(app)
    try:
        with warnings.catch_warnings():
            # our own names that changed: whoever types them is told
            warnings.filterwarnings("default", category=DeprecationWarning, module=r"airvlm\b")
            warnings.showwarning = lambda message, *rest, **more: warn(message)
            result = command.main(args=arguments, prog_name="airvlm", standalone_mode=False)
        if result == INTERRUPTED:  # typer turns Ctrl-C into this code, and says nothing
            return _fail(STOPPED, INTERRUPTED)
        return result if isinstance(result, int) else 0
    except typer.TyperException as error:
        return _fail(error.format_message(), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _fail(STOPPED, INTERRUPTED)
    except BrokenPipeError:
        # the reader of a pipe has gone; nothing more can be written, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, ValueError, ImportError) as error:
        # what the library raises on input it cannot use; a traceback is for those who ask for it
        if os.environ.get("AIRVLM_TRACEBACK"):
            raise
        return _fail(str(error) or type(error).__name__, 2)


def _fail(message: str, code: int) -> int:
    err().file.flush()
    warn(message)
    return code


def main() -> None:
    """The entry point of the `airvlm` command."""
    sys.exit(run())

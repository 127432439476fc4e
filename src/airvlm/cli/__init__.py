"""The command line: a table of commands, each in a file of its own that is imported when the command is used.

`airvlm --help` must answer at once, so the table holds the first line of each command's help.
"""

import difflib
import os
import re
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from airvlm import __version__
from airvlm.cli.console import Failure, err, warn
from airvlm.cli.options import expand_groups

__all__ = ["COMMANDS", "app", "load_command", "main", "run"]

# name -> where its function is, and what it does in one line
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("airvlm.cli.demo:demo", "Describe a scene and photographs with and without a method."),
    "ask": ("airvlm.cli.ask:ask", "Ask about an image, or describe it; compare methods; chat."),
    "visualize": ("airvlm.cli.visualize:visualize", "Draw what a method did: crops, changed tokens, norms."),
    "info": ("airvlm.cli.info:info", "Show models, methods, tasks, the installation, or an image's tokens."),
    "scene": ("airvlm.cli.scene:scene", "Draw an emoji scene for the model tiny, with its ground truth."),
    "evaluate": ("airvlm.cli.evaluate:evaluate", "Run benchmarks under methods and keep the answers."),
    "score": ("airvlm.cli.score:score", "Score answers that you already have."),
    "data": ("airvlm.cli.data:data", "List, fetch, locate and verify the benchmarks' data."),
    "report": ("airvlm.cli.report:report", "Write tables and a page from stored answers."),
    "leaderboard": ("airvlm.cli.leaderboard:leaderboard", "Run every method on the same items and rank them."),
    "calibrate": ("airvlm.cli.calibrate:calibrate", "Find the method and options that help your model."),
    "analyze": ("airvlm.cli.analyze:analyze", "Measure a model's visual tokens, layers, crops and distances."),
    "bench": ("airvlm.cli.bench:bench", "Measure the speed and memory of methods against vanilla."),
    "serve": ("airvlm.cli.serve:serve", "Serve a model under a method: OpenAI API, vLLM, or a web page."),
    "check": ("airvlm.cli.check:check", "Check that a method keeps the laws of methods, on small random models."),
    "bake": ("airvlm.cli.bake:bake", "Write a checkpoint with a method in its weights, for any engine."),
    "export-generate": (
        "airvlm.cli.export_generate:export_generate",
        "Write a folder that makes transformers' generate run a method.",
    ),
}

# Words that somebody may try, and the command that does it
WORDS = {
    "describe": "ask",
    "compare": "ask",
    "chat": "ask",
    "look": "visualize",
    "draw": "visualize",
    "models": "info models",
    "methods": "info methods",
    "tasks": "info tasks",
    "list": "info",
    "version": "--version",
    "doctor": "info installation",
    "analyse": "analyze",
    "eval": "evaluate",
    "web": "serve --page",
    "page": "serve --page",
    "download": "data",
}

INTERRUPTED, STOPPED = 130, "stopped by Ctrl-C"

EXAMPLES = """\b
Examples:
  airvlm demo
  airvlm ask photo.jpg "Is there a fork in the image?"
  airvlm ask photo.jpg --method vanilla --method crop-blend
  airvlm visualize photo.jpg --output crops.png
  airvlm info methods

Every command explains itself: airvlm COMMAND --help
"""


class Command(TyperCommand):
    """A command whose help shows groups of options under headings, and arguments without types."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        return [piece.replace("{", "").replace("}", "").replace("......", "...") for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            name, text = record
            text = re.sub(r"default: \(([^()]*)\)", r"default: \1", text)
            if param.param_type_name == "argument":
                sections.setdefault("Arguments", []).append((name.split(" <")[0], text))
            else:
                sections.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append((name, text))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Commands(TyperGroup):
    """A group that imports a command's file only when that command is run."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in with the command's one line, enough for the overview."""
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else TyperCommand(name=cmd_name, help=entry[1], rich_markup_mode=None)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            near = [WORDS[name]] if name in WORDS else difflib.get_close_matches(name, COMMANDS, 1)
            hint = f"did you mean airvlm {near[0]}?" if near else f"the commands are {', '.join(COMMANDS)}"
            raise Failure(f"unknown command {name!r}; {hint}")
        found, stand_in, rest = super().resolve_command(ctx, args)
        return found, load_command(found) if found in COMMANDS else stand_in, rest


@cache
def load_command(name: str) -> Any:
    """The command itself, built once."""
    module, function = COMMANDS[name][0].split(":")
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    single.command(name, cls=Command)(expand_groups(getattr(import_module(module), function)))
    return typer.main.get_command(single)


app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=EXAMPLES,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def overview(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Training-free methods against hallucination in vision-language models."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Input that cannot be used ends in one line and code 2."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    command = typer.main.get_command(app)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: warn(message)
            result = command.main(args=arguments, prog_name="airvlm", standalone_mode=False)
        sys.stdout.flush()
        if result == INTERRUPTED:  # typer turns Ctrl-C into this code and prints nothing
            return _fail(STOPPED, INTERRUPTED)
        return result if isinstance(result, int) else 0
    except typer.TyperException as error:
        return _fail(error.format_message().replace("Value error, ", ""), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _fail(STOPPED, INTERRUPTED)
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # how typer reacts to one
            raise
        return _leave_pipe()
    except BrokenPipeError:
        return _leave_pipe()
    except (OSError, ValueError, ImportError) as error:
        # what the library raises on input that it cannot use; AIRVLM_TRACEBACK=1 shows where
        if os.environ.get("AIRVLM_TRACEBACK"):
            raise
        return _fail(str(error) or type(error).__name__, 2)


def _leave_pipe() -> int:
    """The reader of standard output has closed it (`| head`): nothing more can be written, not even at exit."""
    sys.stdout = sys.__stdout__
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    err().file.flush()
    warn(message)
    return code


def main() -> None:
    """The entry point of the `airvlm` command."""
    # package.module:Class may be in the working folder, which `python -m airvlm` searches and an installed script does
    # not; last, so that no file there replaces an installed package
    sys.path.append("")
    sys.exit(run())

"""`python -m tools.readme`: the generated parts of README.md, docs and the command line, from the registry.

    <!-- generated: known methods -->
    | method | paper | ...
    <!-- end of known methods -->

Prints the files that changed. With --check nothing is written, and it exits with 1 if a file is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airvlm.methods.base import Method

__all__ = ["PARTS", "main", "replace_part"]

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference" / "methods"
BOARDS = ROOT / "experiments" / "leaderboard"
WRAPPERS = "controls.md"  # one page for the controls that wrap a method
KNOWN = {
    "air",
    "crop-blend",
    "deco",
    "dola",
    "icd",
    "memvr",
    "nullu",
    "opera",
    "pai",
    "vaf",
    "vcd",
    "vista",
}  # in README
# As data passes them; a site that is not named comes before the controls
SITES = ("input", "visual tokens", "attention", "hidden states", "feed-forward", "logits", "weights", "decoding loop")


# -- methods


def known_methods() -> str:
    """One row per method that many papers compare with, AIR and our own; and how many there are in all."""
    methods, folder = _methods(), "docs/reference/methods/"
    controls = sum(kind.site == "control" for _, kind in methods)
    table = _methods_table([(name, kind) for name, kind in methods if name in KNOWN], folder)
    every = f"[{len(methods) - controls} methods and {controls} controls]({folder}index.md)"
    return f"{table}\n\nThese are the best known of {every}. The page of each says what paper, code and airvlm do."


def methods_table() -> str:
    """One row per method."""
    return _methods_table(_methods(), "")


def _methods_table(methods: Iterable[tuple[str, type[Method]]], folder: str) -> str:
    head = ["method", "paper", "acts on", "forward passes (vanilla: 1)", "what it does"]
    rows = [
        [_link(name, kind, folder), _paper(kind.paper), kind.site, kind.cost, kind.summary] for name, kind in methods
    ]
    return _table(head, rows)


def options_of(name: str) -> str:
    """One row per option of a method."""
    from airvlm.cli.method_table import describe_method
    from airvlm.methods import METHODS

    rows = [
        [f"`{option['name']}`", f"`{option['default']}`", option["values"], option["help"]]
        for option in describe_method(METHODS[name])["options"]
    ]
    return _table(["option", "default", "values", "meaning"], rows)


def wrappers_table() -> str:
    """One row per control that wraps a method."""
    from airvlm.cli.method_table import describe_method
    from airvlm.methods.controls import Wrapper

    rows = []
    for name, kind in _methods():
        if issubclass(kind, Wrapper):
            own = [o for o in describe_method(kind)["options"] if o["name"] != "method"]
            options = "; ".join(f"`{o['name']}={o['default']}`: {o['help']}" for o in own)
            rows.append([f"`{name}`", f"`{kind.__name__}`", kind.summary.removeprefix("control: "), options])
    return _table(["name", "class", "what changes", "options"], rows)


def _methods() -> list[tuple[str, type[Method]]]:
    """The methods of this package by name, grouped by site, controls last."""
    from airvlm.methods import METHODS

    own = [(name, kind) for name, kind in METHODS.items() if kind.__module__.startswith("airvlm.")]
    rest = [kind.site for _, kind in own if kind.site not in (*SITES, "control")]
    sites = [*SITES, *dict.fromkeys(rest), "control"]
    return sorted(own, key=lambda entry: sites.index(entry[1].site))


def _link(name: str, kind: type[Method], folder: str) -> str:
    """The method's name as a link to its own page, or to the page that lists its options."""
    from airvlm.methods.controls import Wrapper

    page = f"{name}.md"
    if not (PAGES / page).exists():
        marker = f"<!-- generated: options of {name} -->"
        others = [p.name for p in sorted(PAGES.glob("*.md")) if marker in p.read_text(encoding="utf-8")]
        page = others[0] if others else WRAPPERS if issubclass(kind, Wrapper) else ""
    return f"[`{name}`]({folder}{page})" if page else f"`{name}`"


def _paper(text: str | None) -> str:
    if text is None:
        return "ours"
    found = re.search(r"\((?:(.+), )?arXiv (\d+\.\d+)\)", text)
    return f"[{found[1] or 'arXiv'}](https://arxiv.org/abs/{found[2]})" if found else text


# -- results


def leaderboards(folder: str = ".") -> str:
    """All boards of a folder as one."""
    from airvlm.leaderboard.board import Board, merge
    from airvlm.leaderboard.markdown import board_markdown

    return board_markdown(merge([Board.load(path) for path in sorted((BOARDS / folder).glob("*.json"))]))


# -- models and commands


def models_table() -> str:
    """One row per model family."""
    from airvlm.cli.info import models_markdown

    return models_markdown().strip()


def commands() -> str:
    """One section per command: what it does, and its options."""
    import click

    from airvlm.cli import COMMANDS, load_command

    parts = []
    for name, (_, line) in COMMANDS.items():
        command = load_command(name)
        # click remembers the names of the help option with the first context: those that the command line has
        context = click.Context(command, info_name=f"airvlm {name}", help_option_names=["-h", "--help"])
        usage = " ".join(command.collect_usage_pieces(context))
        parts.append(f"## {name}\n\n{line}\n\n```text\nairvlm {name} {usage}\n```\n")
        parts.append(_table(["option", "meaning"], _options(command, context)) + "\n")
    return "\n".join(parts)


def _options(command: Any, context: Any) -> Iterable[Sequence[str]]:
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None and param.name != "help":
            name, text = record
            # as `--help` prints it: no type of an argument, no brackets around a default in words
            name = name.split(" <")[0] if param.param_type_name == "argument" else name
            yield f"`{name}`", re.sub(r"default: \(([^()]*)\)", r"default: \1", " ".join(text.split()))


# -- files

PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"known methods": known_methods},
    "docs/reference/methods/index.md": {"methods": methods_table},
    "docs/reference/methods/controls.md": {"wrappers": wrappers_table},
    "docs/reference/models.md": {"models": models_table},
    "docs/reference/commands.md": {"commands": commands},
    "docs/results/leaderboard.md": {"leaderboards": leaderboards, "settings": partial(leaderboards, "settings")},
}


def options_on(text: str) -> dict[str, Callable[[], str]]:
    """The tables of options that a page asks for: `<!-- generated: options of vcd -->`."""
    names = re.findall(r"<!-- generated: options of (\S+) -->", text)
    return {f"options of {name}": partial(options_of, name) for name in names}


def add_markers(text: str) -> str:
    """The text with markers in place of mkdocstrings' blocks of methods, which do not show options."""
    from airvlm.registry import import_object

    def replace(match: re.Match[str]) -> str:
        module, _, name = match[1].rpartition(".")
        spelled = import_object(f"{module}:{name}").name
        return f"<!-- generated: options of {spelled} -->\n<!-- end of options of {spelled} -->\n"

    return re.sub(r"^::: (airvlm\.methods\.[\w.]+)\n(?: .*\n)*", replace, text, flags=re.MULTILINE)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def replace_part(text: str, name: str, new: str) -> str:
    """The text with `new` between the markers called `name`; ValueError if it has no such markers."""
    begin, end = f"<!-- generated: {name} -->\n", f"<!-- end of {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"write the markers '{begin.strip()}' and '{end}' once, in this order")
    return text[: text.index(begin) + len(begin)] + new.strip() + "\n" + text[text.index(end) :]


def _is_list(path: Path) -> bool:
    return path.name == "index.md"


def main(arguments: Sequence[str]) -> int:
    """Update the files, or only check them; returns the exit code."""
    from airvlm.cli.method_table import TABLE, build_table, read_table, write_table

    stale = []
    if read_table() != build_table():  # the lists of methods of the command line
        stale.append(TABLE.relative_to(ROOT).as_posix())
        if "--check" not in arguments:
            write_table()
    # lists of methods come last: their links depend on the pages
    for path in dict.fromkeys([*sorted(PAGES.glob("*.md"), key=_is_list), *(ROOT / file for file in PARTS)]):
        file = path.relative_to(ROOT).as_posix()
        old = path.read_text(encoding="utf-8")
        text = add_markers(old) if path.parent == PAGES else old
        for name, make in {**PARTS.get(file, {}), **options_on(text)}.items():
            text = replace_part(text, name, make())
        if text != old:
            stale.append(file)
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    for file in stale:
        print(f"{file}: {'out of date; run python -m tools.readme' if '--check' in arguments else 'updated'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

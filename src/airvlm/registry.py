"""Names of methods, tasks and families: those of this package, and those that installed packages bring along.

A package brings its own by an entry point of the group `airvlm.methods`, `airvlm.tasks` or `airvlm.families`. It is
imported when its name is asked for, or when all names are; one that cannot be used is left out and named in `problems`.
`parse_method` reads what the command line spells. Knows the names, and nothing of what stands behind them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from airvlm.hooks.method import Method

__all__ = ["Registry", "distribution_of", "imported", "parse_fields", "parse_method", "split_commas"]

V = TypeVar("V")


class Registry(MutableMapping[str, V], Generic[V]):
    """Names and what they stand for: the package's own, then those of an entry-point group."""

    def __init__(self, group: str, own: dict[str, V], adopt: Callable[[str, Any, str], V]) -> None:
        self.group = group
        self.own = own
        self.adopt = adopt  # (name, what the entry point loads, its package) -> the value, or an error
        self.problems: dict[str, str] = {}  # entries from outside that cannot be used, and why
        self._outside: dict[str, V] = {}
        self._entries: dict[str, metadata.EntryPoint] | None = None

    def package(self, name: str) -> str:
        """The distribution that a name comes from."""
        if name in self.own:
            return "airvlm"
        entry = self._found().get(name)
        return "airvlm" if entry is None else distribution_of(entry)

    def refresh(self) -> None:
        """Look for entry points again: a package was installed meanwhile."""
        self._entries = None
        self._outside.clear()
        self.problems.clear()

    def _found(self) -> dict[str, metadata.EntryPoint]:
        if self._entries is None:
            self._entries = {}
            for entry in metadata.entry_points(group=self.group):
                if entry.name in self.own:
                    self._complain(entry, f"the name is taken by airvlm's own {entry.name}")
                elif entry.name in self._entries and self._entries[entry.name].value != entry.value:
                    self._complain(entry, f"the name is taken by {self._entries[entry.name].value}")
                else:
                    self._entries[entry.name] = entry
        return self._entries

    def _complain(self, entry: metadata.EntryPoint, why: str) -> None:
        self.problems[entry.name] = f"{entry.name} ({entry.value}, of {distribution_of(entry)}): {why}"

    def _load(self, name: str) -> V | None:
        """What an entry point brings; None where it brings nothing usable, which is noted."""
        if name not in self._outside and name in self._found() and name not in self.problems:
            entry = self._found()[name]
            try:
                self._outside[name] = self.adopt(name, entry.load(), distribution_of(entry))
            except (
                Exception
            ) as error:  # another package's code: whatever it raises must not become our own failure
                self._complain(entry, f"{type(error).__name__}: {error}")
        return self._outside.get(name)

    def __getitem__(self, name: str) -> V:
        if name in self.own:
            return self.own[name]
        value = self._load(name)
        if value is None:
            raise KeyError(name)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self.own or (isinstance(name, str) and self._load(name) is not None)

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from [name for name in sorted(self._found()) if self._load(name) is not None]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __setitem__(self, name: str, value: V) -> None:
        self.own[name] = value

    def __delitem__(self, name: str) -> None:
        del self.own[name]

    def unknown(self, what: str, name: str) -> str:
        """The message for a name that is not known, and for one whose package is broken."""
        if name in self.problems:
            return f"the {what} {self.problems[name]}"
        return f"unknown {what} {name!r}; known: {', '.join(self)}"


def distribution_of(entry: metadata.EntryPoint) -> str:
    """The name of the installed package that an entry point belongs to."""
    return entry.value.split(".")[0].split(":")[0] if entry.dist is None else str(entry.dist.name)


def imported(target: str) -> Any:
    """`package.module:Class` or `package.module:Class.attribute` -> the object."""
    module, _, path = target.partition(":")
    try:
        found: Any = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{target}: {error}") from error
    return found


# -- methods as the command line spells them

_PATH = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"  # package.module:Class


def parse_method(text: str, *, local: bool = True) -> Method | None:
    """The method that a text spells; None for the model as it is ("vanilla", "none").

    `air`, `air-paper:keep=3,strength=0.2`  a name of the registry, fields after a colon
    `package.module:Class:field=value`      a Method of anybody's, imported
    `@calibration.json`                     what Method.load reads
    `air+vaf`                               several at once, in that order

    local=False: the text comes over a network, so that no module is imported and no file read for it.
    """
    from airvlm.methods import METHODS
    from airvlm.methods.composed import Composed

    text = text.strip()
    # A value may hold a + too, so that only one before a method joins.
    names = "|".join(map(re.escape, (*METHODS.own, *METHODS._found())))
    parts = re.split(rf"\+(?=(?:{names})(?:[:+]|$)|{_PATH}(?:[:+]|$)|@)", text)
    if len(parts) > 1:
        found = [parse_method(part, local=local) for part in parts]
        return Composed(*[method for method in found if method is not None])
    if text.startswith("@"):
        if not local:
            raise ValueError(f"{text}: files are not read here; give the method's fields")
        return _from_file(text)
    name, _, rest = text.partition(":")
    name = "vanilla" if name == "none" else name
    if name in METHODS:
        make = METHODS[name].make
    elif re.match(rf"{_PATH}(?::|$)", text) and local:
        name, _, rest = _target(text)
        make = METHODS.adopt(name, imported(name), name.split(".")[0]).make
    else:
        raise ValueError(METHODS.unknown("method", name))
    fields = parse_fields(rest, text)
    if make is None:
        if fields:
            raise ValueError(f"{text!r}: the model as it is has no fields to set")
        return None
    return _made(make, fields, name)


def _target(text: str) -> tuple[str, str, str]:
    """`package.module:Class:fields` -> `package.module:Class`, ":", fields."""
    match = re.match(_PATH, text)
    assert match is not None, "the caller has matched it"
    return match[0], ":", text[match.end() + 1 :]


def _made(make: Callable[..., Method], values: dict[str, Any], name: str) -> Method:
    from airvlm.hooks.fields import check_given

    make().check_names(values, name)
    method = make(**values)
    check_given(method, values)
    return method


def _from_file(text: str) -> Method:
    import dataclasses

    from airvlm.hooks.fields import check_given
    from airvlm.hooks.method import Method

    path, _, rest = text[1:].rpartition(":") if re.search(r":[^:/\\]*=", text) else (text[1:], "", "")
    method, values = Method.load(path), parse_fields(rest, text)
    method.check_names(values, path)
    changed = dataclasses.replace(method, **values)
    check_given(changed, values)
    return changed


def split_commas(text: str) -> list[str]:
    """The parts between commas, those inside parentheses apart; empty ones are left out."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def parse_fields(rest: str, text: str) -> dict[str, Any]:
    """`keep=3,layers=(2,4)` -> values by name."""
    values: dict[str, Any] = {}
    for written in split_commas(rest):
        name, equals, value = (piece.strip() for piece in written.partition("="))
        if not equals:
            raise ValueError(f"{text!r}: write fields as name=value, not {written!r}")
        if not value:
            raise ValueError(f"{text!r}: {name}= has no value; write {name}=none to leave it unset")
        if name in values:
            raise ValueError(f"{text!r}: {name} is given twice")
        values[name] = _value(value)
    return values


def _value(text: str) -> Any:
    """A number, a tuple, true, false or none; "2-4" and "2:4" are spans; anything else is a word."""
    words = {"none": None, "null": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        first, _, last = text.replace(":", "-").partition("-")
        if first.isdigit() and last.isdigit():
            return int(first), int(last)
        return float(text) if text.lower() in ("nan", "inf", "-inf", "infinity", "-infinity") else text
    return tuple(value) if isinstance(value, list) else value

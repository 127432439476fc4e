"""Names of methods, tasks and families: those of this package, and those that installed packages bring along.

A package brings its own by an entry point of the group `airvlm.methods`, `airvlm.tasks` or `airvlm.families`. It is
imported when its name is asked for, or when all names are; one that cannot be used is left out and named in `problems`.
Knows nothing of methods, tasks or families: each of them keeps a Registry of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib import import_module, metadata
from typing import Any, Generic, TypeVar

__all__ = ["Registry", "distribution_of", "imported", "renamed_names", "split_commas"]

V = TypeVar("V")


class Registry(MutableMapping[str, V], Generic[V]):
    """Names and what they stand for: the package's own, then those of an entry-point group."""

    def __init__(
        self,
        group: str,
        own: dict[str, V],
        adopt: Callable[
            [str, Any, str], V
        ],  # (name, what the entry point loads, its package) -> value, or error
        *,
        renamed: Mapping[str, str]
        | None = None,  # former name -> name: it is found, with a warning, but not listed
    ) -> None:
        self.group = group
        self.renamed = dict(renamed or {})
        self.own = own
        self.adopt = adopt
        self.problems: dict[str, str] = {}  # entries from outside that cannot be used, and why
        self._outside: dict[str, V] = {}
        self._entries: dict[str, metadata.EntryPoint] | None = None

    @property
    def names(self) -> list[str]:
        """All names: former ones too, and of packages that were not imported yet and may turn out to be of no use."""
        return [*self.own, *self.renamed, *self._found()]

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
        if name in self.renamed:
            new = self.renamed[name]
            warnings.warn(f"{name} is now called {new}", DeprecationWarning, stacklevel=2)
            name = new
        if name in self.own:
            return self.own[name]
        value = self._load(name)
        if value is None:
            raise KeyError(name)
        return value

    def __contains__(self, name: object) -> bool:
        return (
            name in self.own
            or name in self.renamed
            or (isinstance(name, str) and self._load(name) is not None)
        )

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


def renamed_names(module: str, targets: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` for names that changed: old name -> `package.module:New`, with a warning."""

    def look_up(name: str) -> Any:
        if name not in targets:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, new = targets[name].partition(":")
        warnings.warn(f"{module}.{name} is now {home}.{new}", DeprecationWarning, stacklevel=2)
        return imported(targets[name])

    return look_up


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

"""Names of methods, tasks and families: those of this package, and those that installed packages add.

A package adds its own by an entry point of the group `airvlm.methods`, `airvlm.tasks` or `airvlm.families`. It is
imported when its name is looked up, or when all names are listed; one that cannot be used is left out and recorded in
`problems`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, MutableMapping
from functools import cached_property
from importlib import import_module, metadata
from typing import Any, Generic, TypeVar

__all__ = ["Registry", "distribution_of", "import_object"]

V = TypeVar("V")


class Registry(MutableMapping[str, V], Generic[V]):
    """Names and what they stand for: the package's own, then those of an entry-point group.

    Args:
        group: the entry-point group.
        own: the package's own names, or a function that finds them, called when one is first looked up.
        adopt: (name, what the entry point loads, its package) -> the value; raises if it cannot be used.
    """

    def __init__(
        self, group: str, own: dict[str, V] | Callable[[], dict[str, V]], adopt: Callable[[str, Any, str], V]
    ) -> None:
        self.group = group
        self._own = own
        self.adopt = adopt
        self.problems: dict[str, str] = {}  # entries from outside that cannot be used, and why
        self._outside: dict[str, V] = {}
        self._entries: dict[str, metadata.EntryPoint] | None = None

    @cached_property
    def own(self) -> dict[str, V]:
        """The package's own names and what they stand for."""
        return self._own() if callable(self._own) else self._own

    @property
    def names(self) -> list[str]:
        """All names, those of packages that were not imported yet included."""
        return [*self.own, *self._find_entries()]

    def package(self, name: str) -> str:
        """The distribution that a name comes from."""
        entry = None if name in self.own else self._find_entries().get(name)
        return "airvlm" if entry is None else distribution_of(entry)

    def refresh(self) -> None:
        """Look for entry points again, after a package was installed."""
        self._entries = None
        self._outside.clear()
        self.problems.clear()

    def _find_entries(self) -> dict[str, metadata.EntryPoint]:
        if self._entries is None:
            self._entries = {}
            for entry in metadata.entry_points(group=self.group):
                if entry.name in self.own:
                    self._record_problem(entry, f"the name is taken by airvlm's own {entry.name}")
                elif entry.name in self._entries and self._entries[entry.name].value != entry.value:
                    self._record_problem(entry, f"the name is taken by {self._entries[entry.name].value}")
                else:
                    self._entries[entry.name] = entry
        return self._entries

    def _record_problem(self, entry: metadata.EntryPoint, why: str) -> None:
        self.problems[entry.name] = f"{entry.name} ({entry.value}, of {distribution_of(entry)}): {why}"

    def _load(self, name: str) -> V | None:
        """What an entry point provides; None if it is not usable, which is recorded."""
        if name not in self._outside and name in self._find_entries() and name not in self.problems:
            entry = self._find_entries()[name]
            try:
                self._outside[name] = self.adopt(name, entry.load(), distribution_of(entry))
            except Exception as error:  # another package's code: whatever it raises must not become our own failure
                self._record_problem(entry, f"{type(error).__name__}: {error}")
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
        yield from [name for name in sorted(self._find_entries()) if self._load(name) is not None]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __setitem__(self, name: str, value: V) -> None:
        self.own[name] = value

    def __delitem__(self, name: str) -> None:
        del self.own[name]

    def unknown(self, what: str, name: str) -> str:
        """The error message for a name that is not known, or whose package is broken."""
        if name in self.problems:
            return f"the {what} {self.problems[name]}"
        near = difflib.get_close_matches(name, self.names, 1, cutoff=0.65)
        hint = f"; did you mean {near[0]}?" if near else f". Known: {', '.join(self)}"
        return f"unknown {what} {name!r}{hint}"


def distribution_of(entry: metadata.EntryPoint) -> str:
    """The name of the installed package that an entry point belongs to."""
    return entry.value.split(".")[0].split(":")[0] if entry.dist is None else str(entry.dist.name)


def import_object(target: str) -> Any:
    """Import `package.module:Class` or `package.module:Class.attribute`. Never call this with text from a request."""
    module, _, path = target.partition(":")
    try:
        found: Any = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{target}: {error}") from error
    return found

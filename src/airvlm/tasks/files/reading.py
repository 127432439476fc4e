"""Bytes of a file into text, JSON values and records that know their line; refuses bombs and damage in one line.

Knows nothing about benchmarks. Files may be gzipped, begin with a byte-order mark, be UTF-16, end their lines in any
way. Everything that cannot be read is a ValueError that names the file, and the line where there is one.
"""

from __future__ import annotations

import csv
import io
import json
import re
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Row", "kind_of", "read_json", "read_records", "read_table", "read_text", "unpacked_limit"]

LARGEST = 1 << 30  # bytes of one file, unpacked
SMALL = 1 << 26  # a packed file may always grow to this, however small it is
GROWTH = 100  # and otherwise to this many times its size: texts shrink to a tenth or so, bombs to a thousandth
LARGEST_FIELD = 1 << 27  # a table may hold images in base64
CHUNK = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*")
_one_reader = threading.Lock()  # the csv module's limit is global: set and put back by one thread at a time


class Row(dict[str, Any]):
    """One record of a file, and the line on which it begins (0: unknown)."""

    line: int = 0

    @classmethod
    def at(cls, content: dict[str, Any], line: int) -> Row:
        row = cls(content)
        row.line = line
        return row


def kind_of(path: Path) -> str:
    """What a file's name says that it is, such as ".json"; whether it is gzipped does not matter."""
    return Path(Path(path).name.lower().removesuffix(".gz")).suffix


def unpacked_limit(packed: int) -> int:
    """How many bytes a packed file of that size may become."""
    return min(LARGEST, max(SMALL, GROWTH * packed))


def read_text(path: Path) -> str:
    """A text file, gzipped or not, in UTF-8 or with a byte-order mark that says otherwise."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} is larger than {LARGEST >> 20} MB")
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = _unpacked(raw, path)
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not text in {encoding.upper().removesuffix('-SIG')}") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{path}, line {line}: not a text file (it holds a null character)")
    return text


def _unpacked(raw: bytes, path: Path) -> bytes:
    """The content of a gzip file, member by member, up to the limit."""
    limit, parts, size, rest = unpacked_limit(len(raw)), list[bytes](), 0, raw
    while rest[:2] == b"\x1f\x8b":
        unpacker, at = zlib.decompressobj(wbits=31), 0
        try:
            while not unpacker.eof and (at < len(rest) or unpacker.unconsumed_tail):
                piece = unpacker.unconsumed_tail or rest[at : at + CHUNK]
                at += 0 if unpacker.unconsumed_tail else len(piece)
                parts.append(unpacker.decompress(piece, CHUNK))
                size += len(parts[-1])
                if size > limit:
                    raise ValueError(
                        f"{path} unpacks to more than {limit >> 20} MB: refused, unpack it yourself if it is meant"
                    )
        except zlib.error as error:
            raise ValueError(f"{path}: damaged gzip file ({error})") from None
        if not unpacker.eof:
            raise ValueError(f"{path}: gzip file cut short; download or copy it again")
        rest = unpacker.unused_data + rest[at:]
    if rest.strip(b"\0"):
        raise ValueError(f"{path}: damaged gzip file (something else follows its content)")
    return b"".join(parts)


def read_json(path: Path) -> Any:
    """One JSON value."""
    text = read_text(path)
    value, at = _decode(text, _skip(text, 0), path)
    if _skip(text, at) != len(text):
        raise ValueError(f"{path}, line {_line(text, _skip(text, at))}: something follows the JSON value")
    return value


def read_records(path: Path) -> list[dict[str, Any]]:
    """JSON objects from a file: a JSON list, JSON lines, or objects one after the other, pretty-printed or not.

    A file that is one single object gives a list of that one object. Each is a `Row` that knows its line.
    """
    text = read_text(path)
    found: list[dict[str, Any]] = []
    line, seen = 1, 0
    for at, value in _values(text, path):
        line, seen = line + text.count("\n", seen, at), at
        if not isinstance(value, dict):
            said = "null" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"
            raise ValueError(f"{path}, line {line}: expected a JSON object, found {said}")
        found.append(Row.at(value, line))
    return found


def read_table(path: Path) -> list[dict[str, str]]:
    """Rows of a .tsv or .csv file with a header line; each is a `Row` that knows its line."""
    text = read_text(path)
    head = text.split("\n", 1)[0]
    with _one_reader:
        before = csv.field_size_limit(LARGEST_FIELD)
        try:
            rows = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if "\t" in head else ",")
            names = [str(name) for name in rows.fieldnames or []]
            twice = next((name for name in names if name and names.count(name) > 1), None)
            if twice is not None:
                raise ValueError(f"{path}, line 1: two columns are named {twice!r}")
            found: list[dict[str, str]] = []
            for row in rows:
                if None in row:
                    raise ValueError(f"{path}, line {rows.line_num}: more cells than the {len(names)} columns")
                if None in row.values():
                    raise ValueError(f"{path}, line {rows.line_num}: fewer cells than the {len(names)} columns")
                found.append(Row.at(row, rows.line_num))
            return found
        except csv.Error as error:
            raise ValueError(f"{path}: not a table ({error})") from None
        finally:
            csv.field_size_limit(before)


def _values(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """(position, value) of each value in a file: of a list its elements."""
    at = _skip(text, 0)
    if text.startswith("[", at):
        opened = at
        at = _skip(text, at + 1)
        while not text.startswith("]", at):
            value, end = _decode(text, at, path)
            yield at, value
            at = _skip(text, end)
            if text.startswith(",", at):
                at = _skip(text, at + 1)
                if text.startswith("]", at):
                    raise ValueError(f"{path}, line {_line(text, at)}: not JSON (a comma before the list's end)")
            elif not text.startswith("]", at):
                line = _line(text, min(at, max(len(text) - 1, 0)))
                raise ValueError(f"{path}, line {line}: not JSON (the list of line {_line(text, opened)} goes wrong)")
        at = _skip(text, at + 1)
        if at != len(text):
            raise ValueError(f"{path}, line {_line(text, at)}: something follows the JSON list")
        return
    while at != len(text):
        value, end = _decode(text, at, path)
        yield at, value
        at = _skip(text, end)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _decode(text: str, at: int, path: Path) -> tuple[Any, int]:
    if at >= len(text):
        raise ValueError(f"{path}: the file is empty" if not text.strip() else f"{path}: not JSON, cut short")
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        line = _line(text, error.pos)
        page = " (it looks like a web page)" if text.lstrip()[:1] == "<" else ""
        raise ValueError(f"{path}, line {line}: not JSON: {error.msg}{page}") from None
    except RecursionError:
        raise ValueError(f"{path}, line {_line(text, at)}: JSON nested too deeply") from None
    except ValueError as error:  # a constant or a number that no file may hold, a key twice
        raise ValueError(f"{path}, line {_line(text, at)}: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _whole(digits: str) -> int:
    if len(digits) > 400:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{digits} is no finite number")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ: of two equal ones the last would silently win."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return content


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_whole, parse_float=_finite
)

"""Files into text, JSON values, records and tables; records know their place for error messages.

Files may be gzipped, begin with a byte-order mark, be UTF-16, and have any line ends. Whatever cannot be read is a
ValueError that names the file, and the line and field if there are any. A packed file that would grow to far more than
its size is refused.
"""

from __future__ import annotations

import csv
import io
import json
import re
import threading
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

__all__ = [
    "Row",
    "TaskDataMissing",
    "find_file",
    "get_suffix",
    "make_rows",
    "read_json",
    "read_records",
    "read_table",
    "read_text",
]

MAX_FILE = 1 << 30  # bytes of one file, unpacked
MAX_UNPACKED = 1 << 26  # a packed file may always grow to this size
MAX_GROWTH = 100  # or to this many times its own: texts shrink to about a tenth, bombs to a thousandth
MAX_FIELD = 1 << 27  # a table may hold images in base64
MAX_ID = 500  # characters
CHUNK = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*")
_csv_lock = threading.Lock()  # the csv module's field limit is global
_REQUIRED: Any = object()


class TaskDataMissing(FileNotFoundError):
    """A task needs files that are not there; the message says which, and where they come from."""


def find_file(folder: Path, name: str, *places: str, task: str) -> Path:
    """The file `name` in a folder or in one of its subfolders `places`; TaskDataMissing if it is in none."""
    for place in ("", *places):
        if (path := folder / place / name).exists():
            return path
    others = f" or its {', '.join(f'{place}/' for place in places)}" if places else ""
    raise TaskDataMissing(f"{task}: no {name} in {folder}{others}")


class Row(dict[str, Any]):
    """One record of a file. The `read_*` methods check a field and name the file, the place and the field in errors.

    Several names of a field are alternatives; the first that the record has is read.
    """

    def __init__(self, content: Mapping[str, Any], path: Path, place: str, line: int = 0) -> None:
        super().__init__(content)
        self.path, self.place, self.line = path, place, line  # line 0: unknown

    def error(self, name: str, message: str) -> ValueError:
        """An error about a field of this record."""
        return ValueError(f"{self.path}, {self.place}, field {name}: {message}")

    def find(self, *names: str, default: Any = _REQUIRED) -> tuple[str, Any]:
        """The first of some fields that the record has, and its value."""
        for name in names:
            if name in self:
                return name, self[name]
        if default is not _REQUIRED:
            return names[0], default
        present = ", ".join(map(str, list(self)[:8])) or "none"
        raise self.error(" or ".join(names), f"missing (the record has {present})")

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self.get(name) is not None

    def read_text(self, *names: str, default: str = _REQUIRED) -> str:
        name, value = self.find(*names, default=default)
        if not isinstance(value, str):
            raise self.error(name, f"expected a text, not {_show(value)}")
        return value

    def read_id(self, *names: str, default: str = _REQUIRED) -> str:
        name, value = self.find(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.error(name, f"an id is a text or a whole number, not {_show(value)}")
        text = str(value)
        if name in self and (not text.strip() or len(text) > MAX_ID):
            raise self.error(name, f"an id must not be empty or longer than {MAX_ID} characters")
        return text

    def read_int(self, *names: str) -> int:
        """A whole number, also as tables write it ("12", "12.0")."""
        name, value = self.find(*names)
        try:
            number = float(value) if isinstance(value, str | int) and not isinstance(value, bool) else float("nan")
        except (ValueError, OverflowError):
            number = float("nan")
        if not abs(number) <= 2**53 or number != int(number):
            raise self.error(name, f"expected a whole number, not {_show(value)}")
        return int(number)

    def read_number(self, name: str, low: float, high: float, default: float = _REQUIRED) -> float:
        return self._check_number(name, self.find(name, default=default)[1], low, high)

    def read_numbers(self, name: str, low: float, high: float) -> list[float]:
        """A list of at least one number."""
        value = self.find(name)[1]
        if not isinstance(value, list) or not value:
            raise self.error(name, f"expected a list of numbers, not {_show(value)}")
        return [self._check_number(f"{name}.{i}", number, low, high) for i, number in enumerate(value)]

    def _check_number(self, name: str, value: Any, low: float, high: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            limits = f"greater than or equal to {low:g}" + (f" and at most {high:g}" if high < float("inf") else "")
            raise self.error(name, f"expected a number {limits}, not {_show(value)}")
        return float(value)

    def read_choice(self, *names: str, choices: Iterable[str]) -> str:
        """One of some texts; case and surrounding spaces do not matter if the choices are lower-case."""
        name, value = self.find(*names)
        known = tuple(choices)
        text = value if value in known else value.strip().lower() if isinstance(value, str) else None
        if text not in known:
            raise self.error(name, f"expected {' or '.join(known)}, not {_show(value)}")
        return cast("str", text)

    def read_texts(self, name: str, default: list[str] = _REQUIRED) -> list[str]:
        """A list of texts."""
        value = self.find(name, default=default)[1]
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.error(name, f"expected a list of texts, not {_show(value)}")
        return value


def _show(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"


def make_rows(records: Any, path: Path, what: str, field: str = "") -> list[Row]:
    """Rows from a list of JSON objects inside a file, or from the values of an object; `what` names one of them."""
    values = list(records.values()) if isinstance(records, dict) else records
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        place = f", field {field}" if field else ""
        raise ValueError(f"{path}{place}: expected a list of objects, one per {what}")
    return [Row(value, path, f"{what} {number}") for number, value in enumerate(values, 1)]


def get_suffix(path: Path) -> str:
    """The suffix of a file's name, such as ".json", without ".gz"."""
    return Path(Path(path).name.lower().removesuffix(".gz")).suffix


def _get_limit(packed: int) -> int:
    """How many bytes a packed file of that size may become."""
    return min(MAX_FILE, max(MAX_UNPACKED, MAX_GROWTH * packed))


def read_text(path: Path) -> str:
    """Read a text file, gzipped or not, in UTF-8 unless a byte-order mark says UTF-16."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file")
    if path.stat().st_size > MAX_FILE:
        raise ValueError(f"{path} is larger than {MAX_FILE >> 20} MB")
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = _unpack(raw, path)
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not a text in {encoding.upper().removesuffix('-SIG')}") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{path}, line {line}: not a text file (it has a null character)")
    return text


def _unpack(raw: bytes, path: Path) -> bytes:
    """The content of a gzip file, member by member, up to the limit."""
    limit, parts, size, rest = _get_limit(len(raw)), list[bytes](), 0, raw
    while rest[:2] == b"\x1f\x8b":
        unpacker, at = zlib.decompressobj(wbits=31), 0
        try:
            while not unpacker.eof and (at < len(rest) or unpacker.unconsumed_tail):
                piece = unpacker.unconsumed_tail or rest[at : at + CHUNK]
                at += 0 if unpacker.unconsumed_tail else len(piece)
                parts.append(unpacker.decompress(piece, CHUNK))
                size += len(parts[-1])
                if size > limit:
                    raise ValueError(f"{path} unpacks to more than {limit >> 20} MB; unpack it yourself if it is right")
        except zlib.error as error:
            raise ValueError(f"{path}: damaged gzip file ({error})") from None
        if not unpacker.eof:
            raise ValueError(f"{path}: the gzip file is cut short; download or copy it again")
        rest = unpacker.unused_data + rest[at:]
    if rest.strip(b"\0"):
        raise ValueError(f"{path}: damaged gzip file (other data follow its content)")
    return b"".join(parts)


def read_json(path: Path) -> Any:
    """Read a file with one JSON value."""
    text = read_text(path)
    value, at = _decode(text, _skip_space(text, 0), path)
    if _skip_space(text, at) != len(text):
        raise ValueError(f"{path}, line {_get_line(text, _skip_space(text, at))}: other data follow the JSON value")
    return value


def read_records(path: Path) -> list[Row]:
    """Read JSON objects: a JSON list, JSON lines, or objects one after the other, pretty-printed or not.

    A file with a single object gives a list of one.
    """
    text = read_text(path)
    found: list[Row] = []
    line, seen = 1, 0
    for at, value in _iterate_values(text, path):
        line, seen = line + text.count("\n", seen, at), at
        if not isinstance(value, dict):
            raise ValueError(f"{path}, line {line}: expected a JSON object, found {_show(value)}")
        found.append(Row(value, path, f"line {line}", line))
    return found


def read_table(path: Path) -> list[Row]:
    """Read the rows of a .tsv or .csv file with a header line, or of the first sheet of an .xlsx file."""
    if get_suffix(path) == ".xlsx":
        return _read_spreadsheet(path)
    text = read_text(path)
    head = text.split("\n", 1)[0]
    with _csv_lock:
        before = csv.field_size_limit(MAX_FIELD)
        try:
            rows = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if "\t" in head else ",")
            names = [str(name) for name in rows.fieldnames or []]
            _check_columns(names, path)
            found: list[Row] = []
            for row in rows:
                if None in row:
                    raise ValueError(f"{path}, line {rows.line_num}: more cells than the {len(names)} columns")
                if None in row.values():
                    raise ValueError(f"{path}, line {rows.line_num}: fewer cells than the {len(names)} columns")
                found.append(Row(row, path, f"line {rows.line_num}", rows.line_num))
            return found
        except csv.Error as error:
            raise ValueError(f"{path}: not a table ({error})") from None
        finally:
            csv.field_size_limit(before)


def _check_columns(names: list[str], path: Path) -> None:
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{path}, line 1: two columns are named {twice!r}")


def _read_spreadsheet(path: Path) -> list[Row]:
    try:
        openpyxl: Any = import_module("openpyxl")
    except ImportError:
        raise ImportError("reading .xlsx files needs openpyxl: pip install 'airvlm[xlsx]'") from None
    _check_spreadsheet(Path(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about styles and extensions that openpyxl does not know
            book = openpyxl.load_workbook(path, read_only=True, data_only=True)
            cells = [[_format_cell(value) for value in row] for row in book.worksheets[0].iter_rows(values_only=True)]
            book.close()
    except Exception as error:  # a damaged file makes openpyxl raise errors of every kind
        raise ValueError(f"{path}: not a readable .xlsx file ({type(error).__name__}: {str(error)[:80]})") from None
    if not cells:
        return []
    names = cells[0]
    _check_columns(names, path)
    rows = [(line, row) for line, row in enumerate(cells[1:], 2) if any(row)]
    return [Row({name: cell for name, cell in zip(names, row) if name}, path, f"line {n}", n) for n, row in rows]


def _check_spreadsheet(path: Path) -> None:
    """Refuse an .xlsx file that would unpack to far more than its size, or that declares entities."""
    try:
        with zipfile.ZipFile(path) as archive:
            limit = _get_limit(path.stat().st_size)
            if sum(part.file_size for part in archive.infolist()) > limit:
                raise ValueError(f"{path} unpacks to more than {limit >> 20} MB")
            for part in archive.infolist():
                if part.filename.endswith((".xml", ".rels")):
                    with archive.open(part) as file:
                        head = file.read(1 << 16)
                    if b"<!DOCTYPE" in head or b"<!ENTITY" in head:
                        raise ValueError(f"{path}: {part.filename} declares entities, which no spreadsheet needs")
    except ValueError:
        raise
    except Exception as error:  # a damaged archive raises errors of every kind
        raise ValueError(f"{path}: not a readable .xlsx file ({type(error).__name__}: {error})") from None


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _iterate_values(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """(position, value) of each value in a text; of a list, of its elements."""
    at = _skip_space(text, 0)
    if text.startswith("[", at):
        opened = at
        at = _skip_space(text, at + 1)
        while not text.startswith("]", at):
            value, end = _decode(text, at, path)
            yield at, value
            at = _skip_space(text, end)
            if text.startswith(",", at):
                at = _skip_space(text, at + 1)
                if text.startswith("]", at):
                    raise ValueError(
                        f"{path}, line {_get_line(text, at)}: not JSON (a comma before the end of the list)"
                    )
            elif not text.startswith("]", at):
                line = _get_line(text, min(at, max(len(text) - 1, 0)))
                raise ValueError(
                    f"{path}, line {line}: not JSON (error in the list that begins in line {_get_line(text, opened)})"
                )
        at = _skip_space(text, at + 1)
        if at != len(text):
            raise ValueError(f"{path}, line {_get_line(text, at)}: other data follow the JSON list")
        return
    while at != len(text):
        value, end = _decode(text, at, path)
        yield at, value
        at = _skip_space(text, end)


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _get_line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _decode(text: str, at: int, path: Path) -> tuple[Any, int]:
    if at >= len(text):
        raise ValueError(f"{path}: the file is empty" if not text.strip() else f"{path}: not JSON, cut short")
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        line = _get_line(text, error.pos)
        page = " (it looks like a web page)" if text.lstrip()[:1] == "<" else ""
        raise ValueError(f"{path}, line {line}: not JSON: {error.msg}{page}") from None
    except RecursionError:
        raise ValueError(f"{path}, line {_get_line(text, at)}: JSON nested too deeply") from None
    except ValueError as error:  # raised by one of the hooks below
        raise ValueError(f"{path}, line {_get_line(text, at)}: {error}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _parse_int(digits: str) -> int:
    if len(digits) > 400:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{digits} is not a finite number")
    return value


def _check_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without duplicate keys, of which the last would silently be taken."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"duplicate key {twice!r} in one object")
    return content


_DECODER = json.JSONDecoder(
    object_pairs_hook=_check_keys, parse_constant=_refuse_constant, parse_int=_parse_int, parse_float=_parse_float
)

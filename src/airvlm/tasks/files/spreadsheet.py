"""The first sheet of an .xlsx file as rows of text, with nothing but the standard library.

The submission files of MMBench are such files. Knows nothing of benchmarks, formulas or formats: a cell is
its stored text.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree

__all__ = ["read_spreadsheet"]

LARGEST = 1 << 28  # bytes of one part, unpacked
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def read_spreadsheet(path: Path) -> list[dict[str, str]]:
    """Rows under the names in the first row; a cell that is empty is an empty text."""
    try:
        with zipfile.ZipFile(path) as book:
            shared = (
                _texts(_part(book, "xl/sharedStrings.xml"))
                if "xl/sharedStrings.xml" in book.namelist()
                else []
            )
            sheets = sorted(
                name for name in book.namelist() if re.fullmatch(r"xl/worksheets/sheet\d+\.xml", name)
            )
            rows = _rows(_part(book, sheets[0]), shared)
    except (zipfile.BadZipFile, ElementTree.ParseError, IndexError, KeyError) as error:
        raise ValueError(f"{path}: not a readable .xlsx file ({error})") from None
    if not rows:
        return []
    names = rows[0]
    return [{name: row.get(at, "") for at, name in names.items()} for row in rows[1:]]


def _part(book: zipfile.ZipFile, name: str) -> ElementTree.Element:
    if book.getinfo(name).file_size > LARGEST:
        raise ValueError(f"{name} in {book.filename} is larger than {LARGEST} bytes")
    data = book.read(name)
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:  # spreadsheets declare none; a file that does means harm
        raise ValueError(f"{name} in {book.filename} declares entities, which no spreadsheet needs")
    return ElementTree.fromstring(data)


def _texts(root: ElementTree.Element) -> list[str]:
    return ["".join(t.text or "" for t in entry.iter(f"{_MAIN}t")) for entry in root.iter(f"{_MAIN}si")]


def _rows(root: ElementTree.Element, shared: list[str]) -> list[dict[str, str]]:
    """Each row as {column letters: text}."""
    rows = []
    for row in root.iter(f"{_MAIN}row"):
        cells = {}
        for n, cell in enumerate(row.iter(f"{_MAIN}c")):
            column = re.sub(r"\d", "", cell.get("r", "")) or str(n)
            value = cell.find(f"{_MAIN}v")
            if cell.get("t") == "inlineStr":
                cells[column] = "".join(t.text or "" for t in cell.iter(f"{_MAIN}t"))
            elif value is not None and value.text is not None:
                cells[column] = shared[int(value.text)] if cell.get("t") == "s" else value.text
        rows.append(cells)
    return rows

"""The first sheet of an .xlsx file as rows of text, read by openpyxl (extra `xlsx`).

The submission files of MMBench are such files. Knows nothing of benchmarks, formulas or formats: a cell is its stored
text. A file that would unpack to far more than it is, or that declares entities, is refused before it is read.
"""

from __future__ import annotations

import warnings
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

from airvlm.tasks.files.reading import Row, unpacked_limit

__all__ = ["read_spreadsheet"]


def read_spreadsheet(path: Path) -> list[dict[str, str]]:
    """Rows under the names in the first row, each a `Row` that knows its line; an empty cell is an empty text."""
    try:
        openpyxl: Any = import_module("openpyxl")
    except ImportError:
        raise ImportError("reading .xlsx files needs openpyxl: pip install 'airvlm[xlsx]'") from None
    _refuse_bombs(Path(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of styles and extensions that openpyxl does not know
            book = openpyxl.load_workbook(path, read_only=True, data_only=True)
            cells = [[_text(value) for value in row] for row in book.worksheets[0].iter_rows(values_only=True)]
            book.close()
    except Exception as error:  # a damaged file makes openpyxl raise errors of every kind
        raise ValueError(f"{path}: not a readable .xlsx file ({type(error).__name__}: {str(error)[:80]})") from None
    if not cells:
        return []
    names = cells[0]
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{path}, line 1: two columns are named {twice!r}")
    rows = [(n, row) for n, row in enumerate(cells[1:], 2) if any(row)]
    return [Row.at({name: cell for name, cell in zip(names, row) if name}, n) for n, row in rows]


def _refuse_bombs(path: Path) -> None:
    """Every part's size is in the archive's directory; what a part really holds is checked by its checksum."""
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
            limit = unpacked_limit(path.stat().st_size)
            if sum(part.file_size for part in parts) > limit:
                raise ValueError(f"{path} unpacks to more than {limit >> 20} MB: refused")
            for part in parts:
                if part.filename.endswith((".xml", ".rels")):
                    with archive.open(part) as file:
                        head = file.read(1 << 16)
                    if b"<!DOCTYPE" in head or b"<!ENTITY" in head:  # no spreadsheet needs any
                        raise ValueError(f"{path}: {part.filename} declares entities, which no spreadsheet needs")
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path}: not a readable .xlsx file ({error})") from None
    except Exception as error:
        if isinstance(error, ValueError):
            raise
        raise ValueError(f"{path}: not a readable .xlsx file ({type(error).__name__})") from None


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)

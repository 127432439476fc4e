"""What every record of a file must be: one check for all tasks, whose message names the file, the line and the field.

Knows nothing about scores. A task states its records as a `Checked` class; `checked` reads rows into it or says in
one line what is wrong with the first that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

__all__ = [
    "ID_FIELDS",
    "TEXT_FIELDS",
    "Checked",
    "Id",
    "Label",
    "OptionalId",
    "Text",
    "Whole",
    "among",
    "checked",
    "first_of",
]

ID_FIELDS = ("item", "question_id", "id", "index", "image_id")  # in order of trust
TEXT_FIELDS = (
    "text",
    "prediction",
    "model_prediction",
    "model_answer",
    "answer",
    "response",
    "output",
    "caption",
)
LONGEST_ID = 500  # characters
R = TypeVar("R", bound="Checked")


class Checked(BaseModel):
    """A record; fields that a task does not need are left alone."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    line: int = 0  # of the file; 0: unknown


def _id(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"an id is a text or a whole number, not {_shown(value)}")
    text = str(value)
    if not text.strip() or len(text) > LONGEST_ID:
        raise ValueError("an id is a text or a whole number; this one is empty or endless")
    return text


def _whole(value: Any) -> int:
    """A whole number, also as tables write it ("12", "12.0")."""
    try:
        number = float(value) if isinstance(value, str | int) and not isinstance(value, bool) else float("nan")
    except (ValueError, OverflowError):
        number = float("nan")
    if number != number or number != int(number) or abs(number) > 2**53:
        raise ValueError(f"expected a whole number, not {_shown(value)}")
    return int(number)


def _label(value: Any) -> str:
    label = value.strip().lower() if isinstance(value, str) else ""
    if label not in ("yes", "no"):
        raise ValueError(f"expected yes or no, not {_shown(value)}")
    return label


def _shown(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, not {_shown(value)}")
    return value


Id = Annotated[str, BeforeValidator(_id)]
OptionalId = Annotated[str | None, BeforeValidator(_id)]  # may be left out; where it stands it is no null
Whole = Annotated[int, BeforeValidator(_whole)]
Label = Annotated[Literal["yes", "no"], BeforeValidator(_label)]
Text = Annotated[str, BeforeValidator(_text)]


def first_of(*names: str) -> Any:
    """A field that files call by several names; the first that a record has is taken."""
    return Field(validation_alias=AliasChoices(*names))


def among(value: str, allowed: Iterable[str]) -> str:
    """A text that must be one of some."""
    if value not in set(allowed):
        raise ValueError(f"expected one of {', '.join(sorted(set(allowed)))}, not {value[:40]!r}")
    return value


def checked(kind: type[R], rows: Iterable[Mapping[str, Any]], path: Path, *, what: str = "record") -> list[R]:
    """The rows of a file as records; the first that is none is an error with file, line and field."""
    found: list[R] = []
    for number, row in enumerate(rows, 1):
        line = getattr(row, "line", 0)
        try:
            found.append(kind.model_validate({**row, "line": line}))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = f"line {line}" if line else f"{what} {number}"
            raise ValueError(f"{path}, {place}, {_problem(kind, first, row)}") from None
    return found


def _problem(kind: type[Checked], error: Any, row: Mapping[str, Any]) -> str:
    names = [str(part) for part in error["loc"]]
    field = kind.model_fields.get(names[0]) if names else None
    alias = getattr(field, "validation_alias", None)
    choices = [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else names[:1]
    if error["type"] == "missing":
        has = ", ".join(map(str, list(row)[:8])) or "none"
        return f"field {' or '.join(choices)}: missing (the record has {has})"
    present = next((choice for choice in choices if choice in row), names[0] if names else "?")
    said = error["msg"].removeprefix("Value error, ")
    if error["type"] in ("string_type", "list_type", "int_type", "float_type", "dict_type", "tuple_type"):
        said = f"expected a {error['type'].split('_')[0].replace('string', 'text')}, not {_shown(error['input'])}"
    return f"field {'.'.join([present, *names[1:]])}: {said}"

"""Ways to damage a file: of any bytes, of its JSON records, of its lines. Each has a name, so that it can be told.

A mutation takes the content and a source of chance, and gives the damaged content; None where it does not apply.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

__all__ = ["MUTATIONS", "Mutation"]

Mutation = Callable[[bytes, random.Random], bytes | None]
NESTED = "[" * 100_000 + "]" * 100_000
WRONG: dict[str, Any] = {
    "null": None, "number": 7, "float": 1.5, "negative": -3, "huge": 10**40, "text": "nonsense", "empty": "",
    "list": ["a", "b"], "object": {"a": 1}, "true": True, "space": "  ",
}  # fmt: skip


def _json(change: Callable[[Any, random.Random], Any]) -> Mutation:
    """A change of the records of a JSON file: a list, lines, or one object."""

    def mutate(content: bytes, rng: random.Random) -> bytes | None:
        raw = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        try:
            text = raw.decode()
            lines = text.count("\n") > 0 and text.lstrip()[:1] == "{" and _is_lines(text)
            value = [json.loads(line) for line in text.splitlines() if line.strip()] if lines else json.loads(text)
        except ValueError:
            return None
        value = change(value, rng)
        if value is None:
            return None
        damaged = (
            "\n".join(map(json.dumps, value)) if lines and isinstance(value, list) else json.dumps(value)
        ).encode()
        return gzip.compress(damaged) if raw is not content else damaged

    return mutate


def _is_lines(text: str) -> bool:
    try:
        return all(isinstance(json.loads(line), dict) for line in text.splitlines() if line.strip())
    except ValueError:
        return False


def _places(value: Any) -> list[Any]:
    """The containers of records: the list itself, or the object whose values are records."""
    return value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []


def _record(change: Callable[[Any, random.Random], Any]) -> Mutation:
    """A change of one record, in place of it."""

    def whole(value: Any, rng: random.Random) -> Any:
        keys = list(range(len(value))) if isinstance(value, list) else list(value) if isinstance(value, dict) else []
        if not keys:
            return None
        key = rng.choice(keys)
        value[key] = change(value[key], rng)
        return value

    return _json(whole)


def _field(put: Callable[[Any, random.Random], Any]) -> Mutation:
    """A change of one field of one record."""

    def change(record: Any, rng: random.Random) -> Any:
        if isinstance(record, dict) and record:
            key = rng.choice(list(record))
            record[key] = put(record[key], rng)
            return record
        return put(record, rng)

    return _record(change)


def _every_field(name: str, wrong: Any) -> Mutation:
    def change(value: Any, rng: random.Random) -> Any:
        for record in _places(value):
            if isinstance(record, dict) and name in record:
                record[name] = wrong
        return value

    return _json(change)


def _without_field(value: Any, rng: random.Random) -> Any:
    records = [record for record in _places(value) if isinstance(record, dict) and record]
    if not records:
        return None
    key = rng.choice(list(records[0]))
    for record in records:
        record.pop(key, None)
    return value


def _one_without_field(record: Any, rng: random.Random) -> Any:
    if isinstance(record, dict) and record:
        record.pop(rng.choice(list(record)))
    return record


def _shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, list):
        rng.shuffle(value)
        return value
    keys = list(value) if isinstance(value, dict) else []
    rng.shuffle(keys)
    return {key: value[key] for key in keys} if keys else None


def _lines(change: Callable[[list[bytes], random.Random], list[bytes]]) -> Mutation:
    return lambda content, rng: b"\n".join(change(content.split(b"\n"), rng))


def _at(content: bytes, rng: random.Random) -> int:
    return rng.randrange(max(1, len(content)))


def _flip(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(3):
        damaged[_at(content, rng)] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _listed(make: Callable[[list[Any], random.Random], Any]) -> Mutation:
    return _json(lambda value, rng: make(value, rng) if isinstance(value, list) and value else None)


MUTATIONS: dict[str, Mutation] = {
    # bytes
    "valid": lambda c, r: c,
    "no bytes": lambda c, r: b"",
    "spaces": lambda c, r: b" \n \n",
    "BOM": lambda c, r: b"\xef\xbb\xbf" + c,
    "CRLF": lambda c, r: c.replace(b"\n", b"\r\n"),
    "UTF-16": lambda c, r: c.decode(errors="replace").encode("utf-16"),
    "UTF-16 without mark": lambda c, r: c.decode(errors="replace").encode("utf-16-le"),
    "Latin-1": lambda c, r: c + b"\xe9\xff",
    "null bytes": lambda c, r: c + b"\0\0",
    "cut": lambda c, r: c[: _at(c, r)],
    "cut by a byte": lambda c, r: c[:-1],
    "flipped bits": _flip,
    "gzip": lambda c, r: gzip.compress(c),
    "gzip cut": lambda c, r: gzip.compress(c)[:-9],
    "gzip cut in the middle": lambda c, r: gzip.compress(c)[: max(3, len(gzip.compress(c)) // 2)],
    "gzip damaged": lambda c, r: _flip(gzip.compress(c), r),
    "gzip head alone": lambda c, r: b"\x1f\x8b",
    "gzip with a tail": lambda c, r: gzip.compress(c) + b"tail",
    "web page": lambda c, r: b"<!DOCTYPE html><html><body>404</body></html>",
    "prose": lambda c, r: b"This is no data at all.\nNot even this.",
    "twice over": lambda c, r: c + b"\n" + c,
    "deep nesting": lambda c, r: NESTED.encode(),
    "deep objects": lambda c, r: b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "null": lambda c, r: b"null",
    "number": lambda c, r: b"42",
    "text": lambda c, r: b'"text"',
    "empty list": lambda c, r: b"[]",
    "empty object": lambda c, r: b"{}",
    "list of nulls": lambda c, r: b"[null, null]",
    "list of lists": lambda c, r: b"[[1, 2], [3]]",
    "NaN": lambda c, r: b'[{"id": NaN, "text": Infinity}]',
    "huge number": lambda c, r: b'{"id": ' + b"9" * 5000 + b"}",
    "huge exponent": lambda c, r: b'{"id": 1e999}',
    "Python literal": lambda c, r: b"{'id': 1, 'text': 'x'}",
    "comma too much": lambda c, r: c.rstrip()[:-1] + b"," + c.rstrip()[-1:],
    # lines
    "line lost": _lines(lambda ls, r: [line for i, line in enumerate(ls) if i != 1]),
    "first line lost": _lines(lambda ls, r: ls[1:]),
    "line twice": _lines(lambda ls, r: ls[:2] + ls[1:]),
    "lines reversed": _lines(lambda ls, r: ls[::-1]),
    "blank lines": _lines(lambda ls, r: [x for line in ls for x in (line, b"")]),
    "tab lost": lambda c, r: c.replace(b"\t", b" ", 1) if b"\t" in c else None,
    "tab too much": lambda c, r: c.replace(b"\t", b"\t\t", 1) if b"\t" in c else None,
    "commas for tabs": lambda c, r: c.replace(b"\t", b",") if b"\t" in c else None,
    "quote left open": lambda c, r: c.replace(b"\t", b'\t"', 1) if b"\t" in c else None,
    # records
    **{f"a record {name}": _record(lambda record, r, wrong=wrong: wrong) for name, wrong in WRONG.items()},
    **{f"a field {name}": _field(lambda value, r, wrong=wrong: wrong) for name, wrong in WRONG.items()},
    **{f"every {name} null": _every_field(name, None) for name in ("question_id", "image_id", "id", "label", "text")},
    **{f"every {name} float": _every_field(name, 1.5) for name in ("question_id", "image_id", "id")},
    **{f"every {name} the same": _every_field(name, "1") for name in ("question_id", "image_id", "id")},
    "every caption empty": _every_field("caption", ""),
    "every text empty": _every_field("text", ""),
    "every label strange": _every_field("label", "maybe"),
    "field missing everywhere": _json(_without_field),
    "field missing once": _record(_one_without_field),
    "records shuffled": _json(_shuffled),
    "half the records": _listed(lambda records, r: records[: max(1, len(records) // 2)]),
    "record twice": _listed(lambda records, r: [*records, records[0]]),
    "records reversed": _listed(lambda records, r: records[::-1]),
    "records in a list": _listed(lambda records, r: [records]),
    "records under a key": _listed(lambda records, r: {"data": records}),
    "unknown record": _listed(
        lambda records, r: (
            [*records, {k: "999999" if "id" in k else v for k, v in dict(records[0]).items()}]
            if isinstance(records[0], dict)
            else None
        )
    ),
}

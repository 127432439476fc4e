"""Files are read in every usual form; errors name the file, the place and the field."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from airvlm.tasks.files import reading
from airvlm.tasks.files.reading import Row, find_file, make_rows, read_json, read_records, read_table

RECORDS = [{"id": 1, "text": "a\nb"}, {"id": 2, "text": "ü"}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(RECORDS),
        "\n".join(json.dumps(r) for r in RECORDS) + "\n",
        "\n".join(json.dumps(r, indent=2) for r in RECORDS),
        "\n\n".join(json.dumps(r) for r in RECORDS),
    ],
    ids=["list", "lines", "pretty-printed", "blank lines"],
)
@pytest.mark.parametrize("packed", [False, True])
def test_records_are_read_from_every_form_of_json(tmp_path: Path, text: str, packed: bool) -> None:
    path = tmp_path / "records"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert read_records(path) == RECORDS


def test_an_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl"
    path.write_text('{"id": 1}\n{"id": \n')
    with pytest.raises(ValueError, match=r"torn\.jsonl, line 3"):
        read_records(path)


@pytest.mark.parametrize("text", ['{"id": 1}\n\n[2]\n', '[{"id": 1},\n\n 2]'], ids=["lines", "list"])
def test_a_record_that_is_no_object_is_an_error_with_its_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json, line 3: expected a JSON object, found"):
        read_records(tmp_path / "a.json")


def _row(**fields: object) -> Row:
    return Row(fields, Path("a.jsonl"), "line 3", 3)


def test_the_first_of_several_names_is_read() -> None:
    row = _row(answer="b", text="a", id=7)
    assert row.read_text("text", "answer") == "a" and row.read_id("question_id", "id") == "7"
    assert row.read_text("caption", default="") == ""


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda row: row.read_text("caption"), "field caption: missing \\(the record has text, n, null, label\\)"),
        (lambda row: row.read_text("n"), "field n: expected a text, not float '1.5'"),
        (lambda row: row.read_text("null"), "field null: expected a text, not null"),
        (lambda row: row.read_id("n"), "field n: an id is a text or a whole number, not float"),
        (lambda row: row.read_id("text"), "field text: an id must not be empty"),
        (lambda row: row.read_int("n"), "field n: expected a whole number"),
        (lambda row: row.read_number("n", 0, 1), "field n: expected a number greater than or equal to 0 and at most 1"),
        (
            lambda row: row.read_choice("label", choices=("yes", "no")),
            "field label: expected yes or no, not str 'maybe'",
        ),
        (lambda row: row.read_texts("label"), "field label: expected a list of texts"),
    ],
)
def test_an_error_names_the_file_the_place_and_the_field(read: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^a\\.jsonl, line 3, {message}"):
        read(_row(text=" ", n=1.5, null=None, label="maybe"))  # type: ignore[operator]


def test_numbers_are_read_as_tables_write_them() -> None:
    assert [_row(n=value).read_int("n") for value in (12, "12", "12.0")] == [12, 12, 12]
    assert [_row(n=value).read_number("n", 0, 1) for value in (0, 0.5, 1)] == [0, 0.5, 1]  # the limits are allowed
    assert _row(label=" Yes ").read_choice("label", choices=("yes", "no")) == "yes"


@pytest.mark.parametrize("value", [True, None, [1], "x", "1.5", "1e400"])
def test_what_is_no_whole_number_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match="field n: expected a whole number"):
        _row(n=value).read_int("n")


def test_a_packed_file_may_have_as_many_bytes_as_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, text = tmp_path / "a.json.gz", "[1, 2]"
    path.write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr(reading, "_get_limit", lambda packed: len(text))
    assert read_json(path) == [1, 2]
    monkeypatch.setattr(reading, "_get_limit", lambda packed: len(text) - 1)
    with pytest.raises(ValueError, match="unpacks to more than"):
        read_json(path)


def test_a_damaged_packed_file_is_an_error(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"[1, 2]"))
    packed[-8] ^= 1  # of the checksum
    (tmp_path / "a.json.gz").write_bytes(packed)
    with pytest.raises(ValueError, match=r"a\.json\.gz: damaged gzip file"):
        read_json(tmp_path / "a.json.gz")


def test_entries_of_a_list_and_of_an_object_are_numbered() -> None:
    assert [row.place for row in make_rows([{}, {}], Path("a"), "image")] == ["image 1", "image 2"]
    assert make_rows({"x": {"n": 1}}, Path("a"), "entry")[0] == {"n": 1}
    with pytest.raises(ValueError, match="a, field images: expected a list of objects, one per image"):
        make_rows([1], Path("a"), "image", "images")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ('{"a": NaN}', "NaN is not a number"),
        ("[1] 2", "other data follow"),
        ("1" * 401, "a number of 401 digits"),
    ],
)
def test_ambiguous_json_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "a.json")


def test_a_table_with_uneven_rows_or_duplicate_columns_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    for text, message in (
        ("a,b\n1\n", "line 2: fewer cells"),
        ("a,b\n1,2,3\n", "line 2: more"),
        ("a,a\n", "two columns"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_table(file)


def test_a_missing_file_is_named_with_the_folders_that_were_searched(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.jpg").touch()
    assert find_file(tmp_path, "a.jpg", "val2014", "images", task="chair") == tmp_path / "images/a.jpg"
    with pytest.raises(FileNotFoundError, match=r"chair: no b\.jpg in .* or its val2014/, images/"):
        find_file(tmp_path, "b.jpg", "val2014", "images", task="chair")

"""`airvlm bench`: the table, and its JSON."""

from typing import Any

from tests.cli.conftest import Run

OPTIONS = [
    "--repeats",
    "2",
    "--tokens",
    "3",
    "--method",
    "vanilla",
    "--method",
    "crop-blend:num_crops=2",
    "--method",
    "vcd",
]


def test_it_prints_one_row_per_method(run: Run, model: str) -> None:
    lines = run("bench", "--model", model, *OPTIONS).out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["vanilla", "crop-blend:num_crops=2", "vcd"]
    assert lines[4].endswith("2 of 2")


def test_json_has_ratios_to_the_first_method(run: Run, model: str) -> None:
    (result,) = run("bench", "--json", "--model", model, *OPTIONS).json["results"]
    rows: dict[str, Any] = {row["method"]: row for row in result["methods"]}
    assert rows["vanilla"]["ratio"] == 1.0
    assert rows["vcd"]["ratio"] > 1
    assert rows["vcd"]["acted"] == 2
    assert set(rows["vanilla"]) >= {"seconds", "tokens_per_second", "peak_memory_bytes", "ratio_range"}


def test_methods_as_the_table_of_the_docs(run: Run, model: str) -> None:
    options = ["--batch", "1", "--batch", "2", "--repeats", "1", "--tokens", "2", "--cpu-time", "--markdown"]
    lines = run("bench", "methods", "--model", model, "--method", "vcd", *options).out.splitlines()
    assert "| method | prefill, batch 1 | decode, batch 1 | prefill, batch 2 | decode, batch 2 |" in lines
    vanilla, vcd = (next(line for line in lines if line.startswith(f"| `{name}` |")) for name in ("vanilla", "vcd"))
    assert vanilla.count(" [") == 4 and vcd.count("[") == 4

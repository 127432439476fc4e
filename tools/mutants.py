"""Mutation testing: change one line of the source, run the tests that mirror the file, list changes that no test sees.

    python -m tools.mutants --seed 1 --count 20 --folders methods
    python -m tools.mutants --seed 1 --count 60 --folders methods runtime evaluation tasks serve inputs

Mutants are drawn by the seed from all that are possible: flipped comparisons and signs, off-by-one and other changed
constants, dropped conditions, swapped arguments, deleted statements. Each runs in a copy of the tree with a time limit.
Results are appended to a JSONL log; the same command resumes, and runs a mutant again if its tests have changed.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("methods", "runtime", "evaluation", "tasks", "serve", "inputs")
LAWS = ("tests/test_laws.py", "-k", "[llava- or [qwen2_vl-")  # for methods and runtime
UNCOPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "out", "runs", "*.egg-info"
)

# Kinds that mostly crash are drawn less often
WEIGHTS = {"comparison": 3, "sign": 3, "condition": 3, "constant": 2, "statement": 2, "arguments": 1}
FLIPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}


@dataclass(frozen=True)
class Mutant:
    """One changed line."""

    file: str  # relative to the root
    line: int  # from 1
    kind: str
    before: str  # the whole line
    after: str

    @property
    def id(self) -> str:
        """Identifies the change, wherever in the file the line is."""
        return hashlib.sha256("\0".join((self.file, self.before, self.after)).encode()).hexdigest()[:12]


# -- which changes are possible


def find_mutants(root: Path, file: Path) -> list[Mutant]:
    """All one-line mutants of a file, without those that cannot be parsed."""
    return [mutant for mutant in _list_mutants(root, file) if _parses(root, mutant)]


def _list_mutants(root: Path, file: Path) -> list[Mutant]:
    """All one-line changes of a file; some cannot be parsed."""
    source = file.read_text(encoding="utf-8")
    lines = source.split("\n")
    found: dict[tuple[int, str], Mutant] = {}
    for kind, node, replacement in _changes(ast.parse(source), source):
        start, end = node
        if start[0] != end[0]:
            continue
        raw = lines[start[0] - 1].encode()  # the offsets of ast count bytes
        after = (raw[: start[1]] + replacement.encode() + raw[end[1] :]).decode()
        mutant = Mutant(file.relative_to(root).as_posix(), start[0], kind, lines[start[0] - 1], after)
        found.setdefault((start[0], after), mutant)
    return list(found.values())


def _parses(root: Path, mutant: Mutant) -> bool:
    lines = (root / mutant.file).read_text(encoding="utf-8").split("\n")
    lines[mutant.line - 1] = mutant.after
    try:
        ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return True


Place = tuple[int, int]  # line from 1, byte in the line
Change = tuple[str, tuple[Place, Place], str]  # kind, what is replaced, and by what


def _changes(tree: ast.Module, source: str) -> Iterator[Change]:
    for node in _walk(tree):
        if isinstance(node, ast.Compare):
            for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators):
                yield from _flip("comparison", left, op, right, source)
        elif isinstance(node, ast.BinOp):
            yield from _flip("sign", node.left, node.op, node.right, source)
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:]):
                yield from _flip("condition", left, node.op, right, source)
            for kept in node.values[:2]:
                yield "condition", _span(node), _text(kept, source)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield "condition" if isinstance(node.op, ast.Not) else "sign", _span(node), _text(node.operand, source)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            yield "condition", _span(node.test), f"not ({_text(node.test, source)})"
        elif isinstance(node, ast.Constant):
            for replacement in _other_values(node.value):
                yield "constant", _span(node), replacement
        elif isinstance(node, ast.Call):
            first = node.args[:2]
            if len(first) == 2 and not any(isinstance(one, ast.Starred) for one in first):
                texts = [_text(one, source) for one in first]
                if texts[0] != texts[1]:
                    yield "arguments", (_span(first[0])[0], _span(first[1])[1]), ", ".join(reversed(texts))
        elif isinstance(node, ast.Expr | ast.AugAssign | ast.Raise | ast.Break | ast.Continue):
            yield "statement", _span(node), "pass"


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that decide what is computed: no annotations, docstrings, imports, decorators or error messages."""
    yield node
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Import | ast.ImportFrom | ast.JoinedStr):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            yield from _walk(child)


def _flip(kind: str, left: ast.expr, op: ast.AST, right: ast.expr, source: str) -> Iterator[Change]:
    if type(op) not in FLIPS or left.end_lineno != right.lineno:
        return
    old, new = FLIPS[type(op)]
    start, end = _span(left)[1], _span(right)[0]
    between = source.split("\n")[start[0] - 1].encode()[start[1] : end[1]].decode()
    # Parentheses may stand between the operands and the operator
    at = between.find(old)
    if at >= 0:
        yield kind, (start, end), between[:at] + new + between[at + len(old) :]


def _other_values(value: object) -> list[str]:
    if isinstance(value, bool):
        return [str(not value)]
    if isinstance(value, int):
        return [str(value + 1), str(value - 1)] if value else ["1"]
    if isinstance(value, float):
        return [repr(2 * value) if value else "0.1"]
    return []


def _span(node: ast.expr | ast.stmt) -> tuple[Place, Place]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _text(node: ast.expr, source: str) -> str:
    return ast.get_source_segment(source, node) or ast.unparse(node)


def draw(root: Path, package: str, folders: list[str], seed: int, count: int) -> list[Mutant]:
    """`count` mutants of all possible ones in the folders; the same for the same seed and source."""
    files = sorted(file for folder in folders for file in (root / "src" / package / folder).rglob("*.py"))
    mutants = [mutant for file in files for mutant in _list_mutants(root, file)]
    chance = random.Random(seed)
    # Weighted sampling without replacement (Efraimidis and Spirakis)
    ranked = sorted(mutants, key=lambda mutant: -(chance.random() ** (1 / WEIGHTS[mutant.kind])))
    # only those that are drawn are parsed: parsing all takes minutes
    return list(islice((mutant for mutant in ranked if _parses(root, mutant)), count))


# -- which tests see them


def mirror_tests(root: Path, package: str, file: str) -> list[str]:
    """Arguments of pytest: the test files of a source file, or else the folder's fast tests; laws for some folders."""
    path = Path(file).relative_to(f"src/{package}")
    folder = root / "tests" / path.parent
    found = sorted(folder.glob(f"test_{path.stem.strip('_')}.py")) + sorted(folder.glob(f"test_{path.stem}_*.py"))
    if not found and folder.is_dir():
        found = [folder]
    arguments = [one.relative_to(root).as_posix() for one in found]
    if path.parts[0] in ("methods", "runtime") and (root / LAWS[0]).is_file():
        arguments += LAWS
    return arguments


def digest_tests(root: Path, arguments: list[str]) -> str:
    """A hash of the test files that the arguments name."""
    named = [root / argument for argument in arguments if argument.startswith("tests")]
    files = sorted(file for one in named for file in (one.rglob("*.py") if one.is_dir() else [one]))
    digest = hashlib.sha256("\0".join(arguments).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def run_tests(tree: Path, arguments: list[str], timeout: float) -> str:
    """passed, failed or timeout. Laws are selected by name, so they run by themselves."""
    split = arguments.index(LAWS[0]) if LAWS[0] in arguments else len(arguments)
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-q", "-p", "no:cacheprovider"]
    fast = ["--fast"] if "--fast" in _read(tree / "tests" / "conftest.py") else []
    deadline = time.monotonic() + timeout
    for part in (arguments[:split], arguments[split:]):
        if not part:
            continue
        command = [sys.executable, "-m", "pytest", *options, *fast, *part]
        # A session of its own, so that a timeout also ends the processes that tests started
        with subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return "timeout"
        # 5: no test was selected
        if code not in (0, 5):
            return "failed"
    return "passed"


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


# -- a campaign


def run_campaign(root: Path, package: str, mutants: list[Mutant], log: Path, timeout: float) -> list[dict[str, object]]:
    """Run every mutant that the log does not have, and return the results of all, in order."""
    known = {}
    for line in _read(log).splitlines():
        row = json.loads(line)
        known[row["id"], row["tests"]] = row
    log.parent.mkdir(parents=True, exist_ok=True)
    results, baselines = [], {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        tree = Path(scratch) / "tree"
        for number, mutant in enumerate(mutants, start=1):
            arguments = mirror_tests(root, package, mutant.file)
            tests = digest_tests(root, arguments)
            row = known.get((mutant.id, tests))
            if row is None:
                if not tree.exists():
                    shutil.copytree(root, tree, ignore=UNCOPIED, symlinks=True)
                if tests not in baselines:
                    baselines[tests] = run_tests(tree, arguments, timeout) if arguments else "none"
                status = {"none": "no tests", "passed": ""}.get(baselines[tests], "tests fail without it")
                row = {"id": mutant.id, "tests": tests, "status": status or _try(tree, mutant, arguments, timeout)}
                row |= asdict(mutant)
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
            results.append(row)
            print(f"{number} of {len(mutants)}: {row['status']:9} {mutant.file}:{mutant.line}", flush=True)
    return results


def _try(tree: Path, mutant: Mutant, arguments: list[str], timeout: float) -> str:
    file = tree / mutant.file
    original = file.read_text(encoding="utf-8")
    lines = original.split("\n")
    assert lines[mutant.line - 1] == mutant.before, f"{mutant.file} changed while mutants were running"
    lines[mutant.line - 1] = mutant.after
    file.write_text("\n".join(lines), encoding="utf-8")
    try:
        found = run_tests(tree, arguments, timeout)
    finally:
        file.write_text(original, encoding="utf-8")
    return {"passed": "survived", "failed": "caught"}.get(found, found)


def format_results(results: list[dict[str, object]]) -> str:
    """Markdown: counts by folder, then every survivor."""
    by_folder: dict[str, Counter[str]] = {}
    for row in results:
        folder = "/".join(str(row["file"]).split("/")[2:-1])
        by_folder.setdefault(folder, Counter())[str(row["status"])] += 1
    lines = ["| folder | drawn | caught | survived | other |", "|---|---:|---:|---:|---:|"]
    for folder, counts in sorted(by_folder.items()):
        caught, survived = counts["caught"] + counts["timeout"], counts["survived"]
        other = counts.total() - caught - survived
        lines.append(f"| {folder} | {counts.total()} | {caught} | {survived} | {other} |")
    survivors = [row for row in results if row["status"] not in ("caught", "timeout")]
    if survivors:
        lines += ["", "| mutant | kind | before | after | status |", "|---|---|---|---|---|"]
    for row in survivors:
        before, after = (str(row[key]).strip().replace("|", "\\|") for key in ("before", "after"))
        lines.append(f"| {row['file']}:{row['line']} | {row['kind']} | `{before}` | `{after}` | {row['status']} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20, help="number of mutants")
    parser.add_argument("--folders", nargs="+", default=list(FOLDERS), help="folders of the package")
    parser.add_argument("--timeout", type=float, default=900, help="seconds per mutant; a timeout counts as caught")
    parser.add_argument("--log", type=Path, help="default: out/mutants.jsonl")
    parser.add_argument("--root", type=Path, default=ROOT, help="root of the repository")
    parser.add_argument("--package", default="airvlm")
    given = parser.parse_args(arguments)
    root = given.root.resolve()
    mutants = draw(root, given.package, given.folders, given.seed, given.count)
    results = run_campaign(root, given.package, mutants, given.log or root / "out" / "mutants.jsonl", given.timeout)
    print("\n" + format_results(results))


if __name__ == "__main__":
    main()

"""Mutation testing: change one line of the source, run the tests that execute it, list changes that no test sees.

    python -m tools.mutants --seed 1 --count 20 --folders methods
    python -m tools.mutants --seed 1 --count 300 --log out/mutants.jsonl
    python -m tools.mutants --seed 1 --count 300 --log out/mutants.jsonl --slow --also tests/test_laws.py

Mutants are drawn by the seed from all that are possible: flipped comparisons and signs, off-by-one and other changed
constants, dropped conditions, swapped arguments, deleted statements. In a copy of the tree, tests are collected once,
and each test file runs once under coverage, which shows the lines that each test executes. A mutant then runs in a
fork, its code put in place of the function's, under the tests of its file that execute its line, the quickest first.
A mutant of what runs at import runs under all tests that execute its file, in a process that imports anew.

Results are appended to a JSONL log; the same command resumes. What survived runs again when its tests have changed, or
under more tests (`--also`, `--slow`).
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib
import inspect
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("methods", "runtime", "evaluation", "tasks", "serve")
AT_IMPORT = "changes what runs at import"
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

    def apply(self, source: str) -> str:
        """The source with this line changed."""
        lines = source.split("\n")
        assert lines[self.line - 1] == self.before, f"{self.file} changed while mutants were running"
        lines[self.line - 1] = self.after
        return "\n".join(lines)


# -- which changes are possible


def find_mutants(root: Path, file: Path) -> list[Mutant]:
    """All one-line mutants of a file, without those that cannot be parsed."""
    return [mutant for mutant in _list_mutants(root, file) if _parses(root, mutant)]


def _list_mutants(root: Path, file: Path) -> list[Mutant]:
    """All one-line changes of a file; some cannot be parsed."""
    source = file.read_text(encoding="utf-8")
    lines = source.split("\n")
    raws = [line.encode() for line in lines]  # the offsets of ast count bytes
    found: dict[tuple[int, str], Mutant] = {}
    for kind, node, replacement in _changes(ast.parse(source), raws):
        start, end = node
        if start[0] != end[0]:
            continue
        raw = raws[start[0] - 1]
        after = (raw[: start[1]] + replacement.encode() + raw[end[1] :]).decode()
        mutant = Mutant(file.relative_to(root).as_posix(), start[0], kind, lines[start[0] - 1], after)
        found.setdefault((start[0], after), mutant)
    return list(found.values())


def _parses(root: Path, mutant: Mutant) -> bool:
    try:
        ast.parse(mutant.apply((root / mutant.file).read_text(encoding="utf-8")))
    except SyntaxError:
        return False
    return True


Place = tuple[int, int]  # line from 1, byte in the line
Change = tuple[str, tuple[Place, Place], str]  # kind, what is replaced, and by what


def _changes(tree: ast.Module, lines: list[bytes]) -> Iterator[Change]:
    for node in _walk(tree):
        if isinstance(node, ast.Compare):
            for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators):
                yield from _flip("comparison", left, op, right, lines)
        elif isinstance(node, ast.BinOp):
            yield from _flip("sign", node.left, node.op, node.right, lines)
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:]):
                yield from _flip("condition", left, node.op, right, lines)
            for kept in node.values[:2]:
                yield "condition", _span(node), _text(kept, lines)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield "condition" if isinstance(node.op, ast.Not) else "sign", _span(node), _text(node.operand, lines)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            yield "condition", _span(node.test), f"not ({_text(node.test, lines)})"
        elif isinstance(node, ast.Constant):
            for replacement in _other_values(node.value):
                yield "constant", _span(node), replacement
        elif isinstance(node, ast.Call):
            first = node.args[:2]
            if len(first) == 2 and not any(isinstance(one, ast.Starred) for one in first):
                texts = [_text(one, lines) for one in first]
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


def _flip(kind: str, left: ast.expr, op: ast.AST, right: ast.expr, lines: list[bytes]) -> Iterator[Change]:
    if type(op) not in FLIPS or left.end_lineno != right.lineno:
        return
    old, new = FLIPS[type(op)]
    start, end = _span(left)[1], _span(right)[0]
    between = lines[start[0] - 1][start[1] : end[1]].decode()
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


def _text(node: ast.expr, lines: list[bytes]) -> str:
    (first, start), (last, end) = _span(node)
    return lines[first - 1][start:end].decode() if first == last else ast.unparse(node)


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
    """The test files of a source file, or else all of its folder."""
    path = Path(file).relative_to(f"src/{package}")
    folder = root / "tests" / path.parent
    found = [*folder.glob(f"test_{path.stem.strip('_')}.py"), *folder.glob(f"test_{path.stem}_*.py")]
    return sorted(one.relative_to(root).as_posix() for one in set(found) or folder.rglob("test_*.py"))


def digest_files(root: Path, files: list[str]) -> str:
    """A hash of the names and contents of some files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.encode() + (root / file).read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Seen:
    """What a test executed without a mutant."""

    test: str
    seconds: float
    passed: bool
    lines: dict[str, list[int]]  # of each source file


# -- a mutant in a running process


def find_functions() -> dict[str, list[FunctionType]]:
    """Functions that exist, by the file that they were imported from."""
    found: dict[str, list[FunctionType]] = {}
    for one in gc.get_objects():
        if isinstance(one, FunctionType):
            found.setdefault(one.__code__.co_filename, []).append(one)
    return found


def swap_code(file: Path, source: str, functions: list[FunctionType]) -> bool:
    """Give functions of `file` the code that they have in `source`.

    False if that cannot be done: what runs at import differs, such as a default value or a constant of the module.
    """
    new = compile(source, str(file), "exec", dont_inherit=True)
    old = compile(file.read_text(encoding="utf-8"), str(file), "exec", dont_inherit=True)
    if _import_time(new) != _import_time(old):
        return False
    codes = {(one.co_qualname, one.co_firstlineno): one for one in _nested(new)}
    before = {(one.co_qualname, one.co_firstlineno): one for one in _nested(old)}
    changed = {key for key in codes if codes[key] != before[key]}
    swapped = False
    for function in functions:
        key = (function.__code__.co_qualname, function.__code__.co_firstlineno)
        if key in changed:
            if function.__code__.co_freevars != codes[key].co_freevars:
                return False
            function.__code__ = codes[key]
            swapped = True
    return swapped


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _nested(one)


def _import_time(code: CodeType) -> list[object]:
    """What the module and its class bodies execute, without the bodies of functions."""
    found: list[object] = [code.co_code, code.co_names]
    for one in code.co_consts:
        if not isinstance(one, CodeType):
            found.append((type(one), one))
        elif not one.co_flags & inspect.CO_OPTIMIZED:  # a class
            found += _import_time(one)
    return found


# -- forks


def fork(work: Callable[[], str], timeout: float) -> str:
    """What `work` returns in a process of its own; "timeout" if it takes longer, "crashed" if it returns nothing."""
    receive, send = os.pipe()
    process = os.fork()
    if process == 0:  # pragma: no cover
        try:
            os.setsid()  # so that a timeout also ends the processes that tests started
            os.close(receive)
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            with open(send, "w", encoding="utf-8") as answer:
                answer.write(work())
        finally:
            os._exit(0)
    os.close(send)
    chunks: list[bytes] = []
    deadline = time.monotonic() + timeout
    with open(receive, "rb", buffering=0) as answers:
        while select.select([answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
            chunk = answers.read(1 << 16)
            if not chunk:
                break
            chunks.append(chunk)
        else:
            chunks = [b"timeout"]
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return b"".join(chunks).decode() or "crashed"


class WarmTests:
    """A plugin of pytest: collects once, then runs tests in forks, one per mutant."""

    def __init__(self, tree: Path, package: str, work: Callable[[WarmTests], None]) -> None:
        self.tree = tree
        self.package = package
        self.work = work
        self.items: dict[str, list[pytest.Item]] = {}  # of each test file
        self.functions: dict[str, list[FunctionType]] = {}
        self.failed: list[str] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item in session.items:
            self.items.setdefault(item.path.relative_to(self.tree).as_posix(), []).append(item)
        gc.collect()
        self.functions = find_functions()
        gc.freeze()  # so that collections in forks do not copy every page
        self.work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def map_lines(self, file: str, timeout: float) -> list[Seen]:
        """The tests of a file, with the source lines that each executes; none if the file does not end in time."""
        items = self.items.get(file, [])
        answer = fork(lambda: self._map(items), timeout) if items else "[]"
        return [Seen(**one) for one in json.loads(answer)] if answer.startswith("[") else []

    def _map(self, items: list[pytest.Item]) -> str:
        import coverage

        found = []
        watch = coverage.Coverage(data_file=None, config_file=False, source=[str(self.tree / "src" / self.package)])
        watch.start()
        for item, following in zip(items, [*items[1:], None]):
            watch.switch_context(item.nodeid)
            start, self.failed = time.process_time(), []
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            found.append(Seen(item.nodeid, time.process_time() - start, not self.failed, {}))
        watch.stop()
        data = watch.get_data()
        by_test = {one.test: one for one in found}
        for name in data.measured_files():
            for line, tests in data.contexts_by_lineno(name).items():
                for test in tests:
                    if test:
                        relative = Path(name).relative_to(self.tree).as_posix()
                        by_test[test].lines.setdefault(relative, []).append(line)
        return json.dumps([asdict(one) for one in found])

    def run(self, mutant: Mutant, tests: list[str], timeout: float) -> str:
        """What became of a mutant: caught, survived, timeout, crashed, or that it changes what runs at import."""
        wanted = {test: place for place, test in enumerate(tests)}
        items = [item for items in self.items.values() for item in items if item.nodeid in wanted]
        items.sort(key=lambda item: wanted[item.nodeid])
        return fork(lambda: self._run(mutant, items), timeout)

    def _run(self, mutant: Mutant, items: list[pytest.Item]) -> str:
        file = self.tree / mutant.file
        functions = self.functions.get(str(file))
        if functions is None:  # no test has imported it yet
            module = Path(mutant.file).relative_to("src").with_suffix("").parts
            importlib.import_module(".".join(module).removesuffix(".__init__"))
            functions = find_functions().get(str(file), [])
        if not swap_code(file, mutant.apply(file.read_text(encoding="utf-8")), functions):
            return AT_IMPORT
        for item, following in zip(items, [*items[1:], None]):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return f"caught by {self.failed[0]}"
        return "survived"


def run_anew(tree: Path, mutant: Mutant, tests: list[str], timeout: float) -> str:
    """Like `WarmTests.run`, in a process that imports the package anew."""

    def work() -> str:
        failed: list[str] = []

        class Failures:
            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                if report.failed:
                    failed.append(report.nodeid)

        code = pytest.main(["-x", "-p", "no:cacheprovider", *tests], plugins=[Failures()])
        return "survived" if code in (0, 5) else f"caught by {(failed or ['collecting tests'])[0]}"

    file = tree / mutant.file
    original, times = file.read_text(encoding="utf-8"), os.stat(file)
    file.write_text(mutant.apply(original), encoding="utf-8")
    try:
        return fork(work, timeout)
    finally:
        file.write_text(original, encoding="utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


# -- a campaign


class Campaign:
    """Mutants of a tree, their tests, and a log of what became of them."""

    def __init__(
        self, root: Path, package: str, mutants: list[Mutant], log: Path, timeout: float, also: list[str], slow: bool
    ) -> None:
        self.root = root
        self.package = package
        self.mutants = mutants
        self.log = log
        self.timeout = timeout
        self.slow = slow
        self.also = sorted(
            file.relative_to(root).as_posix()
            for path in also
            for file in ((root / path).rglob("test_*.py") if (root / path).is_dir() else [root / path])
        )
        log.parent.mkdir(parents=True, exist_ok=True)
        self.rows: dict[str, dict[str, object]] = {
            mutant.id: asdict(mutant) | {"id": mutant.id, "status": "", "tests": ""} for mutant in mutants
        }
        self.maps = log.with_suffix(".lines.jsonl")  # what each test executes
        self._maps: dict[str, list[Seen]] = {}
        sources = sorted((root / "src" / package).rglob("*.py"))
        self._source = digest_files(root, [one.relative_to(root).as_posix() for one in sources])
        self.screen = os.dup(1)  # pytest captures the other

    def run(self) -> list[dict[str, object]]:
        """Run every mutant whose result is not known, and return the results of all, in order."""
        self._read_log()
        if any(self._open(mutant) for mutant in self.mutants):
            with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
                tree = Path(scratch) / "tree"
                shutil.copytree(self.root, tree, ignore=UNCOPIED, symlinks=True)
                if (shared := self.root.parent / "shared").is_dir():  # golden data
                    tree.with_name("shared").symlink_to(shared)
                os.environ |= {"TMPDIR": scratch, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
                tempfile.tempdir = scratch
                os.chdir(tree)
                sys.path[:0] = [str(tree / "src"), str(tree)]
                sys.dont_write_bytecode = True
                modules = fork(lambda: self._run_warm(tree), timeout=1e9)
                self._read_log()
                for name in modules.split():
                    with suppress(Exception):
                        importlib.import_module(name)
                for mutant in filter(self._open, self.mutants):
                    tests, limit = self._choose(mutant, line=False)
                    found = run_anew(tree, mutant, tests, limit) if tests else "not executed"
                    self._write(mutant, found, self._digest(mutant))
        return [self.rows[mutant.id] for mutant in self.mutants]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The test files of a mutant."""
        return sorted({*mirror_tests(self.root, self.package, mutant.file), *self.also})

    def _run_warm(self, tree: Path) -> str:
        """The stage without imports; the names of the modules that a process needs to run the tests."""
        modules: list[str] = []
        files = sorted({file for mutant in self.mutants if self._open(mutant) for file in self.tests_of(mutant)})

        def work(tests: WarmTests) -> None:
            own = (self.package, "tests", "tools", "conftest", "__main__")
            modules.extend(name for name in sys.modules if name.split(".")[0] not in own)
            # those with few test files first: the others map whole folders
            for mutant in sorted(filter(self._open, self.mutants), key=lambda one: len(self.tests_of(one))):
                for file in self.tests_of(mutant):
                    self._map(tests, file)
                chosen, limit = self._choose(mutant, line=True)
                found = tests.run(mutant, chosen, limit)
                if found == "survived" and not chosen:
                    found = "not executed"
                self._write(mutant, found, "" if found == AT_IMPORT else self._digest(mutant))

        fast = ["--fast"] * (not self.slow and "--fast" in _read(tree / "tests" / "conftest.py"))
        pytest.main(["-p", "no:cacheprovider", *fast, *files], plugins=[WarmTests(tree, self.package, work)])
        return " ".join(modules)

    def _choose(self, mutant: Mutant, line: bool) -> tuple[list[str], float]:
        """Tests that pass and execute the mutant's line, or file, the quickest first; and a time limit for them."""
        seen = [one for file in self.tests_of(mutant) for one in self._maps.get(self._key(file), []) if one.passed]
        if line:
            chosen = [one for one in seen if mutant.line in one.lines.get(mutant.file, [])]
        else:
            chosen = [one for one in seen if mutant.file in one.lines]
        chosen.sort(key=lambda one: one.seconds)
        return [one.test for one in chosen], self.timeout + 20 * sum(one.seconds for one in chosen)

    def _map(self, tests: WarmTests, file: str) -> None:
        if (key := self._key(file)) not in self._maps:
            self._maps[key] = tests.map_lines(file, 10 * self.timeout)
            with self.maps.open("a", encoding="utf-8") as log:
                log.write(json.dumps({"key": key, "seen": [asdict(one) for one in self._maps[key]]}) + "\n")
            total = sum(one.seconds for one in self._maps[key])
            self._print(f"{file}: {len(self._maps[key])} tests in {total:.1f} s")

    def _key(self, file: str) -> str:
        return f"{file} {digest_files(self.root, [file])} {self._source}" + " slow" * self.slow

    def _digest(self, mutant: Mutant) -> str:
        return digest_files(self.root, self.tests_of(mutant)) + "+slow" * self.slow

    def _open(self, mutant: Mutant) -> bool:
        row = self.rows[mutant.id]
        return not is_caught(row) and row["tests"] != self._digest(mutant)

    def _read_log(self) -> None:
        for line in _read(self.log).splitlines():
            row = json.loads(line)
            if row["id"] in self.rows:
                self.rows[row["id"]] = row
        for line in _read(self.maps).splitlines():
            row = json.loads(line)
            self._maps[row["key"]] = [Seen(**one) for one in row["seen"]]

    def _write(self, mutant: Mutant, status: str, tests: str) -> None:
        row = asdict(mutant) | {"id": mutant.id, "status": status, "tests": tests}
        self.rows[mutant.id] = row
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        done = sum(bool(row["status"]) for row in self.rows.values())
        self._print(f"{done} of {len(self.mutants)}: {mutant.file}:{mutant.line} {status}")

    def _print(self, text: str) -> None:
        os.write(self.screen, (text + "\n").encode())


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def is_caught(row: dict[str, object]) -> bool:
    """Whether a test failed, did not end or broke down."""
    return str(row["status"]).startswith(("caught", "timeout", "crashed"))


def format_results(results: list[dict[str, object]]) -> str:
    """Markdown: counts by folder, then every survivor."""
    by_folder: dict[str, Counter[bool]] = {}
    for row in results:
        folder = "/".join(str(row["file"]).split("/")[2:-1])
        by_folder.setdefault(folder, Counter())[is_caught(row)] += 1
    lines = ["| folder | drawn | caught | survived |", "|---|---:|---:|---:|"]
    for folder, counts in sorted(by_folder.items()):
        lines.append(f"| {folder} | {counts.total()} | {counts[True]} | {counts[False]} |")
    survivors = [row for row in results if not is_caught(row)]
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
    parser.add_argument("--also", nargs="+", default=[], help="test files or folders beside those of the mutant's file")
    parser.add_argument("--slow", action="store_true", help="run slow tests too")
    parser.add_argument("--timeout", type=float, default=120, help="seconds per mutant; a timeout counts as caught")
    parser.add_argument("--log", type=Path, help="default: out/mutants.jsonl")
    parser.add_argument("--root", type=Path, default=ROOT, help="root of the repository")
    parser.add_argument("--package", default="airvlm")
    given = parser.parse_args(arguments)
    root = given.root.resolve()
    log = (given.log or root / "out" / "mutants.jsonl").resolve()
    mutants = draw(root, given.package, given.folders, given.seed, given.count)
    campaign = Campaign(root, given.package, mutants, log, given.timeout, given.also, given.slow)
    print("\n" + format_results(campaign.run()))


if __name__ == "__main__":
    main()

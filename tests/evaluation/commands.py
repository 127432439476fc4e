"""Command lines on the fakes, each in a process of its own, which begins in milliseconds.

Importing torch takes five seconds of a processor, so that one process does it once and forks one for every command.
What is killed, interrupted or starved here is a command like any other. Knows nothing about what is asked for.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACE = "FAKE_SECONDS"  # of an answer; a worker that is spawned reads it too
PIDS = "FAKE_PIDS"  # a folder where every process that loads a model leaves its number


class Started:
    """A command that runs, or has run: what is needed of subprocess.Popen."""

    def __init__(self, starter: Starter, pid: int, said: Path) -> None:
        self.starter, self.pid, self.said = starter, pid, said
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.starter.ask(wait=self.pid, block=False)
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self) -> tuple[str, str]:
        """Wait for its end; what it printed."""
        if self.returncode is None:
            self.returncode = self.starter.ask(wait=self.pid, block=True)
        return (self.said / "out").read_text(), (self.said / "err").read_text()


def wait_for_answers(folder: Path, process: Started) -> None:
    """Until something was answered: before that, a kill would hit imports only."""
    from airvlm.evaluation.store import FILE

    while process.poll() is None and not ((folder / FILE).exists() and (folder / FILE).stat().st_size):
        time.sleep(0.02)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Starter:
    """The process that has imported everything, and starts the commands."""

    def __enter__(self) -> Starter:
        self.folder = tempfile.TemporaryDirectory()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()  # the end of its input ends it
        self.folder.cleanup()

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(
        self,
        arguments: list[str],
        out: Path,
        *,
        seconds: float = 0.002,  # of an answer
        limit: int | None = None,  # a write that makes a file larger than this fails, as on a full disk
        spawn: bool = False,  # workers begin as they do for a user; else they are forked, which is quick
    ) -> Started:
        said = Path(tempfile.mkdtemp(dir=self.folder.name))
        line = [*arguments, "--output", str(out)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", PACE: str(seconds)}
        pid = self.ask(line=line, said=str(said), environment=environment, limit=limit, spawn=spawn)
        return Started(self, pid, said)


def load(*_: Any, **__: Any) -> Any:
    """A model that takes its time; workers are given this function by its name."""
    import fake_models

    if PIDS in os.environ:  # who holds a model is asked for by name
        Path(os.environ[PIDS], str(os.getpid())).touch()
    return fake_models.FakeVLM(seconds=float(os.environ[PACE]))


def prepare() -> None:
    """The fakes in the place of models, tasks and methods; a spawned worker does this too."""
    sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]
    import fakes

    import airvlm.methods.names
    import airvlm.tasks
    from airvlm.cli import common

    airvlm.methods.names.parse_method = fakes.parse_fake
    airvlm.tasks.TASKS.update(fakes.TASKS)
    common.load_model = load


def serve() -> None:
    """Start a command for every line of the input, or wait for one, and say its process or how it ended."""
    import airvlm.cli.evaluate
    import airvlm.evaluation.evaluate
    import airvlm.reporting.tables  # noqa: F401 - imported once here, for all commands

    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            pid, status = os.waitpid(request["wait"], 0 if request["block"] else os.WNOHANG)
            found = os.waitstatus_to_exitcode(status) if pid else None
        else:
            found = os.fork() or _command(**request)
        print(json.dumps(found), flush=True)


def _command(line: list[str], said: str, environment: dict[str, str], limit: int | None, spawn: bool) -> None:
    """The command, in the process that was forked for it: it ends here."""
    from airvlm.cli import run

    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit it ignored
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{said}/{name}", os.O_WRONLY | os.O_CREAT), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if not spawn:
        multiprocessing.get_context = lambda method=None: multiprocessing.context._concrete_contexts["fork"]
    code = 1
    try:
        code = run(line)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ in ("__main__", "__mp_main__"):  # the second: a spawned worker
    prepare()
if __name__ == "__main__":
    serve()

"""One thread for small operations: no other thread is started, none sees the setting, and it ends with the block."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from airvlm.runtime.threads import single_thread

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

COUNT = """
import os, torch
def count():
    return len(os.listdir("/proc/self/task"))
torch.empty(1)
{set}
C = torch.rand(12, 100, 576)
before = count()
with torch.no_grad():
    {work}
print(count() - before, torch.get_num_threads())
"""
SOLVE = "from airvlm.methods.evidence.transport import sinkhorn; before = count(); sinkhorn(C, 0.1)"


def seen_elsewhere() -> int:
    """What a thread that starts now takes for torch's number of threads."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("chosen", ["", "torch.set_num_threads(2)"], ids=["default", "chosen by the user"])
@pytest.mark.parametrize(
    ("work", "starts"), [(SOLVE, 0), ("C.exp(), torch.bmm(C, C.mT)", 1)], ids=["transport", "plain"]
)
def test_the_transport_starts_no_thread(chosen: str, work: str, starts: int) -> None:
    script = COUNT.format(set=chosen, work=work)
    root = Path(__file__).parents[2]
    environment = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": f"{root / 'src'}"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment, timeout=300
    )
    assert done.stdout.split() == [str(starts), "2"]


def test_the_setting_belongs_to_the_block_and_to_its_thread() -> None:
    own = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError), single_thread():
            assert torch.get_num_threads() == 1
            assert seen_elsewhere() == 2
            with single_thread():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(own)

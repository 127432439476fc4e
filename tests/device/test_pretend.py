"""The pretend accelerator itself: it allows nothing that CUDA would not."""

import pytest
import torch

from tests.device.pretend import FIRST, LAG, SECOND, Pretend, accelerator


def test_its_tensors_tell_their_device_and_compute_as_on_the_cpu() -> None:
    with accelerator():
        x = torch.arange(6.0, device=FIRST).view(2, 3)
        y = (x @ x.mT).softmax(-1)
        assert isinstance(y, Pretend) and str(y.device) == FIRST and y.shape == (2, 2)
        x[:, 1] += 1  # through a view
        assert x.held[1, 1] == 5 and torch.tensor([1, 2], device=SECOND).device == torch.device(SECOND)


def test_tensors_of_different_devices_are_refused_except_cpu_scalars_and_indices() -> None:
    with accelerator():
        x = torch.ones(3, device=FIRST)
        for other in (torch.ones(3), torch.ones(3, device=SECOND), torch.ones((), device=SECOND)):
            with pytest.raises(RuntimeError, match="tensors on"):
                x + other
        assert (x + torch.tensor(1.0)).held.tolist() == [2.0] * 3
        assert x[torch.tensor([0, 2])].shape == (2,)
        assert (x + torch.ones(3).to(FIRST)).device == x.device


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("item", lambda x: x.sum().item()),
        ("item", lambda x: bool((x > 0).any())),
        ("tolist", lambda x: x.tolist()),
        ("nonzero", lambda x: x.nonzero()),
        ("boolean indexing", lambda x: x[x > 1]),
        ("copy to the CPU", lambda x: x.cpu()),
        ("copy to the CPU", lambda x: torch.zeros(3).copy_(x)),
        ("equal", lambda x: torch.equal(x, x)),
        ("linalg.svd", lambda x: torch.linalg.svd(x[None])),
    ],
)
def test_every_read_back_is_counted_with_its_line(kind: str, read: object) -> None:
    with accelerator() as log:
        x = torch.arange(3.0).to(FIRST)
        x.masked_fill_(x > 1, 0.0)
        x[x > 5] = 1.0
        x.to(SECOND)
        assert not log.read_backs
        read(x)  # type: ignore[operator]
        (one,) = log.read_backs
        assert one.kind == kind and "test_pretend.py" in one.line


@pytest.mark.parametrize(
    ("kind", "send"),
    [
        ("copy from the CPU", lambda x: torch.ones(3).to(x.device)),
        ("copy from the CPU", lambda x: torch.tensor([1, 2], device=x.device)),
        ("copy from the CPU", lambda x: x.copy_(torch.ones(3))),
        ("indices on the CPU", lambda x: x[torch.tensor([0, 2])]),
    ],
)
def test_every_upload_is_counted_with_its_line(kind: str, send: object) -> None:
    with accelerator() as log:
        x = torch.zeros(3, device=FIRST) + torch.tensor(1.0)
        x.to(SECOND)
        assert not log.uploads
        send(x)  # type: ignore[operator]
        (one,) = log.uploads
        assert one.kind == kind and "test_pretend.py" in one.line


def test_numpy_is_refused() -> None:
    with accelerator(), pytest.raises(TypeError, match="numpy"):
        torch.ones(2, device=FIRST).numpy()


def test_a_copy_into_pinned_memory_arrives_late_and_is_not_waited_for() -> None:
    with accelerator() as log:
        pinned, plain, x = torch.zeros(2, pin_memory=True), torch.zeros(2), torch.ones(2, device=FIRST)
        pinned.copy_(x, non_blocking=True)
        assert not log.read_backs and pinned.tolist() == [0, 0]
        for _ in range(LAG):
            x = x + 1
        assert pinned.tolist() == [1, 1] and not log.read_backs
        plain.copy_(x, non_blocking=True)  # a real one cannot write there by itself, and waits
        pinned.copy_(x)
        assert len(log.read_backs) == 2


def test_a_device_may_pin_no_memory() -> None:
    with accelerator(pins=False), pytest.raises(RuntimeError, match="pins no memory"):
        torch.zeros(2, pin_memory=True)

"""ModelLock: first come, first served; released once, by any thread; never waiting for itself."""

import threading
import time

import pytest
from torch import nn

from airvlm.runtime.locks import ModelInUseError, ModelLock, lock_of


def test_callers_are_served_in_the_order_in_which_they_came() -> None:
    lock, served = ModelLock(), []
    first = lock.acquire()

    def wait(name: int) -> None:
        with lock.acquire():
            served.append(name)

    threads = []
    for name in range(8):
        threads.append(threading.Thread(target=wait, args=(name,)))
        threads[-1].start()
        while lock.waiting < name + 2:
            time.sleep(0.001)
    assert not served
    first.release()
    for thread in threads:
        thread.join()
    assert served == list(range(8)) and lock.waiting == 0


def test_a_ticket_is_released_once_and_from_any_thread() -> None:
    lock = ModelLock()
    ticket = lock.acquire()
    other = threading.Thread(target=ticket.release)
    other.start()
    other.join()
    with lock.acquire():
        ticket.release()  # again: it must not release another caller's
        assert lock.waiting == 1
    assert lock.waiting == 0


def test_a_thread_that_has_the_model_does_not_wait_for_itself() -> None:
    lock = ModelLock()
    with lock.acquire(), pytest.raises(ModelInUseError, match="from inside a call on it"):
        lock.acquire()
    assert lock.waiting == 0


def test_each_model_has_a_lock_of_its_own() -> None:
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    assert lock_of(one) is lock_of(one) is not lock_of(two)

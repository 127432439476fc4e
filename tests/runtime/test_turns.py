"""ModelLock: first come, first served; given back once, by whom ever; never waiting for oneself."""

import threading
import time

import pytest
from torch import nn

from airvlm.runtime.locks import ModelInUseError, ModelLock, lock_of


def test_callers_are_served_in_the_order_they_came() -> None:
    turns, served = ModelLock(), []
    first = turns.take()

    def wait(name: int) -> None:
        with turns.take():
            served.append(name)

    threads = []
    for name in range(8):
        threads.append(threading.Thread(target=wait, args=(name,)))
        threads[-1].start()
        while turns.waiting < name + 2:
            time.sleep(0.001)
    assert not served
    first.end()
    for thread in threads:
        thread.join()
    assert served == list(range(8)) and turns.waiting == 0


def test_a_turn_ends_once_and_from_any_thread() -> None:
    turns = ModelLock()
    turn = turns.take()
    other = threading.Thread(target=turn.end)
    other.start()
    other.join()
    with turns.take():
        turn.end()  # again: it must not end the turn of another
        assert turns.waiting == 1
    assert turns.waiting == 0


def test_the_thread_that_has_the_model_does_not_wait_for_itself() -> None:
    turns = ModelLock()
    with turns.take(), pytest.raises(ModelInUseError):
        turns.take()
    assert turns.waiting == 0


def test_one_queue_a_model() -> None:
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    assert lock_of(one) is lock_of(one) is not lock_of(two)

"""Turns: first come, first served; given back once, by whom ever; never waiting for oneself."""

import threading
import time

import pytest
from torch import nn

from airvlm.hooks.generation import ModelBusy, Turns, turns_of


def test_callers_are_served_in_the_order_they_came() -> None:
    turns, served = Turns(), []
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
    turns = Turns()
    turn = turns.take()
    other = threading.Thread(target=turn.end)
    other.start()
    other.join()
    with turns.take():
        turn.end()  # again: it must not end the turn of another
        assert turns.waiting == 1
    assert turns.waiting == 0


def test_the_thread_that_has_the_model_does_not_wait_for_itself() -> None:
    turns = Turns()
    with turns.take(), pytest.raises(ModelBusy):
        turns.take()
    assert turns.waiting == 0


def test_one_queue_a_model() -> None:
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    assert turns_of(one) is turns_of(one) is not turns_of(two)

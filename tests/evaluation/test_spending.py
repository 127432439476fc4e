"""What items cost, and how many a budget still buys."""

from __future__ import annotations

import math

from airvlm.evaluation.spending import Price


def test_a_setting_that_is_dropped_saves_its_answers_and_not_what_all_share() -> None:
    price = Price(item=0.4 + 10 * 0.02, cheapest=0.02, settings=10)
    assert math.isclose(price.among(4).item, 0.4 + 4 * 0.02)
    assert math.isclose(price.shared, 0.4)


def test_a_setting_that_joins_later_pays_what_is_shared_again() -> None:
    price = Price(item=0.6, cheapest=0.02, settings=10)
    assert price.of_new(0) == 0
    assert math.isclose(price.of_new(2), 0.4 + 2 * 0.02)


def test_what_is_left_buys_no_more_than_it_pays() -> None:
    price = Price(item=0.5, cheapest=0.1, settings=3)
    assert price.items(10.0, most=100) == 20
    assert price.items(math.inf, most=100) == 100
    assert price.items(-1.0, most=100) == 0
    assert Price(0.0, 0.0, 0).items(1.0, most=7) == 7

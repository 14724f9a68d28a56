"""How failures slow down log-ins: by source and by user, always a wait and never a refusal."""

from __future__ import annotations

import pytest

from lavinmq.auth.throttle import FORGET_AFTER_S, MAX_ENTRIES, SOURCE, USER, Slope, Throttle


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def throttle(clock: Clock) -> Throttle:
    return Throttle(clock)


def fail(throttle: Throttle, count: int, name: str = "u", address: str = "10.0.0.1") -> None:
    for _ in range(count):
        throttle.failed(name, address, address.startswith("127."))


def test_a_slope_doubles_up_to_its_limit() -> None:
    slope = Slope(free=2, first_s=1.0, limit_s=5.0)

    assert [slope.wait_s(count) for count in (0, 2, 3, 4, 5, 6, 10**9)] == [0, 0, 1, 2, 4, 5, 5]


def test_the_first_failures_cost_nothing_and_then_the_wait_grows(throttle: Throttle) -> None:
    waits = []
    for _ in range(12):
        fail(throttle, 1)
        waits.append(throttle.wait_s("u", "10.0.0.1", False))

    assert waits[: SOURCE.free] == [0.0] * SOURCE.free
    assert waits[SOURCE.free] == SOURCE.first_s
    assert waits == sorted(waits) and waits[-1] == SOURCE.limit_s


def test_all_users_of_an_address_wait_and_other_addresses_do_not(throttle: Throttle) -> None:
    fail(throttle, 10)

    assert throttle.wait_s("someone else", "10.0.0.1", False) > 0
    assert throttle.wait_s("u", "10.0.0.2", False) == 0


def test_on_this_machine_only_the_user_in_question_waits(throttle: Throttle) -> None:
    fail(throttle, 10, address="127.0.0.1")

    assert throttle.wait_s("u", "127.0.0.1", True) > 0
    assert throttle.wait_s("someone else", "127.0.0.1", True) == 0


def test_the_64_bits_of_a_network_are_one_source(throttle: Throttle) -> None:
    for number in range(10):
        throttle.failed("u", f"2001:db8:1:2::{number:x}", False)

    assert throttle.wait_s("u", "2001:db8:1:2:ffff::1%eth0", False) > 0
    assert throttle.wait_s("u", "2001:db8:1:3::1", False) == 0


def test_an_address_that_is_none_is_a_source_too(throttle: Throttle) -> None:
    fail(throttle, 10, address="no:address")

    assert throttle.wait_s("u", "no:address", False) > 0


def test_failures_from_everywhere_slow_a_user_down_mildly(throttle: Throttle) -> None:
    for number in range(USER.free + 10):
        throttle.failed("u", f"10.0.0.{number}", False)

    assert throttle.wait_s("u", "10.1.1.1", False) == USER.limit_s
    assert throttle.wait_s("another", "10.1.1.1", False) == 0


def test_who_logged_in_from_there_before_is_not_slowed_down_by_others(throttle: Throttle) -> None:
    throttle.succeeded("u", "10.1.1.1", False)
    for number in range(100):
        throttle.failed("u", f"10.0.0.{number}", False)

    assert throttle.wait_s("u", "10.1.1.1", False) == 0
    assert throttle.wait_s("u", "10.1.1.2", False) > 0


def test_a_success_takes_its_failures_back(throttle: Throttle) -> None:
    fail(throttle, 10)
    throttle.succeeded("u", "10.0.0.1", False)

    assert throttle.wait_s("u", "10.0.0.1", False) == 0


def test_logging_in_oneself_between_guesses_at_another_does_not_help(throttle: Throttle) -> None:
    for _ in range(12):
        throttle.failed("victim", "10.0.0.1", False)
        throttle.failed("me", "10.0.0.1", False)
        throttle.succeeded("me", "10.0.0.1", False)

    assert throttle.wait_s("victim", "10.0.0.1", False) == SOURCE.limit_s


def test_what_failed_long_ago_is_forgotten(throttle: Throttle, clock: Clock) -> None:
    fail(throttle, 100)
    clock.now += FORGET_AFTER_S

    assert throttle.wait_s("u", "10.0.0.1", False) == 0
    fail(throttle, 1)
    assert throttle.wait_s("u", "10.0.0.1", False) == 0


def test_no_number_of_failures_makes_the_wait_longer_than_the_limit(throttle: Throttle) -> None:
    fail(throttle, 10_000)

    assert throttle.wait_s("u", "10.0.0.1", False) == SOURCE.limit_s


def test_the_tables_are_bounded_and_long_names_are_cut(throttle: Throttle) -> None:
    for number in range(MAX_ENTRIES + 100):
        name = f"{number}-" + "x" * 5000
        throttle.failed(name, f"10.{number >> 8}.{number & 255}.1", False)
        throttle.succeeded(name, "127.0.0.1", True)

    assert len(throttle) <= 4 * MAX_ENTRIES
    keys = [*throttle._sources._entries, *throttle._pairs._entries, *throttle._users._entries]
    assert max(map(len, keys)) < 400

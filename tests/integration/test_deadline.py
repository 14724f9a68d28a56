"""The deadline of tests that wait for a broker: what it ends, and what it leaves alone."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType

import pytest

from tests.integration.conftest import fails_test
from tests.support.patience import PATIENCE

DEADLINE_S = 0.2 / PATIENCE


def test_who_waits_too_long_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"still waits for the broker after 0\.2 s"):
        time.sleep(60)


def test_the_report_of_a_test_is_written_to_its_end() -> None:
    """The alarm that comes again and again ended the whole run there, on a slow machine."""

    def pytest_runtest_makereport() -> None:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            time.sleep(0.05)

    pytest_runtest_makereport()
    signal.setitimer(signal.ITIMER_REAL, 0)


def test_what_is_not_part_of_a_test_is_left_alone() -> None:
    here: FrameType | None = sys._getframe()

    assert fails_test(here)
    while here is not None and here.f_code.co_name != "pytest_runtest_protocol":
        here = here.f_back
    assert here is not None
    assert not fails_test(here)
    assert not fails_test(None)

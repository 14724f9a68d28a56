"""Where brokers of tests have their control sockets: nothing of them stays behind a test run."""

import subprocess
import sys
from pathlib import Path

from tests.support.control import control_path

LEAVE_ONE = """
import socket
from tests.support.control import control_path

path = control_path(5672)
print(path)
socket.socket(socket.AF_UNIX).bind(path)  # as a broker that is killed leaves it
"""
LONGEST = 107
"""Bytes of the path of a socket, by unix(7), with a zero behind them."""


def test_a_socket_goes_with_the_process_of_its_test() -> None:
    output = subprocess.check_output([sys.executable, "-c", LEAVE_ONE], text=True)

    path = Path(output.strip())
    assert path.is_absolute()
    assert not path.exists()
    assert not path.parent.exists()


def test_a_path_is_short_enough_for_a_socket_and_of_one_broker_alone() -> None:
    assert len(control_path(65535)) <= LONGEST
    assert control_path(1) != control_path(2)
    assert control_path(1) == control_path(1)

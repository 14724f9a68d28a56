"""The ports of brokers under test: no two test processes are given the same one."""

import subprocess
import sys

from tests.support.ports import BLOCK, free_port

PRINT_PORTS = "from tests.support.ports import free_port; print([free_port() for _ in range(3)])"


def test_another_process_is_given_other_ports() -> None:
    ours = {free_port() for _ in range(BLOCK)}

    output = subprocess.check_output([sys.executable, "-c", PRINT_PORTS], text=True)
    theirs = {int(port) for port in output.strip("[]\n").split(",")}

    assert len(theirs) == 3
    assert not ours & theirs


def test_a_port_is_not_given_again_soon() -> None:
    ports = [free_port() for _ in range(BLOCK // 2)]

    assert len(set(ports)) == len(ports)

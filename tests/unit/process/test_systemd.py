"""What systemd gives a service and hears from it, by sockets of the tests' own."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lavinmq.process.systemd import Service
from tests.support.core import TimedEvents


class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self._socket.setblocking(False)

    def told(self) -> list[list[str]]:
        """What has been said so far, by message."""
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest) -> Iterator[Manager]:
    with tempfile.TemporaryDirectory() as directory:  # short: a path has 107 bytes
        path = f"{directory}/notify"
        made = Manager(path if request.param == "path" else f"@{path}")
        yield made
        made.close()


def service(manager: Manager, **variables: str) -> Service:
    return Service({"NOTIFY_SOCKET": manager.address, **variables})


# --- notifications


def test_a_life_is_told_in_order(manager: Manager) -> None:
    told = service(manager)

    told.ready("Listening on a")
    told.reloading()
    told.ready("Listening on b")
    told.stopping()
    told.close()

    messages = manager.told()
    assert messages[0] == ["READY=1", "STATUS=Listening on a"]
    assert messages[1][0] == "RELOADING=1"
    key, _, microseconds = messages[1][1].partition("=")
    assert key == "MONOTONIC_USEC"
    assert int(microseconds) > 0
    assert messages[2] == ["READY=1", "STATUS=Listening on b"]
    assert messages[3] == ["STOPPING=1", "STATUS=Stopping"]
    assert len(messages) == 4


@pytest.mark.parametrize("address", ["", "relative", "/no/such/socket", "@no-such-name"])
def test_a_manager_that_is_not_there_is_no_error(address: str) -> None:
    told = Service({"NOTIFY_SOCKET": address})

    told.ready("x")
    told.close()
    told.close()


def test_the_watchdog_hears_of_us_twice_in_each_interval(manager: Manager) -> None:
    events: Any = TimedEvents()
    told = service(manager, WATCHDOG_USEC="10000000", WATCHDOG_PID=str(os.getpid()))

    told.start_watchdog(events)
    events.advance(20)
    assert manager.told() == [["WATCHDOG=1"]] * 5

    told.close()
    events.advance(20)
    assert manager.told() == []


def test_the_watchdog_waits_longer_for_what_takes_long(manager: Manager) -> None:
    told = service(manager, WATCHDOG_USEC="10000000")

    with told.patient(300):
        assert manager.told() == [["WATCHDOG_USEC=300000000", "WATCHDOG=1"]]

    assert manager.told() == [["WATCHDOG_USEC=10000000", "WATCHDOG=1"]]
    told.close()
    with service(manager).patient(300):
        assert manager.told() == []


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
    ],
)
def test_a_watchdog_of_somebody_else_hears_nothing(
    manager: Manager, variables: dict[str, str]
) -> None:
    events: Any = TimedEvents()

    service(manager, **variables).start_watchdog(events)
    events.advance(100)

    assert manager.told() == []


# --- sockets


class Passed:
    """Sockets at consecutive descriptors, as systemd passes them."""

    def __init__(self, *sockets: socket.socket) -> None:
        self.first_fd = _free_descriptors(len(sockets))
        for index, sock in enumerate(sockets):
            os.dup2(sock.fileno(), self.first_fd + index, inheritable=True)

    def environ(self, names: str, count: int, pid: int | None = None) -> dict[str, str]:
        return {
            "LISTEN_PID": str(os.getpid() if pid is None else pid),
            "LISTEN_FDS": str(count),
            "LISTEN_FDNAMES": names,
        }


def _free_descriptors(count: int) -> int:
    first = 500
    while any(Path(f"/proc/self/fd/{first + index}").exists() for index in range(count)):
        first += count
    return first


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_sockets_are_taken_by_name_and_once() -> None:
    one, two, three = listening(), listening(), listening()
    with one, two, three:
        passed = Passed(one, two, three)
        environ = passed.environ("lavinmq-amqp.socket:lavinmq-http.socket:lavinmq-amqp.socket", 3)
        taken = Service(environ, passed.first_fd)

        amqp = taken.take_sockets("lavinmq-amqp.socket")

        assert [sock.getsockname() for sock in amqp] == [one.getsockname(), three.getsockname()]
        assert not any(os.get_inheritable(sock.fileno()) for sock in amqp)
        assert taken.take_sockets("lavinmq-amqp.socket") == []
        assert taken.names == ["lavinmq-http.socket"]
        assert environ == {}, "children would take them for theirs"
        taken.close()
        assert not Path(f"/proc/self/fd/{passed.first_fd + 1}").exists()
        for sock in amqp:
            sock.close()


def test_sockets_of_another_process_are_left_alone() -> None:
    with listening() as one:
        passed = Passed(one)

        taken = Service(passed.environ("a", 1, pid=1), passed.first_fd)

        assert taken.names == []
        os.close(passed.first_fd)


@pytest.mark.parametrize("count", ["", "x", "-1", "0"])
def test_a_count_that_is_none_passes_nothing(count: str) -> None:
    assert Service({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count}).names == []


def test_what_does_not_listen_for_streams_is_closed() -> None:
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    connected, other = socket.socketpair()
    read, write = os.pipe()
    with datagrams, connected, other, listening() as good:
        passed = Passed(datagrams, connected, good)
        os.dup2(read, passed.first_fd + 3)

        taken = Service(passed.environ("a:b", 4), passed.first_fd)

        assert taken.names == ["unknown"]
        (sock,) = taken.take_sockets("unknown")
        assert sock.getsockname() == good.getsockname()
        sock.close()
        assert not Path(f"/proc/self/fd/{passed.first_fd}").exists()
        for fd in (passed.first_fd + 3, read, write):
            os.close(fd)

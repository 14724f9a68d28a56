"""A second protocol on the same queues: links, queues and streams know none of what is spoken.

The protocol is the one of ``cext/trial/lines.pyx``: lines of text. It publishes, consumes, settles
and is told of its publishes by way of the same table of functions as AMQP.
"""

import gc
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import _trial
from tests.support.core import FakeEvents, Session, publish

LARGE = 3 << 20
"""Bytes above which a body is sent from its file, in pieces."""


class LineSession(Session):
    """Answers `subscribe queue consumer`; the rest it notes."""

    def __init__(self, bench: "LineBench") -> None:
        super().__init__()
        self.bench = bench

    def on_method(self, channel: int, line: bytes) -> None:
        word, *names = line.split()
        if word != b"subscribe":
            self.events.append(("on_method", channel, line))
            return
        queue, tag = names
        link = self.bench.link
        consumer = link.add_consumer(1, self.bench.queues[queue.decode()], tag, False)
        self.bench.consumers.append(consumer)
        consumer.start()

    def on_route_miss(self, channel: int, _kind: int, name: bytes, _keys: list[bytes]) -> None:
        self.events.append(("on_route_miss", channel, name))
        if name == b"-":
            self.bench.link.learn(name, self.bench.exchange)
        else:
            self.bench.link.close()


class LineBench:
    """A loop, queues bound to an exchange `-`, a link that speaks lines, and its client."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events = FakeEvents()
        self.loop = _trial.Loop(
            self.events,  # type: ignore[arg-type]
            str(directory),
            False,
            lambda *_: None,
            lambda: None,
        )
        self.vhost = _trial.Vhost()
        self.exchange = _trial.Exchange(_trial.DIRECT, 1)
        self.vhost.add(b"-", self.exchange)
        self.queues: dict[str, _trial.Queue] = {}
        self.consumers: list[_trial.Consumer] = []
        ours, self.client = socket.socketpair()
        for end in (ours, self.client):
            end.setblocking(False)
        self._server = ours
        self.link = self.connect(ours, _trial.LINES)
        self.session = LineSession(self)
        self.link.session = self.session

    def connect(self, ours: socket.socket, protocol: "_trial.Protocol") -> "_trial.Link":
        link = _trial.Link(self.loop, ours.fileno(), protocol)
        link.session = Session()
        link.set_vhost(self.vhost)
        link.set_user(b"guest", False)
        link.set_limits(131072, 1 << 30, 0)
        link.state = _trial.STATE_OPEN
        link.open_channel(1, 0)
        return link

    def queue(self, name: str) -> "_trial.Queue":
        queue = _trial.Queue(
            self.loop, str(self.directory / name), 8 << 20, True, name=name.encode(),
            vhost=self.vhost,
        )  # fmt: skip
        queue.load()
        self.exchange.bind(name.encode(), b"", queue)
        self.queues[name] = queue
        return queue

    def say(self, data: bytes) -> None:
        self.client.sendall(data)
        self.link.drain()
        self.events.run()

    def heard(self) -> bytes:
        data = b""
        while True:
            try:
                data += self.client.recv(1 << 20)
            except BlockingIOError:
                if not self.link.unsent_bytes:
                    return data
                self.link.on_writable()
                self.events.run()

    def close(self) -> None:
        self.link.close()
        self._server.close()
        self.client.close()


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[LineBench]:
    gc.freeze()  # what is there already costs the collector nothing at the end
    bench = LineBench(tmp_path)
    yield bench
    bench.close()
    gc.collect()


def test_what_is_published_in_another_protocol_is_delivered_in_it(lines: LineBench) -> None:
    queue = lines.queue("q")
    lines.say(b"subscribe q me\nP - q hello\nP - q \n")

    assert lines.heard() == b"D 1 me 5\nhelloD 2 me 0\n"
    assert queue.unacked == 2
    lines.say(b"A 1\nR 2\n")
    assert lines.heard() == b"D 3 me 0\n"
    assert queue.unacked == 1


def test_lines_may_be_cut_anywhere(lines: LineBench) -> None:
    lines.queue("q")
    script = b"subscribe q me\nP - q one\nA 1\nP - q two\n"

    for octet in script:
        lines.say(bytes([octet]))

    assert lines.heard() == b"D 1 me 3\noneD 2 me 3\ntwo"


def test_a_portion_that_ends_at_each_line_changes_nothing(lines: LineBench) -> None:
    lines.queue("q")
    lines.loop.portion_units = 1

    lines.say(b"subscribe q me\n" + b"".join(b"P - q %d\n" % n for n in range(5)))

    assert lines.heard() == b"".join(b"D %d me 1\n%d" % (n + 1, n) for n in range(5))


def test_publishes_are_confirmed_refused_and_returned_in_the_words_of_the_protocol(
    lines: LineBench,
) -> None:
    queue = lines.queue("q")
    lines.queue("full").set_features(max_length=0, overflow=_trial.OVERFLOW["reject-publish"])
    lines.link.select_confirms(1)

    lines.say(b"P - q a\nP - full b\nP - nowhere c\n")

    heard = lines.heard().splitlines()
    assert heard[0] == b"X 2"
    assert heard[1] == b"U 312 nowhere"
    assert heard[-1] == b"C 3"
    assert queue.ready == 1


def test_an_unknown_exchange_is_asked_about_and_the_line_walked_again(lines: LineBench) -> None:
    lines.queue("q")

    lines.say(b"P - q a\nP - q b\n")

    assert lines.session.events == [("on_route_miss", 1, b"-")]
    assert lines.queues["q"].ready == 2


def test_a_line_that_is_none_ends_the_connection(lines: LineBench) -> None:
    lines.say(b"P -\n")

    assert lines.session.events == [("on_illegal_frame",)]


def test_a_body_from_its_file_is_sent_without_frames(lines: LineBench) -> None:
    lines.queue("q")
    other, client = socket.socketpair()
    for end in (other, client):
        end.setblocking(False)
    link = lines.connect(other, _trial.AMQP)
    link.learn(b"", lines.exchange)
    body = bytes(range(256)) * (LARGE // 256)
    data = publish(b"q", body)
    while data:
        data = data[client.send(data[:131072]) :]
        link.drain()
        lines.events.run()
    lines.say(b"subscribe q me\n")

    heard = lines.heard()

    assert heard[: heard.index(b"\n")] == b"D 1 me %d" % len(body)
    assert heard[heard.index(b"\n") + 1 :] == body
    link.close()
    other.close()
    client.close()


def test_links_of_two_protocols_share_a_queue(lines: LineBench) -> None:
    queue = lines.queue("q")
    other, client = socket.socketpair()
    link = lines.connect(other, _trial.AMQP)
    link.learn(b"", lines.exchange)
    consumer = link.add_consumer(1, queue, b"theirs", True)
    consumer.start()

    lines.say(b"subscribe q mine\nP - q a\nP - q b\n")

    assert lines.heard().startswith(b"D 1 mine 1\n")
    link.flush()
    assert b"theirs" in client.recv(4096)
    link.close()
    other.close()
    client.close()


def test_a_reader_of_a_stream_is_served_in_its_protocol(lines: LineBench) -> None:
    queue = _trial.Queue(
        lines.loop, str(lines.directory / "s"), 1 << 20, True, name=b"s", vhost=lines.vhost,
        is_stream=True,
    )  # fmt: skip
    queue.load()
    lines.exchange.bind(b"s", b"", queue)
    lines.link.set_prefetch(1, 10, False)
    reader = lines.link.add_consumer(1, queue, b"me", False)
    reader.read_stream("first")
    reader.start()

    lines.say(b"P - s a\nP - s b\n")

    assert lines.heard() == b"D 1 me 1\naD 2 me 1\nb"


def test_silence_is_broken_in_the_words_of_the_protocol(lines: LineBench) -> None:
    lines.link.set_limits(131072, 1 << 30, 1e-9)
    lines.link.start(0)

    lines.loop.check_links()

    lines.events.run()
    assert lines.heard() == b"H\n"

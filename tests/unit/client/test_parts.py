"""Small parts of the client: what is imported, codecs, topology, WebSocket, figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.client import Client, MessageBuffer, RingBuffer, _engine, codecs, errors, websocket
from lavinmq.client.core import ALLOWED
from lavinmq.client.errors import Error
from lavinmq.client.metrics import Metrics
from lavinmq.client.topology import BindingSpec, ExchangeSpec, QueueSpec, Topology
from lavinmq.client.values import ConnectionState
from tests.support import client_frames as frames


def test_the_client_loads_nothing_of_the_broker_and_no_other_package() -> None:
    program = (
        "import sys, json; before = set(sys.modules)\n"
        "import lavinmq.client as c\n"
        "for name in c.__all__: getattr(c, name)\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    loaded = json.loads(done.stdout)
    roots = {name.partition(".")[0] for name in loaded}
    foreign = roots - set(sys.stdlib_module_names) - {"lavinmq", "cython_runtime"}
    assert {name for name in foreign if not name.startswith("_cython_")} == set()
    ours = {name for name in loaded if name.startswith("lavinmq.")}
    assert all(name.startswith("lavinmq.client") for name in ours)


def test_every_error_is_an_error_of_the_client() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), Error)


def test_closed_is_the_only_end_of_the_states() -> None:
    assert set(ALLOWED) == set(ConnectionState)
    assert [state for state, after in ALLOWED.items() if not after] == [
        ConnectionState.CLOSING,
        ConnectionState.CLOSED,
    ]


# ---- codecs


def message(body: bytes, **properties: Any) -> _engine.Message:
    tracker = _engine.Tracker(0)
    tracker.reset(1)
    port = _engine.Port(1, tracker=tracker)
    reading = _engine.Input()
    reading.open(port)
    reading.feed(frames.delivery(1, 1, body, props=_engine.encode_properties(properties)))
    return port.take()[0]


@pytest.mark.parametrize("encoding", [None, "gzip", "deflate"])
def test_a_value_comes_back_by_its_type_and_encoding(encoding: str | None) -> None:
    options: dict[str, Any] = {"content_encoding": encoding} if encoding else {}
    body = codecs.encode({"a": [1, "ü"]}, options)

    assert message(body, **options).parse() == {"a": [1, "ü"]}


def test_without_a_type_the_value_is_the_body() -> None:
    assert message(b"raw").parse() == b"raw"


@pytest.mark.parametrize(
    ("properties", "error"),
    [
        ({"content_type": "image/png"}, errors.UnsupportedContentType),
        ({"content_encoding": "br"}, errors.UnsupportedContentEncoding),
        ({"content_encoding": "gzip"}, Error),
    ],
)
def test_what_no_codec_knows_is_refused(properties: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        message(b"not compressed", **properties).parse()


def test_what_is_compressed_may_not_become_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "SIZE_MAX", 1000)
    with pytest.raises(errors.TooLarge):
        message(zlib.compress(bytes(5000)), content_encoding="deflate").parse()


# ---- topology


def test_a_deleted_queue_takes_its_bindings_along() -> None:
    topology = Topology()
    topology.add(ExchangeSpec("e"))
    topology.add(QueueSpec("a"))
    topology.add(QueueSpec("b"))
    topology.add(BindingSpec("a", "e", "k"))
    topology.add(BindingSpec("b", "e", "k"))
    topology.forget_queue("a")

    assert list(topology.queues) == ["b"] and [b.destination for b in topology.bindings] == ["b"]
    topology.forget_exchange("e")
    assert not topology.bindings and not topology.exchanges


def test_another_connection_restores_what_is_not_one_connections_alone() -> None:
    topology = Topology()
    exchange, shared = ExchangeSpec("e"), QueueSpec("shared")
    own, named = QueueSpec("own", exclusive=True), QueueSpec("amq.gen-1", server_named=True)
    bindings = [BindingSpec(name, "e") for name in ("shared", "own", "amq.gen-1")]
    everything: list[ExchangeSpec | QueueSpec | BindingSpec] = [exchange, shared, own, named]
    for entity in [*everything, *bindings]:
        topology.add(entity)

    assert list(topology.restoring()) == [exchange, shared, own, named, *bindings]
    assert list(topology.restoring(is_beside=True)) == [exchange, shared, bindings[0]]


def test_what_others_change_while_it_is_restored_is_seen() -> None:
    """Another connection renames its queue, and the program deletes, between two steps."""
    topology = Topology()
    topology.add(ExchangeSpec("e", "topic"))
    for name in ("shared", "gone", "late"):
        topology.add(QueueSpec(name))
    topology.add(QueueSpec("amq.gen-1", exclusive=True, server_named=True))
    for name in ("amq.gen-1", "gone", "shared", "late"):
        topology.add(BindingSpec(name, "e", "#"))

    steps = topology.restoring(is_beside=True)
    begun = [next(steps).name, next(steps).name]
    topology.rename("amq.gen-1", "amq.gen-2")
    topology.forget_queue("gone")
    begun += [next(steps).name, next(steps).name]
    topology.rename("amq.gen-2", "amq.gen-3")
    topology.forget_queue("late")

    assert begun + [each.name for each in steps] == ["e", "shared", "late", "e -> shared (#)"]


def test_a_renamed_queue_takes_its_bindings_along() -> None:
    topology = Topology()
    topology.add(QueueSpec("amq.gen-1", server_named=True))
    topology.add(BindingSpec("amq.gen-1", "e", "k"))
    topology.rename("amq.gen-1", "amq.gen-2")

    assert [b.destination for b in topology.bindings] == ["amq.gen-2"]
    assert topology.queues["amq.gen-2"].method[2] == ""


# ---- WebSocket


@given(st.binary(max_size=300))
def test_a_masked_text_comes_back(data: bytes) -> None:
    key = os.urandom(4)

    assert websocket.mask(websocket.mask(data, key), key) == data


@pytest.mark.parametrize("n", [0, 1, 125, 126, 65535, 65536])
def test_a_frame_says_its_length(n: int) -> None:
    raw = websocket.frame(2, bytes(n), b"\0\0\0\0")
    short = raw[1] & 127
    width = {126: 2, 127: 8}.get(short, 0)
    said = int.from_bytes(raw[2 : 2 + width], "big") if width else short

    assert said == n and len(raw) == 2 + width + 4 + n and raw[1] & 128


# ---- buffers of the Crystal library


def test_a_message_buffer_drops_the_oldest_and_says_which() -> None:
    buffer: MessageBuffer[int] = MessageBuffer(3)

    assert [buffer.enqueue(n) for n in range(5)] == [None, None, None, 0, 1]
    assert buffer.full and buffer.dropped_count == 2 and buffer.count == buffer.size == 3
    assert buffer.drain() == [2, 3, 4] and buffer.empty


def test_a_ring_buffer_refuses_what_does_not_fit() -> None:
    ring: RingBuffer[int] = RingBuffer(2)

    assert [ring.enqueue(n) for n in range(3)] == [True, True, False]
    assert [ring.dequeue(), ring.dequeue(), ring.dequeue()] == [0, 1, None]


# ---- figures


def test_a_connection_may_go_while_figures_are_read() -> None:
    class Losing:
        """A core whose connection goes between two looks at it."""

        def __init__(self, core: Any) -> None:
            self._core = core
            link = SimpleNamespace(input=SimpleNamespace(bytes_in=3), bytes_out=4)
            self._links = chain([link], repeat(None))

        def __getattr__(self, name: str) -> Any:
            return next(self._links) if name == "link" else getattr(self._core, name)

    client = Client("amqp://127.0.0.1:1")
    client._together.cores = [Losing(client._core)]  # type: ignore[list-item]
    found = client.metrics()

    assert (found.bytes_in, found.bytes_out) == (3, 4)


def test_figures_are_read_by_prometheus() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    queues = {'a"b': dict.fromkeys(("confirmed", "sent", "nacked", "returned"), 3)}
    queues['a"b'] |= {"dropped": 1, "buffered": 2, "capacity": 10}
    drops = {('a"b', "closed"): 1}
    text = Metrics(state="connected", confirmed=3, queues=queues, drops_of=drops).exposition()

    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["amqp_connection_state"].samples[0].value == 1
    assert families["amqp_buffer_depth"].samples[0].labels == {"queue": 'a"b'}
    dropped = families["amqp_messages_dropped"].samples[0]
    assert (dropped.labels, dropped.value) == ({"queue": 'a"b', "reason": "closed"}, 1)

"""What clients of MQTT leave in a data directory, and what they have to find in it again, whichever
release opens it.

    python -m tests.support.mqtt_past PROGRAM NAME

has a release's executable make `tests/fixtures/data-dir/NAME-stopped.tar.gz` and
`NAME-killed.tar.gz`, which `tests/integration/mqtt/test_past.py` opens. Those called `mqtt-0.2.1`
were made with the executable of that release. An archive is never made anew by a later one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from tests.support import mqtt_bytes
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5, V311, block
from tests.support.mqtt_peer import Message, Peer
from tests.support.waiting import wait_for

FOLDER = Path(__file__).parents[1] / "fixtures" / "data-dir"
INI = "[mqtt]\nmax_session_expiry = 4294967295\n"
"""So that an archive is as good in years."""
FOR_EVER = b"\x11\xff\xff\xff\xff"
KEPT = {"clean": False, "properties": block(FOR_EVER)}
PUBACK, PUBREC, PUBREL, PUBCOMP = 4, 5, 6, 7
LONG = "long/" * 80
ENDS = ("stopped", "killed")

USER_PROPERTY = b"\x26" + mqtt_bytes.text("k") + mqtt_bytes.text("v")
CONTENT_TYPE = b"\x03" + mqtt_bytes.text("text/plain")
RESPONSE_TOPIC = b"\x08" + mqtt_bytes.text("answers/here")
CORRELATION = b"\x09" + mqtt_bytes.text(b"\0\xff")
EXPIRY = b"\x02\xff\xff\xff\x00"
PROPERTIES = (CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION, USER_PROPERTY)


class Story(Protocol):
    """One thing that a data directory keeps."""

    def leave(self, broker: Broker, clients: ExitStack) -> None:
        """Have it kept. `clients`: those that are there until the broker ends."""

    def find(self, broker: Broker, end: str) -> None:
        """Assert that it is there, once. `end`: how the broker has ended, of ENDS."""


def publish(broker: Broker, *messages: tuple[str, bytes, int], **more: object) -> None:
    """Publish topics, payloads, QoS by a client that is no story's own."""
    with Peer(broker.mqtt_port, V5) as sender:
        sender.connect("sender")
        for topic, payload, qos in messages:
            sender.publish(topic, payload, qos, **more)
        sender.disconnect(b"\0")


def come_back(
    broker: Broker, name: str, level: int = V5, *, completes: bool = True, **more: object
) -> Peer:
    """A client whose session has to be there."""
    client = Peer(broker.mqtt_port, level, completes=completes)
    assert client.connect(name, **(KEPT | more))[0] == 1, f"the session of {name} is gone"
    return client


def leave_session(
    broker: Broker, name: str, *wishes: tuple[str, int], level: int = V5,
    properties: bytes | None = None,
) -> None:  # fmt: skip
    """A session whose client is away."""
    with Peer(broker.mqtt_port, level) as client:
        client.connect(name, **KEPT)
        assert max(client.subscribe(*wishes, properties=properties)) <= 2
        client.disconnect(b"\0" if level == V5 else b"")


def is_quiet(client: Peer) -> bool:
    """Whether nothing more waits for it: what is sent to it behind all is what comes next."""
    client.subscribe(("quiet", 1), packet_id=99)
    client.publish("quiet", b"quiet", 1)
    return client.message().payload == b"quiet"


class Waiting:
    """Messages wait in sessions of both versions, by filters of every kind."""

    def leave(self, broker: Broker, clients: ExitStack) -> None:
        for level in (V311, V5):
            wishes = ((f"a{level}/+", 2), (f"{LONG}{level}/#", 1))
            leave_session(broker, f"waits-{level}", *wishes, level=level)
            messages = [(f"a{level}/{n}", b"m%d" % n, 1 + n % 2) for n in range(20)]
            publish(broker, *messages, (f"{LONG}{level}/end", b"far", 2))
        # Subscription identifier 5, no local, retained as published.
        leave_session(broker, "options", ("o/#", 1 | 4 | 8), properties=block(b"\x0b\x05"))
        publish(
            broker, ("o/1", b"rich", 1), retain=True, properties=block(*PROPERTIES, EXPIRY)
        )  # fmt: skip

    def find(self, broker: Broker, end: str) -> None:
        for level in (V311, V5):
            with come_back(broker, f"waits-{level}", level) as client:
                found = [client.message() for _ in range(21)]
                assert [(each.payload, each.qos) for each in found[:20]] == [
                    (b"m%d" % n, 1 + n % 2) for n in range(20)
                ]
                assert found[20][:3] == (f"{LONG}{level}/end", b"far", 1)
                for topic in (f"a{level}/new", f"{LONG}{level}/new"):
                    client.publish(topic, b"new", 1)
                    assert client.message()[:2] == (topic, b"new")
                assert is_quiet(client)
        with come_back(broker, "options") as client:
            rich = client.message()
            assert rich[:4] == ("o/1", b"rich", 1, True)
            for each in (*PROPERTIES, b"\x0b\x05", EXPIRY[:3]):
                assert each in rich.properties
            client.publish("o/2", b"own", 1)
            assert is_quiet(client)
            publish(broker, ("o/3", b"other", 2))
            assert client.message()[:3] == ("o/3", b"other", 1)


class Sending:
    """Messages were sent to a client, in each state that one can be in, and others wait."""

    def leave(self, broker: Broker, clients: ExitStack) -> None:
        with ExitStack() as gone:
            self._leave(broker, "sent-then", gone)
        self._leave(broker, "sent-now", clients)

    def _leave(self, broker: Broker, name: str, clients: ExitStack) -> None:
        client = clients.enter_context(Peer(broker.mqtt_port, V5))
        client.connect(name, clean=False, properties=block(FOR_EVER, b"\x21\0\4"))
        client.subscribe((f"{name}/#", 2))
        qos = (1, 2, 2, 1, 1, 2)
        publish(broker, *((f"{name}/{n}", b"s%d" % n, qos[n]) for n in range(6)))
        came = [client.message(is_acked=False) for _ in range(4)]
        assert [each.packet_id for each in came] == [1, 2, 3, 4]
        client.send(mqtt_bytes.packet(PUBREC, b"\0\3"))
        assert client.expect(PUBREL).body[:2] == b"\0\3"
        client.send(mqtt_bytes.packet(PUBACK, b"\0\4"))
        assert client.message(is_acked=False).payload == b"s4"

    def find(self, broker: Broker, end: str) -> None:
        for name in ("sent-then", "sent-now"):
            with come_back(broker, name, completes=False) as client:
                assert client.expect(PUBREL).body[:2] == b"\0\3"
                client.send(mqtt_bytes.packet(PUBCOMP, b"\0\3"))
                found = [client.message() for _ in range(4)]
                assert [each.payload for each in found] == [b"s0", b"s1", b"s4", b"s5"]
                assert [each.dup for each in found] == [True, True, True, False]
                assert [each.packet_id for each in found[:2]] == [1, 2]
                assert is_quiet(client)


class Receiving:
    """A client has published with QoS 2 and heard PUBREC: what it sends again is not new."""

    def leave(self, broker: Broker, clients: ExitStack) -> None:
        leave_session(broker, "hears", ("in/#", 2))
        for level in (V311, V5):
            client = clients.enter_context(Peer(broker.mqtt_port, level))
            client.connect(f"says-{level}", **KEPT)
            for packet_id in (2, 3):
                client.send(self._publish(level, packet_id, b"first"))
                assert client.expect(PUBREC).body[:2] == bytes([0, packet_id])
            client.send(mqtt_bytes.packet(PUBREL, b"\0\3", 2))
            assert client.expect(PUBCOMP).body[:2] == b"\0\3"

    def _publish(self, level: int, packet_id: int, payload: bytes) -> bytes:
        return mqtt_bytes.publish(
            level, f"in/{level}", payload, qos=2, packet_id=packet_id, dup=payload == b"again"
        )

    def find(self, broker: Broker, end: str) -> None:
        for level in (V311, V5):
            with come_back(broker, f"says-{level}", level) as client:
                client.send(self._publish(level, 2, b"again"))
                client.send(self._publish(level, 3, b"new"))
                for packet_id in (2, 3):
                    assert client.expect(PUBREC).body[:2] == bytes([0, packet_id])
                for packet_id in (2, 3):
                    client.send(mqtt_bytes.packet(PUBREL, bytes([0, packet_id]), 2))
                    assert client.expect(PUBCOMP).body[:2] == bytes([0, packet_id])
        with come_back(broker, "hears") as client:
            for payloads in (Counter(first=4), Counter(new=2)):
                found = Counter(client.message().payload.decode() for _ in range(payloads.total()))
                assert found == payloads
            assert is_quiet(client)


class Sharing:
    """Messages wait for members who are away, and were being sent to one who was there."""

    GROUPS = ("$share/g/sh/#", f"$share/g/{LONG}sh/#")

    def leave(self, broker: Broker, clients: ExitStack) -> None:
        for name in ("one", "two"):
            leave_session(broker, name, *((each, 2) for each in self.GROUPS))
        publish(broker, *((f"sh/{n}", b"g%d" % n, 1 + n % 2) for n in range(6)))
        publish(broker, *((f"{LONG}sh/{n}", b"l%d" % n, 1) for n in range(3)))
        # Of another group, a member was sent a message of QoS 2.
        client = clients.enter_context(Peer(broker.mqtt_port, V5))
        client.connect("alone", **KEPT)
        client.subscribe(("$share/h/own/#", 2))
        leave_session(broker, "other", ("$share/h/own/#", 2))
        publish(broker, ("own/1", b"own", 2))
        first = client.message(is_acked=False)
        assert (first.payload, first.packet_id) == (b"own", 1)

    def find(self, broker: Broker, end: str) -> None:
        with come_back(broker, "one") as client:
            found = [client.message().payload for _ in range(9)]
            assert sorted(found) == sorted(
                [*(b"g%d" % n for n in range(6)), *(b"l%d" % n for n in range(3))]
            )
            assert is_quiet(client)
            with come_back(broker, "two") as other:
                assert is_quiet(other)
        self._find_own(broker, end)

    def _find_own(self, broker: Broker, end: str) -> None:
        """After a kill the log of 0.2.1 does not say where the message is: another member gets it,
        and the first one may use its identifier again. A stop has moved it to the first one."""
        is_anothers = end == "killed"
        with come_back(broker, "other") as other:
            if is_anothers:
                assert other.message().payload == b"own"
            assert is_quiet(other)
            with come_back(broker, "alone", completes=False) as alone:
                if is_anothers:
                    assert alone.expect(PUBREL).body[:2] == b"\0\1"
                    alone.send(mqtt_bytes.packet(PUBCOMP, b"\0\1"))
                else:
                    found = alone.message()
                    assert (found.payload, found.packet_id, found.dup) == (b"own", 1, True)
                assert is_quiet(alone)


class Wills:
    """Those that are due at once, soon, and not for years."""

    LONG_S = 0xFFFFFFF0

    def leave(self, broker: Broker, clients: ExitStack) -> None:
        leave_session(broker, "witness", ("will/#", 1))
        for delay_s in (0, 1, self.LONG_S):
            client = clients.enter_context(Peer(broker.mqtt_port, V5))
            client.connect(
                f"dying-{delay_s}", **KEPT, will=(f"will/{delay_s}", b"gone", 1, delay_s == 1),
                will_properties=block(b"\x18" + delay_s.to_bytes(4, "big"), *PROPERTIES),
            )  # fmt: skip
        with Peer(broker.mqtt_port, V5) as client:
            client.connect("waiting", **KEPT, will=("will/away", b"gone", 1, False),
                           will_properties=block(b"\x18\xff\xff\xff\xf0"))  # fmt: skip
        with Peer(broker.mqtt_port, V5) as client:
            client.connect("no-will", **KEPT, will=("will/none", b"x", 1, False))
            client.disconnect(b"\0")

    def find(self, broker: Broker, end: str) -> None:
        """A stop publishes all; a kill leaves those that are to wait for the end of a session."""
        late = [(f"will/{self.LONG_S}", f"dying-{self.LONG_S}"), ("will/away", "waiting")]
        wanted = {"will/0", "will/1"}
        if end == "stopped":
            wanted |= {topic for topic, _ in late}
        with come_back(broker, "witness") as client:
            found = [client.message() for _ in wanted]
            assert {each.topic for each in found} == wanted
            assert all(each.payload == b"gone" for each in found)
            for each in found:
                if each.topic != "will/away":
                    assert all(one in each.properties for one in PROPERTIES)
            assert is_quiet(client)
            for topic, name in late if end == "killed" else []:
                assert Api(broker)("DELETE", f"/api/queues/%2F/mqtt.{name}").status == 204
                assert client.message()[:2] == (topic, b"gone")
            client.subscribe(("will/#", 1))
            assert client.message()[:4] == ("will/1", b"gone", 1, True)
            assert is_quiet(client)


class Retained:
    """Retained messages: plain ones, one that was replaced, one that was removed, one that expires
    in a hundred years."""

    def leave(self, broker: Broker, clients: ExitStack) -> None:
        publish(broker, *((f"ret/{n}", b"r%d" % n, n % 3) for n in range(9)), retain=True)
        publish(broker, ("ret/0", b"newer", 1), ("ret/1", b"", 1), retain=True)
        publish(
            broker, ("ret/rich", b"rich", 2), retain=True, properties=block(*PROPERTIES, EXPIRY)
        )  # fmt: skip

    def find(self, broker: Broker, end: str) -> None:
        with Peer(broker.mqtt_port, V5) as client:
            client.connect("asks")
            client.subscribe(("ret/#", 2))
            found: dict[str, Message] = {}
            for _ in range(9):
                message = client.message()
                assert message.retain
                assert message.topic not in found
                found[message.topic] = message
            assert is_quiet(client)
        wanted = {f"ret/{n}": (b"r%d" % n, n % 3) for n in range(2, 9)}
        wanted |= {"ret/0": (b"newer", 1), "ret/rich": (b"rich", 2)}
        assert {each.topic: (each.payload, each.qos) for each in found.values()} == wanted
        assert all(each in found["ret/rich"].properties for each in (*PROPERTIES, EXPIRY[:3]))


class Owned:
    """A session is its user's, and nobody else's."""

    def leave(self, broker: Broker, clients: ExitStack) -> None:
        api = Api(broker)
        api("PUT", "/api/users/alice", {"password": "alice", "tags": ""})
        everything = {"configure": ".*", "read": ".*", "write": ".*"}
        assert api("PUT", "/api/permissions/%2F/alice", everything).status == 201
        for name in ("hers", "lost"):
            with Peer(broker.mqtt_port, V5) as client:
                client.connect(name, user="alice", password="alice", **KEPT)
                client.subscribe((f"{name}/#", 1))
                client.disconnect(b"\0")
            publish(broker, (f"{name}/1", b"secret", 1))

    def find(self, broker: Broker, end: str) -> None:
        with come_back(broker, "hers", user="alice", password="alice") as client:
            assert client.message().payload == b"secret"
            assert is_quiet(client)
        with Peer(broker.mqtt_port, V5) as client:
            assert client.connect("lost", **KEPT)[0] == 0
            assert is_quiet(client)


class Ended:
    """Sessions that end with their connections are gone, and so is one whose time was over."""

    def leave(self, broker: Broker, clients: ExitStack) -> None:
        client = clients.enter_context(Peer(broker.mqtt_port, V311))
        client.connect("clean")
        client.subscribe(("ended/#", 1))
        client = clients.enter_context(Peer(broker.mqtt_port, V5))
        client.connect("brief", clean=False, properties=block(b"\x11\0\0\0\1"))
        client.subscribe(("ended/#", 1))
        publish(broker, ("ended/1", b"x", 1))

    def find(self, broker: Broker, end: str) -> None:
        wait_for(
            lambda: not {"mqtt.clean", "mqtt.brief"}
            & {each["name"] for each in Api(broker).get("/api/queues")},
            "a session is still there",
        )  # fmt: skip


STORIES: tuple[Story, ...] = (
    Waiting(), Sending(), Receiving(), Sharing(), Wills(), Retained(), Owned(), Ended(),
)  # fmt: skip


def leave_all(broker: Broker, end: str) -> None:
    """Have a running broker keep all stories, and end it."""
    with ExitStack() as clients:
        for story in STORIES:
            story.leave(broker, clients)
        if end == "stopped":
            broker.stop()
        else:
            broker.kill()


def past(data_dir: Path, command: tuple[str, ...] = ()) -> Broker:
    """A broker for a directory of the past. Args: command: another release's."""
    ini = data_dir.with_name(f"{data_dir.name}.ini")
    ini.write_text(INI)
    return Broker(data_dir, ("-c", str(ini)), command=command, http=True, mqtt=True)


def main() -> None:
    """Make both archives of a release."""
    program, name = sys.argv[1:]
    for end in ENDS:
        with tempfile.TemporaryDirectory() as directory:
            data_dir = Path(directory) / "data"
            leave_all(past(data_dir, (program,)).start(), end)
            target = FOLDER / f"{name}-{end}.tar.gz"
            subprocess.run(["tar", "--sparse", "-czf", target, "-C", data_dir, "."], check=True)
            print(target, target.stat().st_size)


if __name__ == "__main__":
    main()

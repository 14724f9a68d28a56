"""Sessions and shared groups against a model: whatever clients do, and however the broker ends, all
messages of QoS 1 and 2 of a kept session are delivered, QoS 2 once, in order for each topic.
"""

from __future__ import annotations

import itertools
import uuid
from typing import cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from lavinmq.mqtt import filters
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5, block
from tests.support.mqtt_peer import Message, Peer
from tests.support.waiting import wait_for

NAMES = ("kept-1", "kept-2", "clean")
TOPICS = ("a", "a/b", "c")
FILTERS = ("#", "a/#", "+", "a/b")
KEPT = {"clean": False, "properties": block(b"\x11\0\0\x0e\x10")}
RESTARTS = 1
"""Of an example: each takes a second."""

names = st.sampled_from(NAMES)
qualities = st.sampled_from((1, 2))


class Model(RuleBasedStateMachine):
    """Clients of one broker. What each has to get is what it has not acknowledged yet."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker
        self.prefix = uuid.uuid4().hex[:8]
        self.numbers = itertools.count()
        self.peers: dict[str, Peer] = {}
        self.wanted: dict[str, dict[str, int]] = {name: {} for name in NAMES}
        self.expected: dict[str, list[tuple[str, bytes, int]]] = {name: [] for name in NAMES}
        self.sessions: set[str] = set()
        self.members: set[str] = set()
        self.shared: set[bytes] = set()
        self.restarts = 0
        self.sender = self._new_peer("sender", {})

    def _new_peer(self, name: str, options: dict[str, object]) -> Peer:
        # After a kill the broker may not know any more that a PUBREL was answered.
        peer = Peer(self.broker.mqtt_port, V5, completes=True)
        present = peer.connect(f"{self.prefix}-{name}", **options)[0]
        assert present == (name in getattr(self, "sessions", ()))
        return peer

    def _topic(self, text: str) -> str:
        return f"{self.prefix}/{text}"

    @rule(name=names)
    def connect(self, name: str) -> None:
        """Come, or take over from oneself."""
        older = self.peers.pop(name, None)
        is_kept = name != "clean"
        if not is_kept:
            self._forget(name)
        self.peers[name] = self._new_peer(name, KEPT if is_kept else {})
        if is_kept:
            self.sessions.add(name)
        if older is not None:
            older.socket.close()

    def _forget(self, name: str) -> None:
        self.wanted[name].clear()
        self.expected[name].clear()

    def _here(self, name: str) -> Peer:
        if name not in self.peers:
            self.connect(name)
        return self.peers[name]

    @rule(name=names, wanted=st.sampled_from(FILTERS), qos=qualities)
    def subscribe(self, name: str, wanted: str, qos: int) -> None:
        """Also once more, with another QoS."""
        assert self._here(name).subscribe((self._topic(wanted), qos)) == [qos]
        self.wanted[name][self._topic(wanted)] = qos

    @rule(name=names, wanted=st.sampled_from(FILTERS))
    def unsubscribe(self, name: str, wanted: str) -> None:
        """Whether it is there or not."""
        was_there = self.wanted[name].pop(self._topic(wanted), None) is not None
        assert self._here(name).unsubscribe(self._topic(wanted)) == [0 if was_there else 0x11]

    @rule(name=st.sampled_from(NAMES[:2]), qos=qualities)
    def join(self, name: str, qos: int) -> None:
        """Become a member of the shared subscription."""
        group = f"$share/g/{self.prefix}-s/#"
        assert self._here(name).subscribe((group, qos)) == [qos]
        self.members.add(name)

    @rule(topic=st.sampled_from(TOPICS), qos=qualities, count=st.integers(1, 4))
    def publish(self, topic: str, qos: int, count: int) -> None:
        """Some messages, each acknowledged."""
        topic = self._topic(topic)
        for _ in range(count):
            body = b"%06d" % next(self.numbers)
            self.sender.publish(topic, body, qos)
            for name in NAMES:
                granted = [
                    most for wanted, most in self.wanted[name].items()
                    if filters.matches(wanted, topic)
                ]  # fmt: skip
                if granted:
                    self.expected[name].append((topic, body, min(qos, max(granted))))

    @precondition(lambda self: self.members)
    @rule(qos=qualities, count=st.integers(1, 4))
    def publish_to_the_group(self, qos: int, count: int) -> None:
        """Some messages of which each goes to one member."""
        for _ in range(count):
            body = b"%06d" % next(self.numbers)
            self.sender.publish(f"{self.prefix}-s/x", body, qos)
            self.shared.add(body)

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        """Take and acknowledge all that is due."""
        name = data.draw(st.sampled_from(sorted(self.peers)))
        self._drain(name)

    def _drain(self, name: str) -> None:
        peer, due = self.peers[name], self.expected[name]
        found: list[Message] = []
        while len(found) < len(due):
            message = peer.message()
            if not self._is_shared(message):
                found.append(message)
        peer.ping()
        late = [each for each in peer.early_messages() if not self._is_shared(each)]
        assert not late, f"{name} gets {late} besides"
        assert sorted((each.topic, each.payload, each.qos) for each in found) == sorted(due)
        for topic in {each.topic for each in found}:
            bodies = [each.payload for each in found if each.topic == topic]
            assert bodies == sorted(bodies), f"{name}: not in order: {bodies}"
        due.clear()

    def _is_shared(self, message: Message) -> bool:
        """Whether it is one of the group; which has got it then."""
        if message.topic != f"{self.prefix}-s/x":
            return False
        self.shared.discard(message.payload)
        return True

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), is_lost=st.booleans())
    def leave(self, data: st.DataObject, is_lost: bool) -> None:
        """With a word or without; what was not acknowledged comes again."""
        name = data.draw(st.sampled_from(sorted(self.peers)))
        peer = self.peers.pop(name)
        if not is_lost:
            peer.send(b"\xe0\0")
            while peer.read() is not None:
                pass
        peer.socket.close()
        if name == "clean":
            self._forget(name)

    @precondition(lambda self: self.restarts < RESTARTS)
    @rule(is_kill=st.booleans())
    def restart(self, is_kill: bool) -> None:
        """End the broker in either way, and start it again."""
        self.restarts += 1
        if is_kill:
            self.broker.kill()
            self.broker.start()
        else:
            self.broker.restart()
        for peer in (*self.peers.values(), self.sender):
            peer.socket.close()
        self.peers.clear()
        self._forget("clean")
        self.sender = self._new_peer("sender", {})

    def teardown(self) -> None:
        """All kept sessions have come to what was theirs, and the group to what was its."""
        try:
            for name in sorted(self.sessions):
                self._here(name)
                self._drain(name)

            def is_all_there() -> bool:
                for name in self.members:
                    self._drain(name)
                return not self.shared

            wait_for(is_all_there, f"the group has not got {self.shared}")
        finally:
            for peer in (*self.peers.values(), self.sender):
                peer.socket.close()


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Broker:
    """A broker that the model ends and starts."""
    broker = Broker(tmp_path_factory.mktemp("model") / "data", mqtt=True)
    broker.start()
    return broker


def test_sessions_and_groups_are_what_a_model_says(restarted: Broker) -> None:
    """3.1.1 [MQTT-4.1.0-1], [MQTT-4.4.0-1], [MQTT-4.5.0-1], [MQTT-4.6.0-6], 5.0 [MQTT-4.4.0-1],
    [MQTT-4.5.0-1], [MQTT-4.6.0-5]."""
    chosen = settings(
        max_examples=8, stateful_step_count=20, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    try:
        made = cast("type[Model]", lambda: Model(restarted))  # it is called for each example
        run_state_machine_as_test(made, settings=chosen)
    finally:
        restarted.stop()

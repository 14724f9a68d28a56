"""Clients that others have written: paho-mqtt, aiomqtt, and Mosquitto's programs."""

from __future__ import annotations

import asyncio
import queue
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.support.broker import Broker

aiomqtt = pytest.importorskip("aiomqtt")
paho = pytest.importorskip("paho.mqtt.client")
TIMEOUT_S = 15.0
NewClient = Callable[..., "Paho"]


class Paho:
    """A client of paho with its own thread, and what has come for it."""

    def __init__(self, port: int, version: int, client_id: str, **options: object) -> None:
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._granted: queue.Queue[list[int]] = queue.Queue()
        self._connected: queue.Queue[bool] = queue.Queue()
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id,
            protocol=version,
            **options,  # type: ignore[arg-type]
        )
        self.client.username_pw_set("guest", "guest")
        self.client.on_message = lambda client, _, message: self.messages.put(message)
        self.client.on_subscribe = lambda client, _, mid, codes, properties: self._granted.put(
            [each.value for each in codes]
        )
        self.client.on_connect = lambda client, _, flags, code, properties: self._connected.put(
            flags.session_present
        )
        self._port = port

    def connect(self, **options: object) -> bool:
        """Connect. Returns: whether the session was there."""
        self.client.connect("127.0.0.1", self._port, **options)  # type: ignore[arg-type]
        self.client.loop_start()
        return self._connected.get(timeout=TIMEOUT_S)

    def subscribe(self, *wishes: tuple[str, int]) -> list[int]:
        """Subscribe. Returns: the granted QoS of each."""
        self.client.subscribe(list(wishes))
        return self._granted.get(timeout=TIMEOUT_S)

    def publish(self, topic: str, payload: bytes, qos: int, **options: object) -> None:
        """Publish, and wait until all is acknowledged."""
        self.client.publish(topic, payload, qos, **options).wait_for_publish(TIMEOUT_S)  # type: ignore[arg-type]

    def message(self) -> paho.MQTTMessage:
        """The next one."""
        return self.messages.get(timeout=TIMEOUT_S)

    def close(self) -> None:
        """Say goodbye."""
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def new_client(mqtt: Broker) -> Iterator[NewClient]:
    """Call it with a version for a client of paho."""
    made: list[Paho] = []

    def make(version: int, client_id: str = "", **options: object) -> Paho:
        client_id = client_id or f"paho-{uuid.uuid4().hex[:10]}"
        made.append(Paho(mqtt.mqtt_port, version, client_id, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("version", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5])
def test_paho_publishes_and_subscribes(new_client: NewClient, version: int) -> None:
    """3.1.1 [MQTT-7.0.0-2]: each QoS, bodies up to 300 KiB, in order."""
    client, topic = new_client(version), f"t-{uuid.uuid4().hex}"
    client.connect()
    assert client.subscribe((f"{topic}/+", 2), ("other", 0)) == [2, 0]
    for number in range(60):
        body = b"x" * (number * 5120)
        client.publish(f"{topic}/{number}", body, number % 3)
    found = [client.message() for _ in range(60)]
    kept = [each for each in found if each.qos]
    assert [len(each.payload) // 5120 for each in kept] == [n for n in range(60) if n % 3]
    assert sorted(len(each.payload) for each in found) == [n * 5120 for n in range(60)]


@pytest.mark.parametrize("qos", [1, 2])
def test_paho_comes_back_to_its_session(new_client: NewClient, qos: int) -> None:
    """3.1.1: what came meanwhile is there, once."""
    name, topic = f"paho-{uuid.uuid4().hex[:10]}", f"t-{uuid.uuid4().hex}"
    client = new_client(paho.MQTTv311, name, clean_session=False)
    assert not client.connect()
    client.subscribe((topic, 2))
    client.close()
    sender = new_client(paho.MQTTv311)
    sender.connect()
    for number in range(20):
        sender.publish(topic, b"%d" % number, qos)
    again = new_client(paho.MQTTv311, name, clean_session=False)
    assert again.connect()
    assert [again.message().payload for _ in range(20)] == [b"%d" % n for n in range(20)]


def test_paho_sends_properties_of_version_5(new_client: NewClient) -> None:
    """5.0 [MQTT-3.3.2-15], [MQTT-3.3.2-16], [MQTT-3.3.2-17], [MQTT-3.3.2-18], [MQTT-3.3.2-20]: they
    come as sent."""
    client, topic = new_client(paho.MQTTv5), f"t-{uuid.uuid4().hex}"
    client.connect(clean_start=True)
    client.subscribe((topic, 1))
    given = paho.Properties(3)
    given.ContentType = "text/plain"
    given.ResponseTopic = "answers"
    given.CorrelationData = b"\1\2"
    given.UserProperty = [("a", "1"), ("a", "2")]
    given.MessageExpiryInterval = 100
    client.publish(topic, b"x", 1, properties=given)
    found = client.message().properties
    assert found is not None
    assert (found.ContentType, found.ResponseTopic) == ("text/plain", "answers")
    assert (found.CorrelationData, found.UserProperty) == (b"\1\2", [("a", "1"), ("a", "2")])
    assert 0 < found.MessageExpiryInterval <= 100


async def _say_and_hear(port: int, topic: str) -> dict[int, list[object]]:
    """A hundred messages of each QoS, as they come back."""
    found: dict[int, list[object]] = {0: [], 1: [], 2: []}
    async with aiomqtt.Client("127.0.0.1", port, username="guest", password="guest") as client:
        await client.subscribe(f"{topic}/#", qos=2)
        for qos in range(3):
            for number in range(100):
                await client.publish(f"{topic}/{qos}", b"%d" % number, qos)
        async for message in client.messages:
            found[message.qos].append(message.payload)
            if sum(map(len, found.values())) == 300:
                break
    return found


def test_aiomqtt_publishes_and_subscribes(mqtt: Broker) -> None:
    """All messages of each QoS, in order."""
    topic = f"t-{uuid.uuid4().hex}"
    found = asyncio.run(asyncio.wait_for(_say_and_hear(mqtt.mqtt_port, topic), TIMEOUT_S))
    assert all(each == [b"%d" % n for n in range(100)] for each in found.values())


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="needs mosquitto-clients")
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_programs(mqtt: Broker, version: str, qos: str) -> None:
    """mosquitto_pub and mosquitto_sub, which keeps its session in between."""
    topic, name = f"t-{uuid.uuid4().hex}", f"m-{uuid.uuid4().hex[:10]}"
    common = ["-h", "127.0.0.1", "-p", str(mqtt.mqtt_port), "-u", "guest", "-P", "guest",
              "-V", version, "-q", qos, "-t", topic]  # fmt: skip
    kept = ["-i", name, "-c", *(["-x", "100"] if version == "mqttv5" else [])]
    subprocess.run(["mosquitto_sub", *common, *kept, "-E"], check=True, timeout=TIMEOUT_S)
    lines = "\n".join(f"line {number}" for number in range(20))
    if qos == "0":
        listening = subprocess.Popen(
            ["mosquitto_sub", *common, "-C", "1", "-W", "10"], stdout=subprocess.PIPE, text=True
        )
        # What is said to nobody is gone: say it until it is heard.
        while listening.poll() is None:
            subprocess.run(
                ["mosquitto_pub", *common, "-m", "line 0"], check=True, timeout=TIMEOUT_S
            )
        assert listening.communicate()[0] == "line 0\n"
        return
    subprocess.run(
        ["mosquitto_pub", *common, "-l"], input=lines, text=True, check=True, timeout=TIMEOUT_S
    )
    heard = subprocess.run(
        ["mosquitto_sub", *common, *kept, "-C", "20", "-W", "10"],
        capture_output=True, text=True, check=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert heard.stdout == lines + "\n"

"""More clients that others have written: gmqtt, mqtt.js, the programs of paho's C library, and
mosquitto_rr. Each QoS, retained messages, wills, sessions that go on, requests and answers."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.client_program import program
from tests.support.broker import Broker

gmqtt = pytest.importorskip("gmqtt")
NODE_DIRECTORY = Path(__file__).parents[1] / "node"
TIMEOUT_S = 30.0
V3, V311, V5 = 3, 4, 5


def new(word: str) -> str:
    """A topic or an identifier that no other test uses."""
    return f"{word}-{uuid.uuid4().hex[:12]}"


# --- gmqtt ----------------------------------------------------------------------------------------


class Gmqtt:
    """A client of gmqtt and what has come to it: body, QoS, retain."""

    def __init__(self, mqtt: Broker, version: int, name: str, **options: Any) -> None:
        self.messages: asyncio.Queue[tuple[bytes, int, bool]] = asyncio.Queue()
        self.is_present = False
        self._granted: asyncio.Queue[tuple[int, ...]] = asyncio.Queue()
        self._mqtt, self._version = mqtt, version
        if version == V5 and not options.get("clean_session", True):
            options["session_expiry_interval"] = 100
        self.client = gmqtt.Client(name, **options)
        self.client.set_config({"reconnect_retries": 0})
        self.client.set_auth_credentials("guest", "guest")
        self.client.on_connect = self._connected
        self.client.on_message = self._message
        self.client.on_subscribe = lambda client, mid, codes, properties: self._granted.put_nowait(
            tuple(codes)
        )

    def _connected(self, _client: object, flags: int, _code: int, _properties: object) -> None:
        self.is_present = bool(flags)

    async def _message(
        self, _client: object, _topic: str, body: bytes, qos: int, properties: dict[str, Any]
    ) -> int:
        self.messages.put_nowait((body, qos, bool(properties["retain"])))
        return 0

    async def connect(self) -> None:
        """Log in."""
        await self.client.connect("127.0.0.1", self._mqtt.mqtt_port, version=self._version)

    async def subscribe(self, topic: str, qos: int) -> tuple[int, ...]:
        """Returns: the codes of SUBACK."""
        self.client.subscribe(topic, qos)
        return await self._granted.get()

    async def heard(self, count: int) -> list[tuple[bytes, int, bool]]:
        """So many messages, sorted."""
        return sorted([await self.messages.get() for _ in range(count)])


async def _gmqtt(mqtt: Broker, version: int) -> None:
    topic, name = new("g"), new("g")
    reader = Gmqtt(mqtt, version, name, clean_session=False)
    await reader.connect()
    assert not reader.is_present
    assert await reader.subscribe(f"{topic}/#", 2) == (2,)
    will = gmqtt.Message(f"{topic}/will", "gone", qos=1)
    author_name = new("a")
    author = Gmqtt(mqtt, version, author_name, will_message=will)
    await author.connect()
    for qos in range(3):
        author.client.publish(f"{topic}/{qos}", f"body {qos}", qos=qos)
    author.client.publish(f"{topic}/kept", "kept", qos=1, retain=True)
    assert await reader.heard(4) == [
        (b"body 0", 0, False), (b"body 1", 1, False), (b"body 2", 2, False), (b"kept", 1, False),
    ]  # fmt: skip
    other = Gmqtt(mqtt, version, author_name)
    await other.connect()  # takes the author's place, which leaves its will
    assert await reader.heard(1) == [(b"gone", 1, False)]

    await reader.subscribe(new("none"), 0)  # the PUBACK goes before it
    await reader.client.disconnect()
    for qos in (1, 2):
        other.client.publish(f"{topic}/late", f"late {qos}", qos=qos)
    await other.subscribe(f"{topic}/kept", 1)
    assert await other.heard(1) == [(b"kept", 1, True)]
    again = Gmqtt(mqtt, version, name, clean_session=False)
    await again.connect()
    assert again.is_present
    assert await again.heard(2) == [(b"late 1", 1, False), (b"late 2", 2, False)]
    await again.client.disconnect()
    await other.client.disconnect()


@pytest.mark.filterwarnings("ignore:.*was never awaited")
@pytest.mark.parametrize("version", [V311, V5])
def test_gmqtt(mqtt: Broker, version: int) -> None:
    """3.1.1 [MQTT-7.0.0-2]: each QoS, retained, a will, and its session."""
    asyncio.run(asyncio.wait_for(_gmqtt(mqtt, version), TIMEOUT_S))


# --- mqtt.js --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V3, V311, V5])
@pytest.mark.parametrize("way", ["tcp", "websocket"])
def test_mqtt_js(mqtt: Broker, version: int, way: str) -> None:
    """3.1.1 [MQTT-7.0.0-2]: the same, by TCP and as browsers do it."""
    if not (NODE_DIRECTORY / "node_modules" / "mqtt").is_dir():
        pytest.fail(f"run `npm ci` in {NODE_DIRECTORY}", pytrace=False)
    url = {
        "tcp": f"mqtt://127.0.0.1:{mqtt.mqtt_port}",
        "websocket": f"ws://127.0.0.1:{mqtt.http_port}/ws/mqtt",
    }[way]
    done = subprocess.run(
        [program("node"), NODE_DIRECTORY / "mqtt.js", url, str(version), new("js")],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "granted": [2],
        "live": [["0", "body 0", 0, False], ["1", "body 1", 1, False],
                 ["2", "body 2", 2, False], ["kept", "kept", 1, False]],
        "will": [["will", "gone", 1, False]],
        "present": True,
        "late": [["late", "late 1", 1, False], ["late", "late 2", 2, False]],
        "kept": [["kept", "kept", 1, True]],
    }  # fmt: skip


# --- programs -------------------------------------------------------------------------------------


@contextmanager
def listening(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A program that subscribes, until it is killed."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(shutil.which("paho_c_pub") is None, reason="needs paho.mqtt.c-examples")
@pytest.mark.parametrize("version", ["31", "311", "5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_paho_c(mqtt: Broker, version: str, qos: str) -> None:
    """paho_c_pub keeps a message for paho_c_sub, which comes later."""
    topic = new("pc")
    common = ["-h", "127.0.0.1", "-p", str(mqtt.mqtt_port), "-u", "guest", "-P", "guest",
              "-V", version, "-q", qos, "-t", topic]  # fmt: skip
    subprocess.run(
        ["paho_c_pub", *common, "-i", new("p")[:20], "-r", "-m", "kept"],
        check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    with listening(["stdbuf", "-oL", "paho_c_sub", *common, "-i", new("s")[:20]]) as heard:
        assert heard.stdout is not None
        assert heard.stdout.readline() == "kept\n"
        subprocess.run(
            ["paho_c_pub", *common, "-i", new("p")[:20], "-m", "live"],
            check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        assert heard.stdout.readline() == "live\n"


@pytest.mark.skipif(shutil.which("mosquitto_rr") is None, reason="needs mosquitto-clients")
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_rr(mqtt: Broker, qos: str) -> None:
    """5.0 [MQTT-3.3.2-15]: a request says where its answer goes to."""
    asked, answered = new("rr"), new("rr")
    common = ["-h", "127.0.0.1", "-p", str(mqtt.mqtt_port), "-u", "guest", "-P", "guest",
              "-V", "mqttv5", "-q", qos]  # fmt: skip
    served = ["mosquitto_sub", *common, "-t", asked, "-C", "1", "-F", "%R %p"]
    asking = ["mosquitto_rr", *common, "-t", asked, "-e", answered, "-m", "why", "-W", "20"]
    with listening([*served, "-i", new("s")]) as service:
        assert service.stdout is not None
        while service.poll() is None:  # what is said before it has subscribed is gone
            with listening(asking) as client:
                with suppress(subprocess.TimeoutExpired):
                    service.wait(1.0)
                if service.poll() is None:
                    continue
                where, _, question = service.stdout.readline().strip().partition(" ")
                assert (where, question) == (answered, "why")
                answer = ["mosquitto_pub", *common, "-t", where, "-m", "because"]
                while client.poll() is None:
                    subprocess.run(answer, check=True, timeout=TIMEOUT_S)
                    with suppress(subprocess.TimeoutExpired):
                        client.wait(1.0)
                assert client.stdout is not None
                assert client.stdout.readline() == "because\n"

"""The pages for those who come from another broker: every command runs as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pika

from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5
from tests.support.mqtt_bytes import publish as mqtt_publish
from tests.support.mqtt_peer import Peer
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
RABBITMQ_DEFINITIONS = FIXTURES / "rabbitmq" / "definitions.json"
ORIGINAL_DIRECTORY = FIXTURES / "data-dir" / "rich.tar.gz"
TIMEOUT_S = 60.0
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: str, *, about: str = "") -> str:
    """Return all that a page tells to type, as one script that stops at the first failure.

    Args: about: a word; only the blocks with it.
    """
    blocks = _SHELL.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    blocks = [each for each in blocks if about in each]
    assert blocks
    return "set -e\n" + "".join(f"echo '## {number}'\n{each}" for number, each in enumerate(blocks))


def run(script: str, directory: Path, **environment: str) -> list[str]:
    """Run a page's commands in a directory; return what each block printed."""
    tools = directory / "bin"
    tools.mkdir()
    for name, module in {"lavinmq": "lavinmq", "lavinmqctl": "lavinmq.cli.ctl.__main__"}.items():
        tool = tools / name
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        tool.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LAVINMQ")}
    path = f"{tools}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=directory, capture_output=True, text=True, check=False,
        timeout=TIMEOUT_S, env=kept | {"PATH": path, "PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return re.split(r"^## \d+\n", done.stdout, flags=re.MULTILINE)[1:]


def can_log_in(broker: Broker, user: str, password: str, vhost: str) -> bool:
    url = f"amqp://{user}:{password}@{broker.host}:{broker.port}/{vhost}"
    try:
        pika.BlockingConnection(pika.URLParameters(url)).close()
    except pika.exceptions.ProbableAuthenticationError:
        return False
    return True


def test_moving_in_from_rabbitmq(tmp_path: Path, broker_factory: BrokerFactory) -> None:
    broker = broker_factory(http=True)
    (tmp_path / "definitions.json").write_bytes(RABBITMQ_DEFINITIONS.read_bytes())

    control = {"LAVINMQCTL_CONTROL_UNIX_PATH": broker.control_path}
    script = commands("from-rabbitmq.md") + "lavinmqctl -q -p shop list_topic_permissions > topics"
    dry, real, listed, _, mqtt, _ = run(script, tmp_path, **control)

    assert "orders.new" in dry
    assert real
    for each in ("operator", "orders", "events", "^orders", "ha-mode", "orders.log"):
        assert each in listed
    assert mqtt == ""
    assert re.search(r"^orders\s+mqtt\.default\s", (tmp_path / "topics").read_text(), re.M)
    # Passwords are those of RabbitMQ, and guest has gone as the page says.
    assert can_log_in(broker, "orders", "S3cret-orders", "shop")
    assert not can_log_in(broker, "orders", "wrong", "shop")
    assert not can_log_in(broker, "guest", "guest", "%2F")


def test_devices_from_rabbitmq_may_what_the_page_says(
    tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    broker = broker_factory(http=True, mqtt=True)
    definitions = json.loads(RABBITMQ_DEFINITIONS.read_text())
    # As RabbitMQ has it for devices: rights on the exchange of AMQP, by routing keys.
    user = {"user": "orders", "vhost": "shop"}
    rights = {"configure": "^orders", "write": "^orders|topic$", "read": "^orders|topic$"}
    keys = {"exchange": "amq.topic", "write": r"^orders\.new", "read": r"^orders\."}
    definitions["permissions"].append({**user, **rights})
    definitions["topic_permissions"].append({**user, **keys})
    assert Api(broker)("POST", "/api/definitions", definitions).status == 200
    run(
        commands("from-rabbitmq.md", about="mqtt.default"), tmp_path,
        LAVINMQCTL_CONTROL_UNIX_PATH=broker.control_path,
    )  # fmt: skip
    url = pika.URLParameters(f"amqp://orders:S3cret-orders@{broker.host}:{broker.port}/shop")
    with pika.BlockingConnection(url) as connection, Peer(broker.mqtt_port, V5) as device:
        channel = connection.channel()
        queue = channel.queue_declare("orders.crossed", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.topic", "orders.#")
        assert device.connect(user="shop:orders", password="S3cret-orders")[1] == 0

        # Among devices: by mqtt.default, with topics.
        assert device.subscribe(("orders/#", 0), ("stock/#", 0)) == [0, 0x87]
        device.send(mqtt_publish(V5, "stock/1", b"", qos=1, packet_id=7))
        assert device.expect(4).body[2] == 0x87
        device.publish("orders/old", b"1", qos=1)
        device.publish("orders/new", b"2", qos=1)
        assert [device.message().topic for _ in range(2)] == ["orders/old", "orders/new"]
        # What goes to AMQP: by amq.topic, with routing keys, as it came along.
        method, _, body = channel.basic_get(queue, auto_ack=True)
        assert (method.routing_key, body) == ("orders.new", b"2")
        assert channel.basic_get(queue) == (None, None, None)
        # And what comes from there.
        channel.basic_publish("amq.topic", "orders.new.3", b"3")
        assert device.message().topic == "orders/new/3"


def test_what_goes_back_to_rabbitmq_has_hashes_that_it_reads(
    tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    broker = broker_factory(http=True, env={"LAVINMQ_MAIN_PASSWORD_HASHING_ALGORITHM": "sha256"})
    (tmp_path / "definitions.json").write_bytes(RABBITMQ_DEFINITIONS.read_bytes())
    control = {"LAVINMQCTL_CONTROL_UNIX_PATH": broker.control_path}
    script = commands("from-rabbitmq.md") + "lavinmqctl -q add_user new secret\n"
    script += "lavinmqctl -q export_definitions > back.json\n"

    run(script, tmp_path, **control)

    before = {user["name"]: user for user in json.loads(RABBITMQ_DEFINITIONS.read_text())["users"]}
    after = {
        user["name"]: user for user in json.loads((tmp_path / "back.json").read_text())["users"]
    }
    assert {user["hashing_algorithm"] for user in after.values()} == {
        "rabbit_password_hashing_sha256"
    }
    assert after["orders"]["password_hash"] == before["orders"]["password_hash"]
    assert set(after) == {"orders", "operator", "new"}


def test_moving_in_from_lavinmq(tmp_path: Path) -> None:
    original = tmp_path / "copy"
    original.mkdir()
    subprocess.run(["tar", "-xzf", ORIGINAL_DIRECTORY, "-C", original], check=True)
    # An edited file of the original, with settings that mean nothing here.
    (tmp_path / "lavinmq.ini").write_text(
        f"[main]\ndata_dir = {original}\nlog_level = info\n[mgmt]\nport = 15672\n"
        "[mqtt]\nport = 1883\n"
    )
    script = commands("from-lavinmq.md")
    for port in ("15673", "5673"):
        script = script.replace(port, str(free_port()))

    checked, definitions, queues, warnings, hashes = run(script, tmp_path)

    manifest = json.loads(ORIGINAL_DIRECTORY.with_suffix("").with_suffix(".json").read_text())
    assert checked is not None
    assert definitions == ""
    told = json.loads((tmp_path / "definitions.json").read_text())
    assert told["queues"]
    assert len(hashes.splitlines()) == len(told["users"]) > 0
    in_default = [each for each in manifest["queues"] if each["vhost"] == "/"]
    assert any(each["name"] in queues for each in in_default)
    assert "unknown-key" in warnings  # of a policy; what speaks MQTT is not told of


def test_the_exchange_of_mqtt_comes_along_and_does_not_go_back(
    broker_factory: BrokerFactory,
) -> None:
    api = Api(broker_factory(http=True))
    row = {
        "name": "mqtt.default", "vhost": "/", "type": "mqtt", "durable": False,
        "auto_delete": False, "internal": True, "arguments": {},
    }  # fmt: skip
    bound = {"source": "mqtt.default", "destination": "own", "destination_type": "exchange"}
    document = {
        "exchanges": [row, {**row, "name": "own", "type": "fanout", "internal": False}],
        "bindings": [{**bound, "vhost": "/", "routing_key": "a/+", "arguments": {}}],
    }

    answer = api("POST", "/api/definitions?skip_errors=true", document)

    assert "MQTT subscriptions are made by their clients" in str(answer.json)
    exported = {x["name"] for x in api.get("/api/definitions")["exchanges"]}
    assert "own" in exported
    assert "mqtt.default" not in exported
    assert api.get("/api/exchanges/%2F/mqtt.default")["type"] == "mqtt"

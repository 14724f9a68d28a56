"""`lavinmqperf mqtt throughput`: publishers and subscribers of MQTT, up to the first message.

They connect and subscribe in Python, and lend their sockets to `lavinmq._perf`. Starting, reporting
and stopping are `throughput.py`'s, as for AMQP.
"""

from collections.abc import Sequence

from lavinmq import _perf
from lavinmq.cli.perf import mqtt_wire, report
from lavinmq.cli.perf.clients import PATTERN
from lavinmq.cli.perf.mqtt_options import MqttOptions, parse_mqtt
from lavinmq.cli.perf.mqtt_wire import Connection
from lavinmq.cli.perf.throughput import Throughput
from lavinmq.client.errors import ConnectionLost


def run(argv: Sequence[str]) -> int:
    """Run the scenario with these options. Raises: UsageError, Information, ValueError."""
    options = parse_mqtt(argv)
    address = mqtt_wire.parse_uri(options.uri)
    shared = _perf.Run(publish_limit=options.pmessages, consume_limit=options.cmessages)

    def connect(name: str) -> Connection:
        # A session that is not clean goes on, so it has to have the same name each time.
        client_id = "" if options.clean_session else f"lavinmqperf-{name.replace(' ', '-')}"
        return Connection.open(address, client_id, clean=options.clean_session)

    publishers = [Publisher(options, shared, index) for index in range(options.publishers)]
    consumers = [Consumer(options, shared, index) for index in range(options.consumers)]
    return Throughput(
        options, shared, publishers, consumers, connect, report.mqtt_summary_json
    ).run()


def raise_for(end: int, reason: bytes) -> None:
    """Raise what ended a run of an engine, unless it was done. Raises: Error."""
    if end != _perf.DONE:
        raise ConnectionLost(reason.decode())


class Publisher:
    """Publisher number `index`."""

    def __init__(self, options: MqttOptions, shared: _perf.Run, index: int) -> None:
        body = (PATTERN * (options.size // len(PATTERN) + 1))[: options.size]
        self.name = f"publisher {index + 1}"
        self.engine = _perf.MqttPublisher(
            shared,
            packet=mqtt_wire.publish(options.topic, body, options.qos, retain=options.retain),
            body_size=options.size,
            qos=options.qos,
            rate=options.rate,
            window=options.confirm,
            stamp=options.measure_latency,
            random=options.random_bodies,
        )

    def set_up(self, connection: Connection) -> None:
        """Nothing has to be there."""

    def work(self, connection: Connection) -> None:
        """Publish. Raises: Error."""
        raise_for(*self.engine.run(*connection.detach()))


class Consumer:
    """Subscriber number `index`."""

    def __init__(self, options: MqttOptions, shared: _perf.Run, index: int) -> None:
        self._options = options
        self.name = f"consumer {index + 1}"
        self.engine = _perf.Consumer(
            shared,
            rate=options.consumer_rate,
            body_size=options.size,
            verify=options.verify,
            random=options.random_bodies,
            stamp=options.measure_latency,
            mqtt=True,
        )

    def set_up(self, connection: Connection) -> None:
        """Subscribe. Raises: Error."""
        connection.subscribe(self._options.topic, self._options.qos)

    def work(self, connection: Connection) -> None:
        """Consume. Raises: Error."""
        raise_for(*self.engine.run(*connection.detach()))

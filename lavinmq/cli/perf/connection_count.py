"""`lavinmqperf amqp connection-count`: opens batches of connections and holds them."""

import contextlib
import random
import socket
from collections.abc import Sequence

from lavinmq.cli.perf.conversation import Conversations, Peer, Step, open_channel, step
from lavinmq.cli.perf.count_options import ConnectionCountOptions, parse_connection_count
from lavinmq.cli.perf.counts import Dots, repeat
from lavinmq.cli.perf.descriptors import allow_connections
from lavinmq.cli.perf.held import Held
from lavinmq.cli.perf.interrupts import Interrupts
from lavinmq.cli.perf.options import UsageError
from lavinmq.cli.perf.peer import Broker
from lavinmq.client.errors import PreconditionFailed

SLICE = 100
POLL_S = 0.1


def run(argv: Sequence[str]) -> int:
    """Run the scenario with these options; returns the exit status.

    Raises: UsageError, Information, ValueError, OSError, Error.
    """
    options = parse_connection_count(argv)
    host = "127.0.0.1" if options.localhost else ""
    with Interrupts() as interrupts:
        # The first connection is not to be counted: it is closed before the others open.
        with (
            Broker(options.uri) as broker,
            Peer(broker, "lavinmqperf connection-count", host) as peer,
        ):
            steps = _prepare(options, peer)
        held = Held()
        try:
            batches = Batches(options, peer, steps, held, interrupts)
            others = {held.fileno(): held.drain}
            repeat(batches.open, batches.totals, interrupts, others)
        finally:
            held.close()
    return 0


def _prepare(options: ConnectionCountOptions, peer: Peer) -> tuple[Step, ...]:
    """Declare the queue, if one is needed, and return what each connection says."""
    limit = peer.control.channel_max
    if limit and options.channels > limit:
        raise UsageError(f"the broker allows {limit} channels per connection")
    if options.consumers:
        _declare_queue(options.queue, peer)
    return (*peer.handshake, *_channel_steps(options))


def _channel_steps(options: ConnectionCountOptions) -> list[Step]:
    steps = []
    for channel in range(1, options.channels + 1):
        steps.append(open_channel(channel))
        for tag in range(options.consumers):
            flags = (False, True, False, False)
            names = (0, options.queue, f"{tag}")
            steps.append(step(channel, "basic.consume", *names, *flags, {}))
    return steps


def _declare_queue(queue: str, peer: Peer) -> None:
    """Declare a queue that is gone with the last consumer, unless there is another one."""
    peer.control.open_channel()
    flags = (False, False, False, True, False)
    with contextlib.suppress(PreconditionFailed):
        peer.control.call("queue.declare", 0, queue, *flags, {})


class Batches:
    """Opens the connections of a run; `steps` is what each of them says."""

    def __init__(
        self,
        options: ConnectionCountOptions,
        peer: Peer,
        steps: tuple[Step, ...],
        held: Held,
        interrupts: Interrupts,
    ) -> None:
        self._options = options
        self._peer = peer
        self._steps = steps
        self._held = held
        self._interrupts = interrupts

    def open(self) -> None:
        """Open one batch, some connections at a time. Raises: OSError, Error."""
        allow_connections(len(self._held) + self._options.count)
        for done in range(0, self._options.count, SLICE):
            if self._interrupts.happened:
                return
            self._open_slice(min(SLICE, self._options.count - done))
            self._held.drain()

    def totals(self) -> str:
        """Say what there is by now."""
        connections = len(self._held)
        channels = connections * self._options.channels
        text = f"{connections} connections, {channels} channels"
        text += f", {channels * self._options.consumers} consumers"
        return f"{text}, {self._held.lost} lost" if self._held.lost else text

    def _open_slice(self, count: int) -> None:
        with Dots(count) as dots, Conversations() as conversations:
            for _ in range(count):
                conversations.start(self._connect(), iter(self._steps))
            while conversations and not self._interrupts.happened:
                for sock in conversations.poll(POLL_S):
                    self._held.add(sock)
                    dots.count()

    def _connect(self) -> socket.socket:
        number = random.randint(1, 0xFFFF)
        host = f"127.0.{number >> 8}.{number & 0xFF}" if self._options.localhost else ""
        sock = self._peer.connect(host)
        if settings := self._options.keepalive:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, settings.idle_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, settings.probes)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, settings.interval_s)
        return sock

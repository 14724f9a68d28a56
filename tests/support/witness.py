"""A well-behaved client that works in a thread while others misbehave, and must not notice.

It publishes to a durable queue with confirms and consumes what it has published, round after round.
Each message has to come back once, in order and whole, and each publish has to be confirmed, within
the time that `Wire` waits for anything.
"""

from __future__ import annotations

import threading
import uuid
from types import TracebackType

from pamqp import commands

from tests.support.wire import Wire

MESSAGES = 8
BODY_BYTES = 3_000
PAUSE_S = 0.01


class Witness:
    """Use as a context: it works until the end of the block, and then says whether all was well."""

    def __init__(self, port: int) -> None:
        self.rounds = 0
        self._wire = Wire.open(port, channels=(1, 2))
        self._queue = f"witness-{uuid.uuid4().hex}"
        self._sent = self._confirmed = self._received = 0
        self._error: BaseException | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="witness")

    def __enter__(self) -> Witness:
        wire, queue = self._wire, self._queue
        wire.call(1, commands.Queue.Declare(queue=queue, durable=True), commands.Queue.DeclareOk)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.call(2, commands.Basic.Qos(prefetch_count=5), commands.Basic.QosOk)
        wire.call(2, commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
        try:
            if kind is None:
                self._check()
        finally:
            self._wire.close()

    def wait(self, rounds: int = 3) -> None:
        """Wait until it has done so many more rounds, or has failed."""
        until = self.rounds + rounds
        while self.rounds < until and self._thread.is_alive():
            self._thread.join(PAUSE_S)

    def _check(self) -> None:
        if self._error is not None:
            raise AssertionError(f"round {self.rounds} of the witness failed") from self._error
        assert self.rounds > 0
        delete = commands.Queue.Delete(queue=self._queue)
        assert self._wire.call(1, delete, commands.Queue.DeleteOk).message_count == 0

    def _work(self) -> None:
        try:
            while not self._is_over.wait(PAUSE_S) or not self.rounds:
                self._round()
                self.rounds += 1
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            self._error = error

    def _round(self) -> None:
        for _ in range(MESSAGES):
            self._wire.publish(1, "", self._queue, self._body(self._sent))
            self._sent += 1
        while self._confirmed < self._sent or self._received < self._sent:
            unit = self._wire.receive()
            if isinstance(unit.method, commands.Basic.Deliver):
                assert unit.body == self._body(self._received), "another message was due"
                assert not unit.method.redelivered
                self._received += 1
                self._wire.send(2, commands.Basic.Ack(unit.method.delivery_tag or 0))
            else:
                assert isinstance(unit.method, commands.Basic.Ack), unit.method.name
                assert self._confirmed < unit.method.delivery_tag <= self._sent
                self._confirmed = unit.method.delivery_tag

    @staticmethod
    def _body(number: int) -> bytes:
        return b"%08d" % number + bytes(BODY_BYTES)

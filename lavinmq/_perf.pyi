"""The door of the compiled load generator; see cext/perf.pyx for what happens behind it."""

DONE: int
LOST: int
CLOSED: int
VIOLATION: int

class Run:
    """What the clients of one run share: stop flag, budgets of messages, latency samples."""

    def __init__(self, *, publish_limit: int = 0, consume_limit: int = 0) -> None: ...
    def stop(self) -> None: ...
    @property
    def stopped(self) -> bool: ...
    def latencies(self) -> tuple[int, int, list[int]]: ...
    def interval_latencies(self) -> tuple[int, int, list[int]]: ...

class AnyPublisher:
    """What publishers of both protocols have in common; `run` blocks without the GIL and returns
    (DONE | ..., unread or reason)."""

    def run(self, fd: int, unread: bytes = b"") -> tuple[int, bytes]: ...
    @property
    def published(self) -> int: ...
    @property
    def confirmed(self) -> int: ...
    @property
    def nacked(self) -> int: ...

class Publisher(AnyPublisher):
    """One publisher of AMQP."""

    def __init__(
        self,
        run: Run,
        *,
        methods: list[bytes],
        first: int,
        content: bytes,
        body_size: int,
        chunk: int,
        rate: float = 0,
        window: int = 0,
        transaction: int = 0,
        stamp: bool = False,
        random: bool = False,
    ) -> None: ...

class MqttPublisher(AnyPublisher):
    """One publisher of MQTT."""

    def __init__(
        self,
        run: Run,
        *,
        packet: bytes,
        body_size: int,
        qos: int = 0,
        rate: float = 0,
        window: int = 1,
        stamp: bool = False,
        random: bool = False,
    ) -> None: ...

class Consumer:
    """One consumer of AMQP or MQTT; `run` as in AnyPublisher."""

    def __init__(
        self,
        run: Run,
        *,
        rate: float = 0,
        ack: int = 0,
        transaction: int = 0,
        body_size: int = 0,
        verify: bool = False,
        random: bool = False,
        stamp: bool = False,
        get: bytes = b"",
        mqtt: bool = False,
    ) -> None: ...
    def run(self, fd: int, unread: bytes = b"") -> tuple[int, bytes]: ...
    @property
    def consumed(self) -> int: ...
    @property
    def mismatched(self) -> int: ...
    @property
    def first_mismatch(self) -> tuple[int, int]: ...

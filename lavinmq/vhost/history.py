"""Exchanges of one virtual host that keep their newest messages for who is bound later.

They are fanout exchanges besides. A destination that is bound gets what is kept, in portions, and
from then on what is published; what comes meanwhile is kept, too, and is part of it. Called by
`vhost.py`. Source: documentation of RabbitMQ's exchange x-recent-history.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from lavinmq import _core
from lavinmq.arguments.names import failed
from lavinmq.fieldtable import FieldTable, Timestamp
from lavinmq.files.directories import hashed
from lavinmq.process.log import Log
from lavinmq.process.portions import Portions
from lavinmq.vhost.destination import Destination
from lavinmq.vhost.exchange import HISTORY, Exchange

LENGTH: Final = "x-recent-history-length"
DEFAULT_LENGTH: Final = 20
"""As in RabbitMQ."""


class Histories:
    """What the exchanges of one virtual host keep.

    Args: loop: of the message path; place: a directory for queues without files; portions, log:
        those of the virtual host.
    """

    def __init__(self, loop: _core.Loop, place: str, portions: Portions, log: Log) -> None:
        self._loop = loop
        self._place = place
        self._portions = portions
        self._log = log
        # Under way, the one that began last behind the others, and who waits for it.
        self._replays: dict[_core.Replay, list[Callable[[], object]]] = {}

    def give(self, exchange: Exchange) -> None:
        """Have an exchange keep messages, if it is of the type. What is in the files is taken as
        well as it can be."""
        if not exchange.keeps:
            return
        wanted, reason = exchange.arguments.get(LENGTH), complaint(exchange.arguments)
        if reason is not None:
            self._log.warning(
                "exchange %r keeps %d messages: %s", exchange.name, DEFAULT_LENGTH, reason
            )
        most = wanted if isinstance(wanted, int) and reason is None else DEFAULT_LENGTH
        queue = _core.Queue(self._loop, f"{self._place}/{hashed(exchange.name)}", 4096, False)
        exchange.core.set_history(queue, most)

    def check(self, exchange: Exchange, to: Destination) -> None:
        """Refuse a binding while publishers wait for the disk. Raises: ChannelError 406."""
        if self._loop.is_held and exchange.awaits(to):
            raise failed(
                f"Server low on disk space, can not bind '{to.name}': exchange '{exchange.name}'"
                f" has {exchange.core.n_kept} messages for it"
            )

    def begin(self, exchange: Exchange, to: Destination) -> None:
        """A destination has its first binding: give it what is kept."""
        replay = exchange.replay(to)
        if replay is not None:
            self._replays[replay] = []
            self._portions.begin(self._steps(exchange, to, replay), partial(self._over, replay))

    @property
    def are_idle(self) -> bool:
        """Whether all bindings are in force."""
        return not self._replays

    def when_filled(self, callback: Callable[[], object]) -> None:
        """Call back once bindings that were made so far are in force."""
        if self._replays:
            self._replays[next(reversed(self._replays))].append(callback)
        else:
            callback()

    def stop(self) -> None:
        """Nothing is given to anybody any more: all goes. Idempotent."""
        for replay in self._replays:
            replay.stop()

    def _steps(self, exchange: Exchange, to: Destination, replay: _core.Replay) -> Iterator[object]:
        yield from replay
        exchange.replayed(to, replay)

    def _over(self, replay: _core.Replay) -> None:
        for callback in self._replays.pop(replay):
            callback()


def complaint(arguments: FieldTable) -> str | None:
    """Why these arguments cannot be, None when they can."""
    wanted = arguments.get(LENGTH)
    if wanted is None:
        return None
    if not isinstance(wanted, int) or isinstance(wanted, bool | Timestamp) or wanted < 1:
        return f"{LENGTH} must be a positive integer"
    if wanted > _core.HISTORY_MAX:
        return f"{LENGTH} {wanted} is more than the {_core.HISTORY_MAX} messages that are kept"
    return None


def check(type_: str, arguments: FieldTable) -> None:
    """Refuse what an exchange of that type cannot keep. Raises: ChannelError 406."""
    reason = complaint(arguments) if type_ == HISTORY else None
    if reason is not None:
        raise failed(reason)

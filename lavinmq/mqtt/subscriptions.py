"""The subscriptions of one virtual host: made and ended for clients whose rights were asked.

Each is a binding to `mqtt.default`, recorded with the session. A shared one is a queue of its own,
which is always stored: members come and go, and what waits in it is theirs together. It goes with
its last member. On the loop's thread. Source: MQTT 5.0 sections 3.8, 4.8; docs/mqtt.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lavinmq.arguments.names import failed
from lavinmq.fieldtable import FieldTable
from lavinmq.vhost import subscribing
from lavinmq.vhost.new_queue import NewQueue
from lavinmq.vhost.subscribing import PREFIX, SHARE, Options

if TYPE_CHECKING:
    from lavinmq.mqtt.filters import Shared
    from lavinmq.mqtt.requests import Wish
    from lavinmq.vhost.exchange import Exchange
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

Found = Callable[["Queue | Exception"], object]
_SESSION: Final = FieldTable({"x-queue-type": "mqtt"})
_MOST_QOS: Final = 2
"""Of a shared queue: each member has its own."""


class Subscriptions:
    """The subscriptions of one virtual host."""

    def __init__(self, vhost: VHost, exchange: Exchange) -> None:
        self._vhost = vhost
        self._exchange = exchange
        shared = [each for each in vhost.queues.values() if each.name.startswith(PREFIX + SHARE)]
        self._part(shared)
        self._drop_left(shared)

    def _part(self, shared: list[Queue]) -> None:
        """Older releases gave the queue of a long filter to another one as well, which is spelled
        like its name: what waits in it is for the long one."""
        for queue in shared:
            if len(queue.incoming) > 1:
                for text in filter(subscribing.is_older_digest, self.of(queue)):
                    self.remove(queue, text)

    def _drop_left(self, shared: list[Queue]) -> None:
        """A crash may leave a shared queue without members."""
        queues = self._vhost.queues
        names = {subscribing.queue_of(queues, key) for key in self._exchange.members}
        for queue in shared:
            if queue.name not in names:
                self._vhost.remove_queue(queue)

    def has(self, queue: Queue, text: str) -> bool:
        """Whether a session has subscribed to a topic filter."""
        return self._exchange.options(queue, text) is not None

    def of(self, queue: Queue) -> list[str]:
        """The topic filters of a session, with those that it shares."""
        return [key for _, key, _ in queue.incoming]

    def memberships(self, queue: Queue) -> list[str]:
        """The subscriptions of a session that are served by other queues, as they are written."""
        return [key for _, key, _ in queue.incoming if subscribing.is_membership(key)]

    def options(self, queue: Queue, text: str) -> Options | None:
        """How a session has subscribed to a topic filter; None: it has not."""
        arguments = self._exchange.options(queue, text)
        return None if arguments is None else subscribing.options_of(arguments)

    def set_apart(self, queue: Queue, text: str, apart: bool) -> None:
        """Whether nothing comes from AMQP for a subscription that is there. Raises:
        ChannelError."""
        options = self.options(queue, text)
        if options is not None and options.apart is not apart:
            options = options._replace(apart=apart)
            self._vhost.bindings.subscribe(self._exchange, queue, text, options)

    def add(self, queue: Queue, wish: Wish, subscription_id: int, *, apart: bool) -> bool:
        """Subscribe a session. Returns: whether it was recorded. Raises: ChannelError; ValueError,
        the name of the group is too long.

        Args: apart: nothing is to come from AMQP."""
        if wish.shared is not None:
            subscribing.shared_name(wish.shared.group, wish.shared.filter)
        options = Options(
            wish.qos, wish.no_local, wish.retain_as_published, wish.retain_handling,
            subscription_id, apart,
        )  # fmt: skip
        return self._vhost.bindings.subscribe(self._exchange, queue, wish.filter, options)

    def put_back(self, queue: Queue, text: str, options: Options) -> None:
        """Have a session subscribe as it did before. Raises: ChannelError."""
        self._vhost.bindings.subscribe(self._exchange, queue, text, options)

    def remove(self, queue: Queue, text: str) -> bool | None:
        """End a subscription. Returns: whether that was recorded; None: there was none.

        Raises: ChannelError."""
        return self._vhost.bindings.unsubscribe(self._exchange, queue, text)

    def with_shared_queue(self, parts: Shared, apart: bool, then: Found) -> None:
        """Call back with the queue of a shared subscription, now or later, or with what stood in
        the way of a new one. It is apart from AMQP as soon as one member is."""
        self._declare(parts, apart, then, None)

    def _declare(
        self, parts: Shared, apart: bool, then: Found,
        made: NewQueue[tuple[Queue, bool]] | None,
    ) -> None:  # fmt: skip
        try:
            name = subscribing.name_among(self._vhost.queues, parts.group, parts.filter)
            if f"{SHARE}{parts.group}/{parts.filter}" not in self._exchange.members:
                raise failed("its last member has left")  # what nobody empties would only fill
            outcome = (
                self._vhost.declare_session(name, True, _SESSION) if made is None
                else made.declare()
            )  # fmt: skip
            if isinstance(outcome, NewQueue):
                new = outcome
                new.when_made(lambda: self._declare(parts, apart, then, new))
                return
            queue, _ = outcome
            before = self.options(queue, parts.filter)
            options = Options(_MOST_QOS, apart=apart or (before is not None and before.apart))
            self._vhost.bindings.subscribe(self._exchange, queue, parts.filter, options)
        except Exception as error:  # noqa: BLE001 - who has asked tells bugs from refusals
            then(error)
            return
        then(queue)

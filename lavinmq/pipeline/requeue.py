"""Dead letters back to where they died: published with confirms first, acknowledged afterwards.

At least once: between confirm and ack a crash leaves a message in both queues; its mark tells.
Messages are published in the order in which they are delivered. What is not taken back stays where
it was: unselected, unroutable and refused messages are never acknowledged, and given back at the
end; the broker does so itself when the connection breaks. Called by the job `dlq`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from lavinmq.fieldtable import Long, Timestamp
from lavinmq.pipeline.channel import Channel, Message
from lavinmq.pipeline.content import ContentError, Properties
from lavinmq.pipeline.deaths import HISTORY, Origin, origin

# More than this cannot be held unacknowledged by a prefetch, which is a short.
LIMIT_MAX = 65535
WINDOW = 500
QUIET_S = 5.0
FROM, AT = "x-requeued-from", "x-requeued-at"
TIMES, NUMBER = "x-requeued-count", "x-requeued-number"
# They would send copies to other queues, which have had theirs.
COPIES = ("CC", "BCC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to take back and how.

    `queue` holds the dead letters. `to_exchange`: as first published, else straight into the queue
    of the origin; `target` is another queue for all of them. `reasons` and `origins` are globs.
    """

    queue: str
    user: str
    limit: int
    to_exchange: bool = False
    target: str | None = None
    without_history: bool = False
    reasons: Sequence[str] = ("*",)
    origins: Sequence[str] = ("*",)
    is_dry_run: bool = False


@dataclass(slots=True)
class Outcome:
    """What became of the messages: taken back by destination, left by reason.

    `first_error` is what the broker said of the first message that it did not take.
    """

    looked_at: int = 0
    destinations: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    first_error: str = ""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a message goes."""

    exchange: str
    routing_key: str

    def __str__(self) -> str:
        if not self.exchange:
            return f"queue {self.routing_key}"
        return f"exchange {self.exchange} key {self.routing_key}"


class Requeue:
    """One run over one queue: from the channel `taking` to the channel `giving`.

    They are of two connections: waiting for a confirm on the one that delivers would mean to keep
    all that comes before it.
    """

    def __init__(self, taking: Channel, giving: Channel, plan: Plan) -> None:
        self._taking, self._giving = taking, giving
        self._plan = plan
        # By number of its confirm: delivery tag, number in this run, destination.
        self._sent: dict[int, tuple[int, int, Destination]] = {}
        # Behind a message that failed, later ones for the same place would overtake it.
        self._failed: set[Destination] = set()
        self._unroutable: set[int] = set()
        self.outcome = Outcome()

    def run(self, show: Callable[[int, int], None]) -> Outcome:
        """Look at what is in the queue now, up to the limit. Raises: ConnectionFailure."""
        taking, giving, plan = self._taking, self._giving, self._plan
        # What comes back while this runs is behind those, so no message goes round twice.
        total = min(taking.count(plan.queue), plan.limit)
        if not total:
            return self.outcome
        if not plan.is_dry_run:
            giving.confirm_select()
        taking.consume(plan.queue, total)
        for number in range(1, total + 1):
            message = taking.receive(QUIET_S)
            if message is None:
                break  # others took some
            self.outcome.looked_at += 1
            self._deal_with(message, number)
            self._settle()
            show(number, total)
        giving.wait_until_confirmed(0)
        self._settle()
        taking.give_back()
        return self.outcome

    def _deal_with(self, message: Message, number: int) -> None:
        plan = self._plan
        try:
            properties = Properties.parse(message.raw_properties)
        except ContentError:
            self.outcome.left["unreadable properties"] += 1
            return
        came_from = origin(properties.headers)
        reason = self._reason_to_stay(properties, came_from)
        destination = destination_of(came_from, plan)
        if reason or destination is None:
            self.outcome.left[reason or "no origin"] += 1
        elif destination in self._failed:
            self.outcome.left["behind one that failed"] += 1
        elif plan.is_dry_run:
            self.outcome.destinations[str(destination)] += 1
        else:
            self._send(message, number, marked(properties, plan, number), destination)

    def _reason_to_stay(self, properties: Properties, came_from: Origin | None) -> str:
        plan = self._plan
        if came_from is None:
            if plan.target is None:
                return "no origin"
            is_selected = "*" in plan.reasons and "*" in plan.origins
        else:
            is_selected = matches(came_from.reason, plan.reasons)
            is_selected &= matches(came_from.queue, plan.origins)
        if not is_selected:
            return "not selected"
        if came_from is not None and came_from.queue == plan.queue and not plan.target:
            return "died in this very queue"
        if properties.user_id not in (None, plan.user):
            # The broker would close the channel over it.
            return "published as another user"
        return ""

    def _send(
        self, message: Message, number: int, properties: bytes, destination: Destination
    ) -> None:
        self._giving.wait_until_confirmed(WINDOW - 1)
        self._settle()
        if destination in self._failed:
            self.outcome.left["behind one that failed"] += 1
            return
        sent = self._giving.publish(
            destination.exchange, destination.routing_key, properties, message.body
        )
        self._sent[sent] = message.delivery_tag, number, destination

    def _settle(self) -> None:
        """Acknowledge what is stored; note what is not. Returns come before their confirm."""
        giving = self._giving
        for message in giving.returned:
            mark = Properties.parse(message.raw_properties).headers.get(NUMBER)
            if isinstance(mark, int):
                self._unroutable.add(mark)
            if not self.outcome.first_error:
                wanted = Destination(message.exchange, message.routing_key)
                self.outcome.first_error = f"{message.reply_code} {message.reply_text}: {wanted}"
        giving.returned.clear()
        for sent, is_stored in giving.answered:
            tag, number, destination = self._sent.pop(sent)
            if number in self._unroutable:
                self.outcome.left["unroutable"] += 1
                self._failed.add(destination)
            elif not is_stored:
                self.outcome.left["refused by the broker"] += 1
                self._failed.add(destination)
            else:
                self._taking.ack(tag)
                self.outcome.destinations[str(destination)] += 1
        giving.answered.clear()


def destination_of(came_from: Origin | None, plan: Plan) -> Destination | None:
    """Return where a message goes; None when nothing says where."""
    if plan.target is not None:
        return Destination("", plan.target)
    if came_from is None:
        return None
    if plan.to_exchange:
        return Destination(came_from.exchange, came_from.routing_key)
    return Destination("", came_from.queue)


def marked(properties: Properties, plan: Plan, number: int) -> bytes:
    """Return the properties with the mark of this run, and without what is not to go along."""
    before = properties.headers.get(TIMES)
    times = before + 1 if isinstance(before, int) and 0 < before < 1 << 30 else 1
    marks: dict[str, Any] = {
        FROM: plan.queue,
        AT: Timestamp(int(time.time())),
        TIMES: times,
        NUMBER: Long(number),
    }
    removed = HISTORY if plan.without_history else ()
    copies = () if plan.to_exchange and not plan.target else COPIES
    return properties.amended(marks, (*removed, *copies)).encode()


def matches(text: str, globs: Sequence[str]) -> bool:
    """Tell whether a text matches any of the globs."""
    return any(fnmatchcase(text, each) for each in globs)

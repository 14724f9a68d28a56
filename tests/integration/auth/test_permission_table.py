"""What a user needs to be allowed for each operation: enough of it works, less is 403.

Each test has a user of its own whose expressions admit the named resources and nothing else.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from pamqp import base, commands

from tests.support.inside import Inside, inside
from tests.support.wire import Wire


class Rights(NamedTuple):
    """The resources that may be configured, read and written."""

    configure: str = ""
    read: str = ""
    write: str = ""

    def without(self, right: str) -> Rights:
        """The same but for one."""
        return self._replace(**{right: ""})


class Operation(NamedTuple):
    """A request with what it needs, and how it is answered or refused."""

    request: base.Frame
    rights: Rights
    reply: type[base.Frame] | None
    refusal: str


CONFIGURE, READ, WRITE = "configure", "read", "write"
DECLARE_X = "User '{u}' doesn't have permissions to declare exchange 'new'"
DECLARE_Q = "User '{u}' doesn't have permissions to queue 'new'"
WITH_AE = {"x-alternate-exchange": "x1"}
BOTH_AE = {"alternate-exchange": "x2", "x-alternate-exchange": "x1"}
VOID_AE = {"alternate-exchange": "x1", "x-alternate-exchange": None}
WITH_DLX = {"x-dead-letter-exchange": "x1"}

OPERATIONS = {
    "exchange-declare": Operation(
        commands.Exchange.Declare(exchange="new"), Rights(configure="new"),
        commands.Exchange.DeclareOk, DECLARE_X,
    ),
    "exchange-declare-with-alternate": Operation(
        commands.Exchange.Declare(exchange="new", arguments=WITH_AE),
        Rights("new", "new", "x1"), commands.Exchange.DeclareOk, DECLARE_X,
    ),
    "exchange-declare-with-alternate-as-rabbitmq-spells-it": Operation(
        commands.Exchange.Declare(exchange="new", arguments={"alternate-exchange": "x1"}),
        Rights("new", "new", "x1"), commands.Exchange.DeclareOk, DECLARE_X,
    ),
    "exchange-declare-with-both-spellings-of-which-the-first-counts": Operation(
        commands.Exchange.Declare(exchange="new", arguments=BOTH_AE),
        Rights("new", "new", "x1"), commands.Exchange.DeclareOk, DECLARE_X,
    ),
    "exchange-declare-with-a-void-first-spelling": Operation(
        commands.Exchange.Declare(exchange="new", arguments=VOID_AE),
        Rights("new", "new", "x1"), commands.Exchange.DeclareOk, DECLARE_X,
    ),
    "exchange-delete": Operation(
        commands.Exchange.Delete(exchange="x1"), Rights(configure="x1"),
        commands.Exchange.DeleteOk, "User '{u}' doesn't have permissions to delete exchange 'x1'",
    ),
    "exchange-bind": Operation(
        commands.Exchange.Bind(destination="x1", source="x2"), Rights("", "x2", "x1"),
        commands.Exchange.BindOk, "User '{u}' doesn't have {r} permissions to exchange '{n}'",
    ),
    "exchange-unbind": Operation(
        commands.Exchange.Unbind(destination="x1", source="x2"), Rights("", "x2", "x1"),
        commands.Exchange.UnbindOk, "User '{u}' doesn't have {r} permissions to exchange '{n}'",
    ),
    "queue-declare": Operation(
        commands.Queue.Declare(queue="new"), Rights(configure="new"),
        commands.Queue.DeclareOk, DECLARE_Q,
    ),
    "queue-declare-with-dead-letter-exchange": Operation(
        commands.Queue.Declare(queue="new", arguments=WITH_DLX), Rights("new", "new", "x1"),
        commands.Queue.DeclareOk, DECLARE_Q,
    ),
    "queue-delete": Operation(
        commands.Queue.Delete(queue="q1"), Rights(configure="q1"),
        commands.Queue.DeleteOk, "User '{u}' doesn't have permissions to delete queue 'q1'",
    ),
    "queue-bind": Operation(
        commands.Queue.Bind(queue="q1", exchange="x1", routing_key=""), Rights("", "x1", "q1"),
        commands.Queue.BindOk, "User '{u}' doesn't have {r} permissions to {k} '{n}'",
    ),
    "queue-unbind": Operation(
        commands.Queue.Unbind(queue="q1", exchange="x1", routing_key=""), Rights("", "x1", "q1"),
        commands.Queue.UnbindOk, "User doesn't have {r} permissions to {k} '{n}'",
    ),
    "queue-purge": Operation(
        commands.Queue.Purge(queue="q1"), Rights(read="q1"),
        commands.Queue.PurgeOk, "User '{u}' doesn't have write permissions to queue 'q1'",
    ),
    "basic-get": Operation(
        commands.Basic.Get(queue="q1"), Rights(read="q1"),
        commands.Basic.GetEmpty, "User '{u}' doesn't have permissions to queue 'q1'",
    ),
    "basic-consume": Operation(
        commands.Basic.Consume(queue="q1"), Rights(read="q1"),
        commands.Basic.ConsumeOk, "User '{u}' doesn't have permissions to queue 'q1'",
    ),
    "basic-publish": Operation(
        commands.Basic.Publish(exchange="x1", routing_key=""), Rights(write="x1"),
        None, "User '{u}' not allowed to publish to exchange 'x1'",
    ),
}  # fmt: skip

CASES = [
    pytest.param(operation, right, id=f"{name}-without-{right}")
    for name, operation in OPERATIONS.items()
    for right, needed in operation.rights._asdict().items()
    if needed
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Inside]:
    with inside() as started:
        yield started


class Account:
    """A user with a virtual host of its own, in which there is something to work on."""

    def __init__(self, broker: Inside) -> None:
        self.name = f"u-{uuid.uuid4().hex[:8]}"
        self._broker = broker
        broker.call(broker.inner.vhosts.create, self.name)
        broker.add_user(self.name)
        with Wire.open(broker.port, vhost=self.name) as wire:
            for exchange in ("x1", "x2"):
                declare = commands.Exchange.Declare(exchange=exchange)
                wire.call(1, declare, commands.Exchange.DeclareOk)
            wire.call(1, commands.Queue.Declare(queue="q1"), commands.Queue.DeclareOk)

    def open(self, rights: Rights) -> Wire:
        """A connection of the user with these rights."""
        allow = [f"^{name}$" for name in rights]  # of nobody: ^$
        self._broker.call(self._broker.inner.accounts.set_permissions, self.name, self.name, *allow)
        return Wire.open(self._broker.port, vhost=self.name, user=self.name, password=self.name)


@pytest.fixture
def account(broker: Inside) -> Iterator[Account]:
    account = Account(broker)
    yield account
    broker.call(broker.inner.vhosts.delete, account.name)
    broker.call(broker.inner.accounts.delete_users, account.name)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_what_is_needed_is_enough(account: Account, operation: Operation) -> None:
    """edge-cases.md 303, 304; amqp.md 22.13"""
    with account.open(operation.rights) as wire:
        if operation.reply is not None:
            wire.call(1, operation.request, operation.reply)
        else:
            wire.publish(1, "x1", "", b"x")
            wire.call(1, commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)


@pytest.mark.parametrize(("operation", "right"), CASES)
def test_less_is_refused(account: Account, operation: Operation, right: str) -> None:
    """edge-cases.md 301, 303, 304, 306; amqp.md 22.13"""
    with account.open(operation.rights.without(right)) as wire:
        if operation.reply is not None:
            wire.send(1, operation.request)
        else:
            wire.publish(1, "x1", "", b"x")
        close = wire.expect_channel_close(1, 403)

    name = operation.rights._asdict()[right]
    kind = "queue" if name.startswith("q") else "exchange"
    text = operation.refusal.format(u=account.name, r=right, n=name, k=kind)
    assert close.reply_text == f"ACCESS_REFUSED - {text}"
    index = operation.request.index
    assert (close.class_id, close.method_id) == (index >> 16, index & 0xFFFF)


def test_the_default_exchange_is_written_by_its_empty_name(account: Account) -> None:
    """edge-cases.md 306"""
    with account.open(Rights(write="q1")) as wire:
        wire.publish(1, "", "q1", b"x")
        wire.expect_channel_close(1, 403)


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (commands.Exchange.Declare(exchange="x1", passive=True), commands.Exchange.DeclareOk),
        (commands.Exchange.Declare(exchange="x1"), commands.Exchange.DeclareOk),
        (commands.Queue.Declare(queue="q1", passive=True), commands.Queue.DeclareOk),
        (commands.Queue.Declare(queue="q1"), commands.Queue.DeclareOk),
        (commands.Basic.Qos(prefetch_count=5), commands.Basic.QosOk),
        (commands.Confirm.Select(), commands.Confirm.SelectOk),
        (commands.Tx.Select(), commands.Tx.SelectOk),
    ],
    ids=lambda value: "" if isinstance(value, type) else None,
)
def test_some_operations_need_no_right(
    account: Account, request_: base.Frame, reply: type[base.Frame]
) -> None:
    """edge-cases.md 302; amqp.md 22.31: kept, for clients ask in this way what there is."""
    with account.open(Rights()) as wire:
        wire.call(1, request_, reply)

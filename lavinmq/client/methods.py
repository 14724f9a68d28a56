"""The methods of AMQP 0-9-1 by name: number, form of the arguments, and what answers them.

Forms are those of `_engine.encode_method`. Source: AMQP 0-9-1 specification, and the extensions
confirm, basic.nack, exchange.bind, connection.blocked and connection.update-secret.
"""

from typing import Final

_TABLE: Final = """
connection.start 10 10 BBTSS
connection.start-ok 10 11 TsSs
connection.secure 10 20 S
connection.secure-ok 10 21 S
connection.tune 10 30 HLH
connection.tune-ok 10 31 HLH
connection.open 10 40 ssb
connection.open-ok 10 41 s
connection.close 10 50 HsHH
connection.close-ok 10 51 -
connection.blocked 10 60 s
connection.unblocked 10 61 -
connection.update-secret 10 70 Ss
connection.update-secret-ok 10 71 -
channel.open 20 10 s
channel.open-ok 20 11 S
channel.flow 20 20 b
channel.flow-ok 20 21 b
channel.close 20 40 HsHH
channel.close-ok 20 41 -
exchange.declare 40 10 HssbbbbbT
exchange.declare-ok 40 11 -
exchange.delete 40 20 Hsbb
exchange.delete-ok 40 21 -
exchange.bind 40 30 HsssbT
exchange.bind-ok 40 31 -
exchange.unbind 40 40 HsssbT
exchange.unbind-ok 40 51 -
queue.declare 50 10 HsbbbbbT
queue.declare-ok 50 11 sLL
queue.bind 50 20 HsssbT
queue.bind-ok 50 21 -
queue.purge 50 30 Hsb
queue.purge-ok 50 31 L
queue.delete 50 40 Hsbbb
queue.delete-ok 50 41 L
queue.unbind 50 50 HsssT
queue.unbind-ok 50 51 -
basic.qos 60 10 LHb
basic.qos-ok 60 11 -
basic.consume 60 20 HssbbbbT
basic.consume-ok 60 21 s
basic.cancel 60 30 sb
basic.cancel-ok 60 31 s
basic.publish 60 40 Hssbb
basic.return 60 50 Hsss
basic.deliver 60 60 sQbss
basic.get 60 70 Hsb
basic.get-ok 60 71 QbssL
basic.get-empty 60 72 s
basic.ack 60 80 Qb
basic.reject 60 90 Qb
basic.recover 60 110 b
basic.recover-ok 60 111 -
basic.nack 60 120 Qbb
confirm.select 85 10 b
confirm.select-ok 85 11 -
tx.select 90 10 -
tx.select-ok 90 11 -
tx.commit 90 20 -
tx.commit-ok 90 21 -
tx.rollback 90 30 -
tx.rollback-ok 90 31 -
"""

IDS: Final[dict[str, int]] = {}
"""Class id << 16 | method id."""
FORMS: Final[dict[int, str]] = {}
NAMES: Final[dict[int, str]] = {}

for _line in _TABLE.split("\n"):
    if _line:
        _name, _class, _method, _form = _line.split()
        _number = int(_class) << 16 | int(_method)
        IDS[_name] = _number
        FORMS[_number] = "" if _form == "-" else _form
        NAMES[_number] = _name

REPLIES: Final[dict[int, frozenset[int]]] = {
    number: frozenset({IDS[f"{name}-ok"]}) for name, number in IDS.items() if f"{name}-ok" in IDS
} | {IDS["basic.get"]: frozenset({IDS["basic.get-ok"], IDS["basic.get-empty"]})}
"""What may answer a method."""


def name_of(number: int) -> str:
    """Name a method for people."""
    return NAMES.get(number, f"method {number >> 16}.{number & 0xFFFF}")

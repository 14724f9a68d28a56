"""All AMQP 0-9-1 methods: one class each, and their strict decoding and encoding.

Field names are those of the specification (`global` is `global_`); every domain is named in
`codec.py`. Connections and channels decode with this what the message path in C did not take, and
encode their replies; publishes, deliveries and settlements normally never pass here.
Sans I/O: bytes in, bytes out. Source: docs/protocol.md.
The file is longer than 500 lines because it is one flat table with a class for each line.
"""

import struct
from typing import Final

from lavinmq.amqp.codec import (
    CUT_SHORT,
    Bit,
    CutShortError,
    Long,
    LongLong,
    LongStr,
    Octet,
    Short,
    ShortStr,
    Table,
    read_arguments,
    write_arguments,
)
from lavinmq.amqp.codec import Method as Method  # part of the interface of this module
from lavinmq.arguments.bounds import UNBOUNDED, TableBounds, TableTooLargeError
from lavinmq.errors import ChannelError, ReplyCode
from lavinmq.fieldtable import EMPTY, FieldTableError

FRAME_METHOD: Final = 1
FRAME_END: Final = 0xCE

CONNECTION: Final = 10
CHANNEL: Final = 20
ACCESS: Final = 30
EXCHANGE: Final = 40
QUEUE: Final = 50
BASIC: Final = 60
CONFIRM: Final = 85
TX: Final = 90


class UnknownMethod(Exception):
    """A method that does not exist or is not supported: closes the connection with 540."""

    def __init__(self, class_id: int, method_id: int) -> None:
        super().__init__(class_id, method_id)
        self.class_id = class_id
        self.method_id = method_id

    def __str__(self) -> str:
        return f"method {self.class_id}.{self.method_id} is not implemented"


class MalformedMethod(Exception):
    """Arguments that cannot be read: closes the connection with 501, text `why`, ids 0 and 0."""

    def __init__(self, class_id: int, method_id: int, why: str) -> None:
        super().__init__(class_id, method_id, why)
        self.class_id = class_id
        self.method_id = method_id
        self.why = why

    def __str__(self) -> str:
        return f"method {self.class_id}.{self.method_id}: {self.why}"


class ConnectionStart(Method, ids=(CONNECTION, 10)):
    """The server's first word: who it is and how a client may log in."""

    version_major: Octet
    version_minor: Octet
    server_properties: Table
    mechanisms: LongStr
    locales: LongStr = b"en_US"


class ConnectionStartOk(Method, ids=(CONNECTION, 11)):
    """The client logs in."""

    client_properties: Table
    mechanism: ShortStr
    response: LongStr
    locale: ShortStr = "en_US"


class ConnectionSecure(Method, ids=(CONNECTION, 20), supported=False):
    """A further challenge of a login; never sent."""

    challenge: LongStr


class ConnectionSecureOk(Method, ids=(CONNECTION, 21), supported=False):
    """The answer to a challenge."""

    response: LongStr


class ConnectionTune(Method, ids=(CONNECTION, 30)):
    """The limits the server proposes; heartbeat in seconds."""

    channel_max: Short
    frame_max: Long
    heartbeat: Short


class ConnectionTuneOk(Method, ids=(CONNECTION, 31)):
    """The limits the client chose; heartbeat in seconds."""

    channel_max: Short
    frame_max: Long
    heartbeat: Short


class ConnectionOpen(Method, ids=(CONNECTION, 40)):
    """The client picks a virtual host."""

    virtual_host: ShortStr = "/"
    reserved_1: ShortStr = ""
    reserved_2: Bit = False


class ConnectionOpenOk(Method, ids=(CONNECTION, 41)):
    """The connection is ready."""

    reserved_1: ShortStr = ""


class ConnectionClose(Method, ids=(CONNECTION, 50)):
    """Either side ends the connection."""

    reply_code: Short
    reply_text: ShortStr
    class_id: Short = 0
    method_id: Short = 0


class ConnectionCloseOk(Method, ids=(CONNECTION, 51)):
    """Confirms the end of the connection."""


class ConnectionBlocked(Method, ids=(CONNECTION, 60)):
    """The server asks the client to stop publishing."""

    reason: ShortStr


class ConnectionUnblocked(Method, ids=(CONNECTION, 61)):
    """The client may publish again."""


class ConnectionUpdateSecret(Method, ids=(CONNECTION, 70)):
    """The client renews its token."""

    new_secret: LongStr
    reason: ShortStr


class ConnectionUpdateSecretOk(Method, ids=(CONNECTION, 71)):
    """The new token is in use."""


class ChannelOpen(Method, ids=(CHANNEL, 10)):
    """Opens a channel."""

    reserved_1: ShortStr = ""


class ChannelOpenOk(Method, ids=(CHANNEL, 11)):
    """The channel is open."""

    reserved_1: LongStr = b""


class ChannelFlow(Method, ids=(CHANNEL, 20)):
    """Pauses or resumes deliveries on the channel."""

    active: Bit


class ChannelFlowOk(Method, ids=(CHANNEL, 21)):
    """Echoes the state of channel.flow."""

    active: Bit


class ChannelClose(Method, ids=(CHANNEL, 40)):
    """Either side ends the channel."""

    reply_code: Short
    reply_text: ShortStr
    class_id: Short = 0
    method_id: Short = 0


class ChannelCloseOk(Method, ids=(CHANNEL, 41)):
    """Confirms the end of the channel."""


class AccessRequest(Method, ids=(ACCESS, 10), supported=False):
    """Asks for an access ticket; gone from the protocol."""

    realm: ShortStr
    exclusive: Bit = False
    passive: Bit = True
    active: Bit = True
    write: Bit = True
    read: Bit = True


class AccessRequestOk(Method, ids=(ACCESS, 11), supported=False):
    """Grants an access ticket."""

    reserved_1: Short = 1


class ExchangeDeclare(Method, ids=(EXCHANGE, 10)):
    """Creates an exchange or verifies that it exists."""

    reserved_1: Short = 0
    exchange: ShortStr = ""
    type: ShortStr = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    no_wait: Bit = False
    arguments: Table = EMPTY


class ExchangeDeclareOk(Method, ids=(EXCHANGE, 11)):
    """The exchange exists."""


class ExchangeDelete(Method, ids=(EXCHANGE, 20)):
    """Deletes an exchange."""

    reserved_1: Short = 0
    exchange: ShortStr = ""
    if_unused: Bit = False
    no_wait: Bit = False


class ExchangeDeleteOk(Method, ids=(EXCHANGE, 21)):
    """The exchange is gone."""


class ExchangeBind(Method, ids=(EXCHANGE, 30)):
    """Binds an exchange to an exchange."""

    reserved_1: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: Table = EMPTY


class ExchangeBindOk(Method, ids=(EXCHANGE, 31)):
    """The binding exists."""


class ExchangeUnbind(Method, ids=(EXCHANGE, 40)):
    """Unbinds an exchange from an exchange."""

    reserved_1: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: Table = EMPTY


class ExchangeUnbindOk(Method, ids=(EXCHANGE, 51)):
    """The binding is gone."""


class QueueDeclare(Method, ids=(QUEUE, 10)):
    """Creates a queue or verifies that it exists."""

    reserved_1: Short = 0
    queue: ShortStr = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    no_wait: Bit = False
    arguments: Table = EMPTY


class QueueDeclareOk(Method, ids=(QUEUE, 11)):
    """The queue exists; ready messages and consumers."""

    queue: ShortStr
    message_count: Long
    consumer_count: Long


class QueueBind(Method, ids=(QUEUE, 20)):
    """Binds a queue to an exchange."""

    reserved_1: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: Table = EMPTY


class QueueBindOk(Method, ids=(QUEUE, 21)):
    """The binding exists."""


class QueuePurge(Method, ids=(QUEUE, 30)):
    """Removes the ready messages of a queue."""

    reserved_1: Short = 0
    queue: ShortStr = ""
    no_wait: Bit = False


class QueuePurgeOk(Method, ids=(QUEUE, 31)):
    """The queue was purged of so many messages."""

    message_count: Long


class QueueDelete(Method, ids=(QUEUE, 40)):
    """Deletes a queue."""

    reserved_1: Short = 0
    queue: ShortStr = ""
    if_unused: Bit = False
    if_empty: Bit = False
    no_wait: Bit = False


class QueueDeleteOk(Method, ids=(QUEUE, 41)):
    """The queue is gone, with so many messages."""

    message_count: Long


class QueueUnbind(Method, ids=(QUEUE, 50)):
    """Unbinds a queue from an exchange."""

    reserved_1: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    arguments: Table = EMPTY


class QueueUnbindOk(Method, ids=(QUEUE, 51)):
    """The binding is gone."""


class BasicQos(Method, ids=(BASIC, 10)):
    """Limits the unacknowledged deliveries."""

    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_: Bit = False


class BasicQosOk(Method, ids=(BASIC, 11)):
    """The limit is set."""


class BasicConsume(Method, ids=(BASIC, 20)):
    """Starts a consumer."""

    reserved_1: Short = 0
    queue: ShortStr = ""
    consumer_tag: ShortStr = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    no_wait: Bit = False
    arguments: Table = EMPTY


class BasicConsumeOk(Method, ids=(BASIC, 21)):
    """The consumer exists, under this tag."""

    consumer_tag: ShortStr


class BasicCancel(Method, ids=(BASIC, 30)):
    """Ends a consumer; also sent by the server when its queue goes away."""

    consumer_tag: ShortStr
    no_wait: Bit = False


class BasicCancelOk(Method, ids=(BASIC, 31)):
    """The consumer is gone."""

    consumer_tag: ShortStr


class BasicPublish(Method, ids=(BASIC, 40)):
    """Publishes the message that follows."""

    reserved_1: Short = 0
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    mandatory: Bit = False
    immediate: Bit = False


class BasicReturn(Method, ids=(BASIC, 50)):
    """Gives an undeliverable message back to its publisher."""

    reply_code: Short
    reply_text: ShortStr
    exchange: ShortStr
    routing_key: ShortStr


class BasicDeliver(Method, ids=(BASIC, 60)):
    """Delivers the message that follows to a consumer."""

    consumer_tag: ShortStr
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr


class BasicGet(Method, ids=(BASIC, 70)):
    """Asks for one message."""

    reserved_1: Short = 0
    queue: ShortStr = ""
    no_ack: Bit = False


class BasicGetOk(Method, ids=(BASIC, 71)):
    """Delivers the message that follows; so many ready ones remain."""

    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr
    message_count: Long


class BasicGetEmpty(Method, ids=(BASIC, 72)):
    """There was no message."""

    reserved_1: ShortStr = ""


class BasicAck(Method, ids=(BASIC, 80)):
    """Settles deliveries, or confirms publishes."""

    delivery_tag: LongLong = 0
    multiple: Bit = False


class BasicReject(Method, ids=(BASIC, 90)):
    """Rejects one delivery."""

    delivery_tag: LongLong
    requeue: Bit = True


class BasicRecoverAsync(Method, ids=(BASIC, 100), supported=False):
    """Asks for redelivery without an answer; gone from the protocol."""

    requeue: Bit = False


class BasicRecover(Method, ids=(BASIC, 110)):
    """Asks for redelivery of all unacknowledged messages."""

    requeue: Bit = False


class BasicRecoverOk(Method, ids=(BASIC, 111)):
    """Redelivery has begun."""


class BasicNack(Method, ids=(BASIC, 120)):
    """Rejects deliveries, or refuses publishes."""

    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = True


class ConfirmSelect(Method, ids=(CONFIRM, 10)):
    """Turns on publisher confirms."""

    no_wait: Bit = False


class ConfirmSelectOk(Method, ids=(CONFIRM, 11)):
    """Publishes are confirmed from here on."""


class TxSelect(Method, ids=(TX, 10)):
    """Begins transactions on the channel."""


class TxSelectOk(Method, ids=(TX, 11)):
    """The channel is transactional."""


class TxCommit(Method, ids=(TX, 20)):
    """Commits publishes and settlements."""


class TxCommitOk(Method, ids=(TX, 21)):
    """The transaction is durable."""


class TxRollback(Method, ids=(TX, 30)):
    """Abandons publishes and settlements."""


class TxRollbackOk(Method, ids=(TX, 31)):
    """The transaction was abandoned."""


_IDS: Final = struct.Struct(">HH")
_FRAME_HEAD: Final = struct.Struct(">BHI")
_FRAME_TAIL: Final = bytes((FRAME_END,))

METHODS: Final = {(m.CLASS_ID, m.METHOD_ID): m for m in Method.__subclasses__()}
"""Every method by class and method id, those that are not supported included."""

_DECODED: Final = {m.IDS: m for m in METHODS.values() if m.SUPPORTED}


def decode(payload: bytes, bounds: TableBounds = UNBOUNDED) -> Method:
    """Read the payload of a method frame.

    Args: payload: class id, method id and arguments, network order; any bytes; bounds: of tables.
    Returns: an instance of one of the classes above.
    Raises: UnknownMethod (540), MalformedMethod (501), ChannelError 406 for a table above the
        bounds; nothing else, whatever the bytes are.
    """
    method = _DECODED.get(payload[:4])
    if method is None:
        raise _not_decodable(payload)
    try:
        values, end = read_arguments(method.PLAN, payload, 4, bounds)
    except CutShortError:
        raise MalformedMethod(method.CLASS_ID, method.METHOD_ID, CUT_SHORT) from None
    except TableTooLargeError as error:
        text = f"Table of arguments is too large: {error}"
        raise ChannelError(ReplyCode.PRECONDITION_FAILED, text) from error
    except FieldTableError as error:
        raise MalformedMethod(method.CLASS_ID, method.METHOD_ID, str(error)) from error
    if end != len(payload):
        why = f"Frame-end was {payload[end]}, expected {FRAME_END}"
        raise MalformedMethod(method.CLASS_ID, method.METHOD_ID, why)
    return tuple.__new__(method, values)


def encode(method: Method) -> bytes:
    """The payload of a method frame.

    Raises: ValueError when an argument does not fit: a short string over 255 bytes, a number out
        of range, a table value without an AMQP type.
    """
    return method.IDS + write_arguments(method.PLAN, method) if method else method.IDS


def encode_frame(channel: int, method: Method) -> bytes:
    """A whole method frame, ready for the socket. Raises: as `encode`."""
    return payload_frame(channel, encode(method))


def payload_frame(channel: int, payload: bytes) -> bytes:
    """A method frame around what `encode` has made, for replies that are always the same."""
    return _FRAME_HEAD.pack(FRAME_METHOD, channel, len(payload)) + payload + _FRAME_TAIL


def _not_decodable(payload: bytes) -> UnknownMethod | MalformedMethod:
    """Why these bytes belong to none of the supported methods."""
    if len(payload) < _IDS.size:
        return MalformedMethod(0, 0, CUT_SHORT)
    class_id, method_id = _IDS.unpack_from(payload)
    return UnknownMethod(class_id, method_id)

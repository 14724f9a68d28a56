# Message: one that came, and batches of them.
#
# Its properties stay bytes until somebody asks. Names that many messages share are one object.
# Not looked at by the cycle collector: a message holds bytes, text and its tracker, and a program
# may hold a million.
#
# Threads: whether it is settled is guarded by the lock of its tracker. The rest is there before
# anybody sees it, but for what is parsed.


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Message:
    """A message that was delivered, fetched or returned."""

    cdef readonly bytes body
    cdef readonly bytes raw_properties
    cdef readonly str exchange
    cdef readonly str routing_key
    cdef readonly str consumer_tag
    cdef readonly u64 delivery_tag
    cdef readonly u64 incarnation
    cdef readonly bint redelivered
    cdef bint is_settled
    cdef Tracker tracker        # None: there is nothing to settle
    cdef dict parsed
    cdef readonly u32 message_count
    cdef readonly u16 reply_code
    cdef readonly str reply_text

    def __cinit__(self):
        self.consumer_tag = self.reply_text = ""

    def __repr__(self):
        return (
            f"<Message {self.delivery_tag} of {len(self.body)} bytes,"
            f" exchange {self.exchange!r}, routing key {self.routing_key!r}>"
        )

    def __len__(self):
        return PyBytes_GET_SIZE(self.body)

    cdef dict props(self):
        cdef dict parsed
        with cython.critical_section(self):
            parsed = self.parsed
        if parsed is None:
            parsed = properties_of(self.raw_properties)
            with cython.critical_section(self):
                self.parsed = parsed
        return parsed

    @property
    def properties(self):
        """All that are set, by name."""
        return dict(self.props())

    @property
    def headers(self):
        """The headers; an empty mapping when there are none."""
        return self.props().get("headers") or {}

    @property
    def content_type(self):
        """As of the properties."""
        return self.props().get("content_type")

    @property
    def content_encoding(self):
        """As of the properties."""
        return self.props().get("content_encoding")

    @property
    def delivery_mode(self):
        """2 = persistent."""
        return self.props().get("delivery_mode")

    @property
    def priority(self):
        """0 to 255."""
        return self.props().get("priority")

    @property
    def correlation_id(self):
        """What an answer belongs to."""
        return self.props().get("correlation_id")

    @property
    def reply_to(self):
        """Where an answer goes."""
        return self.props().get("reply_to")

    @property
    def expiration(self):
        """Milliseconds, as text."""
        return self.props().get("expiration")

    @property
    def message_id(self):
        """As its publisher named it."""
        return self.props().get("message_id")

    @property
    def timestamp(self):
        """A datetime in UTC."""
        return self.props().get("timestamp")

    @property
    def type(self):
        """As its publisher named it."""
        return self.props().get("type")

    @property
    def user_id(self):
        """Checked by the broker."""
        return self.props().get("user_id")

    @property
    def app_id(self):
        """As its publisher named it."""
        return self.props().get("app_id")

    @property
    def settled(self):
        """Whether it was acknowledged or refused, or needs neither."""
        if self.tracker is None:
            return True
        with cython.critical_section(self.tracker):
            return self.is_settled

    def text(self, str encoding="utf-8", str errors="strict"):
        """The body as text."""
        return self.body.decode(encoding, errors)

    def json(self):
        """The body as JSON."""
        import json

        return json.loads(self.body)

    def parse(self):
        """The value of the body, by its content type and encoding; see `codecs`."""
        from .codecs import parse

        return parse(self)

    cdef bint settle(self, int method, bint requeue) except -1:
        if self.tracker is None:
            return False
        with cython.critical_section(self.tracker):
            if self.is_settled:
                return False
            self.is_settled = True
            return self.tracker.settle(self.incarnation, self.delivery_tag, method, requeue)

    def ack(self):
        """Acknowledge it; False if it was settled before, or its channel is gone."""
        return self.settle(BASIC_ACK, False)

    def nack(self, bint requeue=True):
        """Give it back, or (`requeue=False`) let the broker discard or dead-letter it."""
        return self.settle(BASIC_NACK, requeue)

    def reject(self, bint requeue=False):
        """As `nack`, but without going back by default."""
        return self.settle(BASIC_NACK, requeue)

    def process(self, bint requeue=False):
        """A `with` block: acknowledge at its end, refuse when it raises."""
        cdef Processing block = Processing.__new__(Processing)
        block.message = self
        block.requeue = requeue
        return block


@cython.final
cdef class Processing:
    """The block of `Message.process`; also for `async with`."""

    cdef Message message
    cdef bint requeue

    def __enter__(self):
        return self.message

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.message.settle(BASIC_ACK, False)
        else:
            self.message.settle(BASIC_NACK, self.requeue)
        return False

    async def __aenter__(self):
        return self.message

    async def __aexit__(self, kind, error, trace):
        return self.__exit__(kind, error, trace)


@cython.final
cdef class Batch:
    """Messages that came together, in order; settled together or one by one."""

    cdef readonly list messages

    def __cinit__(self, list messages):
        self.messages = messages

    def __len__(self):
        return len(self.messages)

    def __iter__(self):
        return iter(self.messages)

    def __getitem__(self, index):
        return self.messages[index]

    def bodies(self):
        """The bodies, in order."""
        return [(<Message>message).body for message in self.messages]

    def ack(self):
        """Acknowledge all that are not settled; return how many."""
        cdef Py_ssize_t n = 0
        for message in self.messages:
            n += (<Message>message).settle(BASIC_ACK, False)
        return n

    def nack(self, bint requeue=True):
        """Refuse all that are not settled; return how many."""
        cdef Py_ssize_t n = 0
        for message in self.messages:
            n += (<Message>message).settle(BASIC_NACK, requeue)
        return n

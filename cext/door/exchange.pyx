# Exchange: the class through which Python owns an exchange and binds it.


cdef dest_t* destination_of(object destination) except NULL:
    """The struct of a Queue or Exchange. Raises TypeError for anything else."""
    if isinstance(destination, Queue):
        return &(<Queue>destination).q.dest
    if isinstance(destination, Exchange):
        return &(<Exchange>destination).t.dest
    if isinstance(destination, Subscription):
        return &(<Subscription>destination).t.dest
    raise TypeError("a binding needs a Queue, an Exchange or a Subscription")


def vanish(destination) -> None:
    """Have no routing take a Queue or an Exchange any more, whatever is bound to it. Routes that
    were made before are void when the vhost's epoch moves."""
    destination_of(destination).is_gone = True


def is_gone(destination) -> bool:
    """Whether it has vanished."""
    return destination_of(destination).is_gone != 0


cdef class Subscription:
    """What a session asks for with a filter: the destination of a binding of FILTERS, which copies
    it."""
    cdef subscription_t t
    cdef Queue queue

    def __cinit__(self, Queue queue not None, u8 qos, bint no_local=False,
                  bint retain_as_published=False, u32 subscription_id=0, bint is_apart=False):
        if qos > 2 or subscription_id > LENGTH_MAX:
            raise ValueError("no subscription")
        self.queue = queue
        self.t.dest.kind = DEST_SUBSCRIPTION
        self.t.queue = &queue.q.dest
        self.t.qos = qos
        self.t.is_no_local = no_local
        self.t.keeps_retain = retain_as_published
        self.t.id = subscription_id
        self.t.is_apart = is_apart


cdef object weight_error():
    return ValueError("Routing key must to be a number")


cdef class Exchange:
    """The compiled bindings of one exchange.

    Args: `kind`, a value of kinds(); `seed` of its hash tables, and of what is random;
    `default_any`, for headers: x-match of bindings that do not say; for hash: `is_jump`, which
    algorithm, and `hash_header` or `hash_property`, what to hash instead of the routing key.
    """
    cdef exchange_t t
    cdef Exchange alternate
    cdef Queue delayed
    cdef Queue history
    cdef Queue followed
    cdef Exchange peer          # at the other end of its bridge
    cdef Vhost bridged          # whose epoch moves when that opens or closes
    cdef readonly DedupCache dedup

    def __cinit__(self, int kind, seed, bint default_any=False, bint is_jump=False,
                  bytes hash_header=None, u32 hash_property=0):
        memset(&self.t, 0, sizeof(exchange_t))
        self.t.match = match_new(kind, <u64>(seed & 0xFFFFFFFFFFFFFFFF))
        if self.t.match == NULL:
            raise MemoryError()
        self.t.version = 1
        self.t.is_plain = True
        self.t.dest.kind = DEST_EXCHANGE
        self.t.has_key_routes = (match_goes_by_key(kind) and hash_header is None
                                 and hash_property == 0)
        if default_any:
            match_set_default_any(self.t.match, True)
        if kind == MATCH_HASH:
            hash_set_up(self.t.match, is_jump, hash_header, hash_property)

    def __dealloc__(self):
        if self.t.match != NULL:
            match_free(self.t.match)
        if self.delayed is not None:
            self.delayed.q.releases = NULL
        free(self.t.name)

    def bind(self, bytes key, bytes arguments, destination) -> None:
        """Add a binding to a Queue or an Exchange; arguments are the content of a field table, for
        HASH behind the destination's name as a short string.
        Raises ValueError for a bad x-match or weight."""
        cdef dest_t* dest = destination_of(destination)
        if (dest.kind == DEST_SUBSCRIPTION) != (self.t.match.kind == MATCH_FILTERS):
            raise TypeError("only filters have subscriptions, and nothing else")
        self.t.version += 1
        self.t.binding_version += 1
        rc = match_bind(self.t.match, <const u8*>PyBytes_AS_STRING(key), <u32>len(key),
                        <const u8*>PyBytes_AS_STRING(arguments), <u32>len(arguments), dest)
        if rc == MATCH_BAD_MODE:
            raise ValueError("x-match must be 'any' or 'all'")
        if rc == MATCH_BAD_WEIGHT:
            raise weight_error()
        if rc == MATCH_TOO_HEAVY:
            raise ValueError(f"weights of a hash ring are limited to {HASH_POINTS_MAX} in all")
        if rc == MATCH_NO_MEMORY:
            raise MemoryError()
        if rc < 0:
            raise ValueError("binding arguments are malformed")
        if rc == 1 and dest.kind == DEST_EXCHANGE:
            self.t.n_exchanges += 1
        exchange_note_plain(&self.t)
        self.note_bridge()

    def unbind(self, bytes key, bytes arguments, destination) -> None:
        """Remove a binding; one that is not there is no error.
        Raises ValueError for a bad weight."""
        cdef dest_t* dest = destination_of(destination)
        self.t.version += 1
        self.t.binding_version += 1
        rc = match_unbind(self.t.match, <const u8*>PyBytes_AS_STRING(key), <u32>len(key),
                          <const u8*>PyBytes_AS_STRING(arguments), <u32>len(arguments), dest)
        if rc == MATCH_BAD_WEIGHT:
            raise weight_error()
        if rc == 1 and dest.kind == DEST_EXCHANGE:
            self.t.n_exchanges -= 1
        exchange_note_plain(&self.t)
        self.note_bridge()

    def set_alternate(self, Exchange alternate or None) -> None:
        """Where messages go that match nothing; None for nowhere. The vhost's epoch must move."""
        self.alternate = alternate
        self.t.alternate = &alternate.t if alternate is not None else NULL
        exchange_note_plain(&self.t)

    @property
    def is_internal(self) -> bool:
        """Whether clients may not publish to it."""
        return self.t.is_internal

    @is_internal.setter
    def is_internal(self, bint value) -> None:
        self.t.is_internal = value

    def set_delayed(self, bytes name, Queue delayed or None) -> None:
        """Have messages with the header x-delay wait in a queue, and then go on as if published to
        this exchange, whose name it is. None ends that. The vhost's epoch must move."""
        if self.delayed is not None:
            self.delayed.q.releases = NULL
            queue_note_special(self.delayed.q)
        self.delayed = delayed
        self.t.delayed = NULL
        if delayed is not None:
            free(self.t.name)
            self.t.name = short_string(name)
            self.t.delayed = delayed.q
            delayed.q.releases = &self.t
            delayed.q.is_special = True
        exchange_note_plain(&self.t)

    def end_delay(self) -> None:
        """Nothing waits any more from now on; what does is still released by the queue. The
        vhost's epoch must move."""
        self.t.delayed = NULL

    def set_history(self, Queue history not None, u32 most) -> None:
        """Keep the newest messages, for Replay; once, before it is used. The queue is nobody
        else's, and has no files."""
        history.q.history = history_new(&history.loop.t, most)
        if history.q.history == NULL:
            raise MemoryError()
        history.q.is_special = True
        self.history = history
        self.t.history = history.q
        self.t.has_key_routes = False
        exchange_note_plain(&self.t)

    @property
    def is_followed(self) -> bool:
        """Whether `follow` has given it a sample."""
        return self.t.followed != NULL

    def follow(self, Queue followed or None, Sample sample or None) -> None:
        """Have messages pass a sample, as long as it wants any, by way of a queue that is nobody
        else's and has no files; None twice ends that. The vhost's epoch must move."""
        if self.followed is not None:
            self.followed.sample.leave()
            self.followed.q.history.sample = NULL
            self.t.followed = NULL
            self.followed = None
        if followed is not None:
            followed.q.history = history_new(&followed.loop.t, 0)
            if followed.q.history == NULL:
                raise MemoryError()
            followed.q.history.sample = &sample.t
            followed.q.is_special = True
            followed.sample = sample
            self.followed = followed
            self.t.followed = followed.q
            sample.t.exchange = &self.t
            sample.t.closed_at = sample_counted(&sample.t)
            sample.followed = self
        exchange_note_plain(&self.t)

    cdef void note_bridge(self):
        """Bindings have changed: routes that lead over the bridge may lead elsewhere. AMQP goes
        over it only while somebody has subscribed there."""
        cdef Exchange topics
        cdef exchange_t* to
        if self.peer is None:
            return
        if self.t.match.kind != MATCH_FILTERS:
            self.peer.t.binding_version += 1
            return
        topics = self.peer
        to = &self.t if self.t.match.count else NULL
        if topics.t.bridge != to:
            topics.t.bridge = to
            topics.t.version += 1
            exchange_note_plain(&topics.t)
            self.bridged.t.epoch += 1

    def set_bridge(self, bytes name, Exchange peer or None, Vhost vhost not None) -> None:
        """Of FILTERS: share topics with an exchange of that name in AMQP, whose keys are topics
        with dots and slashes exchanged, from now on; None ends that."""
        if self.t.match.kind != MATCH_FILTERS:
            raise ValueError("not an exchange of filters")
        if self.peer is not None:
            self.peer.peer = None
            self.peer.t.bridge = NULL
            self.peer.t.version += 1
            exchange_note_plain(&self.peer.t)
        self.peer = peer
        self.bridged = vhost
        self.t.bridge = NULL
        if peer is not None:
            if peer.t.name == NULL:
                peer.t.name = short_string(name)
            peer.peer = self
            self.t.bridge = &peer.t
        self.t.binding_version += 1
        vhost.t.epoch += 1
        self.note_bridge()

    @property
    def n_kept(self) -> int:
        """Messages for who comes later."""
        return history_count(self.t.history.history) if self.t.history != NULL else 0

    def counters(self) -> dict:
        """Totals since start, by name."""
        return {
            "publish_in": self.t.n_in + self.t.n_crossed, "publish_out": self.t.n_out,
            "unroutable": self.t.n_unroutable, "dedup": self.t.n_dedup,
        }

    def set_dedup(self, DedupCache cache) -> None:
        """Do not route duplicates from now on."""
        self.dedup = cache
        self.t.dedup = &cache.d


HISTORY_MAX = MAX_HISTORY
DIRECT = MATCH_DIRECT
FANOUT = MATCH_FANOUT
TOPIC = MATCH_TOPIC
HEADERS = MATCH_HEADERS
HASH = MATCH_HASH
FILTERS = MATCH_FILTERS


def kinds() -> dict:
    """The kinds of exchanges by name."""
    cdef int kind = 0
    found = {}
    while match_kind_name(kind) != NULL:
        found[(<bytes>match_kind_name(kind)).decode()] = kind
        kind += 1
    return found

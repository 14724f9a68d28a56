# MQTT: the classes and functions through which Python opens sessions, and publishes by itself.
#
# Called by lavinmq/mqtt.
from cpython.unicode cimport PyUnicode_DecodeUTF8


cdef bytes field_bytes(slice_t field):
    """A field of a packet; None: there is none."""
    return None if field.p == NULL else PyBytes_FromStringAndSize(<char*>field.p, field.n)


cdef str field_text(slice_t field):
    """The same of one that is a text."""
    return None if field.p == NULL else PyUnicode_DecodeUTF8(<char*>field.p, field.n, NULL)


def mqtt_connect(bytes body not None) -> tuple:
    """Read what is behind the fixed header of a CONNECT, of at most 4 GiB. Returns what is wrong
    with it or None, and its fields: name and level of the protocol, flags, keep alive; properties,
    client identifier; properties, topic and payload of the will; user name, password. None: there
    is no such field."""
    cdef connect_t c
    cdef slice_t left
    cdef const char* wrong
    left.p = <const u8*>PyBytes_AS_STRING(body)
    left.n = <u32>PyBytes_GET_SIZE(body)
    wrong = connect_read(left, &c)
    if wrong != NULL:
        return ((<bytes>wrong).decode(), field_bytes(c.protocol), c.level, c.flags, 0,
                None, None, None, None, None, None, None)
    return (None, field_bytes(c.protocol), c.level, c.flags, c.keep_alive_s,
            field_bytes(c.properties), field_text(c.client_id),
            field_bytes(c.will_properties), field_text(c.will_topic), field_bytes(c.will_payload),
            field_text(c.user_name), field_bytes(c.password))


cdef class RetainedSink:
    """Who keeps retained messages; it fills `t`."""
    cdef retained_t* t


cdef class SessionSink:
    """Who keeps sessions on disk; it fills `t`."""
    cdef session_log_t* t


# Freeing one needs its Loop: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class MqttLink(Link):
    """A Link that speaks MQTT."""
    cdef Queue queue            # of its session
    cdef Exchange exchange
    cdef RetainedSink retained
    cdef SessionSink log

    cdef void dispatch(self, int event):
        cdef const loop_t* e = self.t.loop
        if event == WALK_PACKET:
            self.session.on_packet(<int>e.ev_method, <int>e.ev_a,
                                   PyBytes_FromStringAndSize(<char*>e.ev_data, e.ev_len))
        elif event == WALK_BAD_PACKET:
            text = PyBytes_FromStringAndSize(<char*>e.ev_data, e.ev_len)
            self.session.on_packet_error(<int>e.ev_method, text.decode())
        elif event == WALK_CROWD:
            self.t.crowd_bytes = 0
            self.stop(STOP_CROWD)
            self.loop.hold_crowd(self)
        elif event == WALK_TOPIC:
            self.session.on_topic_miss(
                0, PyBytes_FromStringAndSize(<char*>e.ev_data, e.ev_len))
        else:
            Link.dispatch(self, event)

    cdef void leave(self):
        mqtt_leave(&self.t)
        Link.leave(self)

    def mqtt_open(self, int version, Queue session not None, Exchange exchange not None, *,
                  u32 receive_maximum=65535, u32 receive_maximum_in=65535,
                  u16 alias_maximum_in=0, u16 alias_maximum_out=0,
                  u32 maximum_packet_out=LENGTH_MAX + 5, u32 maximum_packet_in=LENGTH_MAX,
                  bint checks_topics=False, bint is_persistent=False, bint crosses=False,
                  RetainedSink retained or None=None, SessionSink log or None=None) -> None:
        """Begin the session: publishes are taken from now on, and messages of its queue delivered.

        Args: `version` 3, 4 or 5; `session`, its queue; `exchange`, of FILTERS, to which it
        publishes; `receive_maximum`, publishes of QoS 1 and 2 that the client takes unacknowledged,
        and `receive_maximum_in`, that are taken of it: one more is a mistake of version 5;
        `alias_maximum_in` and `_out`, topic aliases of the client and of ours;
        `maximum_packet_out`, bytes of a packet that the client takes; `maximum_packet_in`, bytes
        behind the fixed header of one that is taken of it; `checks_topics`, whether `on_topic_miss`
        is asked; `is_persistent`, whether the session outlives the connection; `crosses`, whether
        publishes cross the bridge of the exchange, where `on_topic_miss` is not asked; who keeps
        retained messages and sessions, if anybody."""
        cdef mqtt_t* s
        if self.t.mqtt != NULL or not 3 <= version <= 5 or not 0 < receive_maximum < 65536:
            raise ValueError("no session of MQTT")
        if exchange.t.match.kind != MATCH_FILTERS:
            raise ValueError("not an exchange of filters")
        if queue_session(session.q) == NULL:
            raise MemoryError()
        session.q.deliver = mqtt_queue_deliver
        s = mqtt_fall_asleep(NULL)
        if s == NULL:
            raise MemoryError()
        s.version = <u8>version
        s.receive_maximum = receive_maximum
        s.queue = session.q
        s.session = session.q.session
        s.exchange = &exchange.t
        s.checks_topics = checks_topics
        s.crosses = crosses
        s.is_persistent = is_persistent
        s.receive_maximum_in = receive_maximum_in if version == 5 and receive_maximum_in else 65535
        s.alias_maximum_in = alias_maximum_in
        s.alias_maximum_out = alias_maximum_out
        s.maximum_in = maximum_packet_in if maximum_packet_in < LENGTH_MAX else <u32>LENGTH_MAX
        s.maximum_out = maximum_packet_out
        s.retained = retained.t if retained is not None else NULL
        s.log = log.t if log is not None else NULL
        self.queue = session
        self.exchange = exchange
        self.retained = retained
        self.log = log
        self.t.mqtt = s
        self.t.state = LINK_OPEN
        self.t.frame_max = BLOCK_SIZE
        if session.q.ready == 0 and s.session.n_returned and not session.q.is_closed:
            session_forget_returned(s.session)
        s.session.link = &self.t
        session.q.n_consumers += 1
        session.q.refs += 1
        session.q.is_asleep = True
        if session.q.ready or session.q.n_orphans or s.session.sent.n or s.session.n_returned:
            s = self.awake()
            released_resend(&self.t, s)
        self.set_timeout(0)
        self.loop.kick()

    cdef mqtt_t* awake(self) except NULL:
        """What its link has, with a channel."""
        cdef mqtt_t* s = self.t.mqtt
        if s.chan == NULL:
            s = mqtt_wake(&self.t)
        if s == NULL:
            raise MemoryError()
        return s

    cdef void look(self):
        mqtt_look(&self.t)

    @property
    def is_asleep(self) -> bool:
        """Whether it has no channel, since nothing comes or goes; see wake.pyx."""
        return self.t.mqtt != NULL and self.t.mqtt.chan == NULL

    def mqtt_close(self) -> None:
        """End the session: what is unacknowledged goes back to its queue, with its packet ids."""
        if self.t.mqtt == NULL:
            return
        mqtt_leave(&self.t)
        if link_channel(&self.t, 1) != NULL:
            self.close_channel(1, False)
        self.t.state = LINK_CLOSING

    def mqtt_allow(self, bytes topic not None, bint is_allowed, bint crosses=False) -> None:
        """Answer `on_topic_miss`: whether the client may publish to a topic, if it may until the
        vhost's epoch moves; `crosses`: also to the exchange behind the bridge. What it may not is
        dropped, and acknowledged with a reason code where there are any."""
        if self.t.mqtt == NULL:
            return
        if is_allowed:
            self.allow(ASK_PUBLISH, b"", [topic], self.exchange.peer if crosses else None)
        else:
            self.t.mqtt.is_denied = True

    def mqtt_cross(self, bint crosses, bint checks_topics) -> None:
        """Rights have changed: both are so from now on, see `mqtt_open`."""
        if self.t.mqtt != NULL:
            self.t.mqtt.crosses = crosses
            self.t.mqtt.checks_topics = checks_topics
            if self.t.mqtt.chan != NULL:
                self.t.mqtt.topic_len = 0

    def mqtt_take(self, Queue queue not None, bytes tag not None, u8 qos,
                  u32 subscription_id=0) -> Consumer:
        """Become a consumer of a queue or a stream of AMQP, known there by a tag of 250 bytes at
        most. It has to be started; its `cancel` ends it. With QoS 0 nothing is acknowledged."""
        cdef Consumer consumer
        if self.t.mqtt == NULL or len(tag) > 250:
            raise ValueError("no session of MQTT, or a long tag")
        self.awake()
        consumer = self.add_consumer(1, queue, tag, qos == 0)
        consumer_taken(consumer.k)[0] = qos
        put_be32(consumer_taken(consumer.k) + 1, subscription_id)
        return consumer

    def mqtt_share(self, Queue queue not None, u8 qos, u32 subscription_id=0) -> Consumer:
        """Become a member of a shared subscription, whose queue this is: a consumer that has begun.
        Its `cancel` ends that."""
        cdef Consumer consumer
        if self.t.mqtt == NULL:
            raise ValueError("no session of MQTT")
        self.awake()
        queue.q.deliver = mqtt_queue_deliver
        tag = bytes((SHARED_TAG, qos)) + subscription_id.to_bytes(4, "big")
        consumer = self.add_consumer(1, queue, tag, False)
        consumer.start()
        self.loop.kick()
        return consumer

    def mqtt_counters(self) -> dict:
        """Numbers of the session, by name."""
        cdef mqtt_t* s = self.t.mqtt
        if s == NULL:
            return {}
        return {
            "publish": s.n_published, "denied": s.n_denied, "dropped": s.session.n_dropped,
            "in_flight": s.session.sent.n, "received": s.session.received.n,
        }


cdef publish_t publish_of(bytes topic, bytes payload, int qos, bint retain, bytes properties,
                          i64 expiry_s):
    """The struct of a message of the broker itself. Raises ValueError."""
    cdef publish_t m
    memset(&m, 0, sizeof(publish_t))
    m.topic = <const u8*>PyBytes_AS_STRING(topic)
    m.topic_len = <u32>len(topic)
    if len(topic) > TOPIC_MAX or not topic_is_valid(m.topic, m.topic_len):
        raise ValueError("no topic")
    if not 0 <= qos <= 2:
        raise ValueError("no QoS")
    m.body = <const u8*>PyBytes_AS_STRING(payload)
    m.body_len = <u64>len(payload)
    m.props = <const u8*>PyBytes_AS_STRING(properties)
    m.props_len = <u32>len(properties)
    m.qos = <u8>qos
    m.is_retained = retain
    m.has_expiry = expiry_s >= 0
    m.expiry_s = <u32>expiry_s if expiry_s >= 0 else 0
    return m


cdef class MqttPublish:
    """A message of the broker itself on its way to all that an exchange of FILTERS matches: a will,
    a number of the broker's. Each step is a portion."""

    cdef Loop loop
    cdef Exchange exchange
    cdef tuple held             # what m points into
    cdef publish_t m
    cdef mqtt_t s
    cdef chan_t* c

    def __cinit__(self, Loop loop not None, Exchange exchange not None, bytes topic not None,
                  bytes payload not None, int qos, bint retain, bytes properties not None=b"",
                  i64 expiry_s=-1, bint crosses=False):
        memset(&self.s, 0, sizeof(mqtt_t))
        self.c = NULL
        self.loop = loop
        self.exchange = exchange
        self.held = topic, payload, properties
        self.m = publish_of(topic, payload, qos, retain, properties, expiry_s)
        if exchange.t.match.kind != MATCH_FILTERS:
            raise ValueError("not an exchange of filters")
        self.c = channel_new(&loop.t.nowhere, 1, 0)
        if self.c == NULL:
            raise MemoryError()
        self.c.is_confirm = qos > 0     # so that a sync is wanted; nobody is answered
        self.s.chan = self.c
        self.s.exchange = &exchange.t
        self.s.crosses = crosses

    def __dealloc__(self):
        if self.c == NULL:
            return
        mqtt_drop_folds(&self.s)
        free(self.s.names)
        free(self.s.folds)
        free(self.s.ids)
        free(self.s.composed)
        bridge_free(&self.s)
        channel_free(self.c)

    def __iter__(self):
        return self

    def __next__(self) -> None:
        """Go on for as long as others can wait."""
        self.c.targets.pause = route_pause
        self.c.targets.pauser = &self.loop.t
        loop_clock(&self.loop.t)
        self.loop.open_portion()
        if self.go_on():
            raise StopIteration

    cdef bint go_on(self) except -1:
        """Whether all have it."""
        cdef int rc
        with nogil:
            rc = mqtt_publish_any(&self.loop.t.nowhere, &self.s, &self.m)
        self.loop.kick()
        if rc != PUBLISHED and rc != PUBLISH_TURN:
            raise MemoryError()
        return rc == PUBLISHED


def mqtt_publish(Loop loop, Exchange exchange, bytes topic, bytes payload, int qos, bint retain,
                 bytes properties=b"", i64 expiry_s=-1, bint crosses=False) -> int:
    """Publish as MqttPublish, in one go; `crosses`: also behind its bridge. Returns how many have
    got it. Who keeps retained messages is not told. `Loop.after_sync` says when one of QoS 1 or 2
    is safe."""
    cdef MqttPublish publish = MqttPublish(
        loop, exchange, topic, payload, qos, retain, properties, expiry_s, crosses)
    publish.go_on()
    return publish.s.stored.n


def mqtt_enqueue(Queue queue not None, bytes topic not None, bytes payload not None, int qos,
                 bint retain, bytes properties not None=b"", i64 expiry_s=-1, int granted=2,
                 u32 subscription_id=0) -> bool:
    """Give one message to one session. Returns whether it was taken, by its client or its queue."""
    cdef publish_t m = publish_of(topic, payload, qos, retain, properties, expiry_s)
    cdef bint is_taken = mqtt_give_one(queue.q, &m, <u8>granted, subscription_id)
    if queue.loop.t.over != NULL:
        loop_enforce(&queue.loop.t)
    queue.loop.kick()
    return is_taken


cdef Protocol mqtt_spoken():
    """The table of MQTT."""
    cdef Protocol spoken = Protocol.__new__(Protocol)
    mqtt_protocol(&spoken.t)
    return spoken


MQTT = mqtt_spoken()

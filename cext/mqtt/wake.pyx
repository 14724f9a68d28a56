# Wake: a client that sends nothing and gets nothing has no channel, no consumer and no buffers.
#
# Most of very many clients are so at any time. Its queue counts its consumer meanwhile, so that
# nobody takes the client for absent, and the tick delivers from it as if it were in the ring. The
# first message, either way, gives it what it needs; protocol.pyx takes it away again.
# Called by walk.pyx, publish.pyx, deliver.pyx and the door.

cdef extern from *:
    """
    /* Not inlined, or the compiler warns of a struct that is larger than its memory. */
    static __attribute__((noinline)) void *mqtt_part(size_t size) { return calloc(1, size); }
    """
    void* mqtt_part(size_t size) noexcept nogil

cdef enum:
    QUIET_LOOKS = 3             # a second apart, after which a client sleeps


cdef inline size_t mqtt_asleep_size() noexcept nogil:
    """Bytes of a mqtt_t whose client is asleep."""
    cdef mqtt_t s
    return <size_t>(<u8*>&s.consumer - <u8*>&s)


cdef mqtt_t* mqtt_fall_asleep(mqtt_t* s) noexcept nogil:
    """Without what only one that is awake has, which must be freed; NULL: make one. NULL without
    memory."""
    cdef mqtt_t* small
    if s == NULL:
        return <mqtt_t*>mqtt_part(mqtt_asleep_size())
    s.chan = NULL
    s.n_quiet = 0
    small = <mqtt_t*>realloc(s, mqtt_asleep_size())
    return small if small != NULL else s


cdef mqtt_t* mqtt_wake(link_t* l) noexcept nogil:
    """Give a client that is asleep its channel and its place at its queue. What its link has now;
    NULL without memory, and it sleeps on."""
    cdef mqtt_t* s = <mqtt_t*>realloc(l.mqtt, sizeof(mqtt_t))
    cdef chan_t* c
    if s == NULL:
        return NULL
    l.mqtt = s
    memset(&s.consumer, 0, sizeof(mqtt_t) - mqtt_asleep_size())
    c = channel_new(l, 1, 0)
    if c == NULL:
        return NULL
    if link_add_channel(l, c):
        channel_free(c)
        return NULL
    c.global_prefetch = s.receive_maximum
    s.consumer = channel_add_consumer(c, s.queue, <const u8*>b"", 0, False, 0)
    if s.consumer == NULL:
        link_remove_channel(l, c)
        channel_free(c)
        return NULL
    s.chan = c
    s.queue.is_asleep = False
    s.queue.n_consumers -= 1        # it was counted all the time
    queue_unref(s.queue)            # the consumer has its own
    channel_start_consumer(s.consumer)
    return s


cdef inline consumer_t* queue_wake(queue_t* q) noexcept nogil:
    """Have the client of q be there, for a message. NULL: none is asleep, or there is no memory."""
    if not q.is_asleep or mqtt_wake(q.session.link) == NULL:
        return NULL
    return q.able

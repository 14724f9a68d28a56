# Match: the compiled bindings of one exchange, from a routing key or headers to destinations.
#
# Owns: one match_t per exchange, in plain C memory. Python binds and unbinds; the route cache calls
# match_route when it does not know a key, headers exchanges call it for every message. A match_t
# and the destinations it names belong to one thread. Nothing here touches Python, copies a
# destination or frees one: whoever deletes a destination unbinds it first.
#
# The kinds: keys.pyx has literal keys and fanout, topic.pyx wildcards, headers.pyx headers,
# hash_ring.pyx consistent hashing, pick.pyx what takes any one destination, filters.pyx what MQTT
# subscribes to.


cdef match_t* match_new(int kind, u64 seed) noexcept nogil:
    """An empty matcher of a match_kind; NULL when out of memory. *seed*: random, per process."""
    cdef match_t* m = <match_t*>calloc(1, sizeof(match_t))
    if m == NULL:
        return NULL
    m.kind = kind
    m.seed = seed
    if kind == MATCH_HASH:
        m.hasher = <hasher_t*>calloc(1, sizeof(hasher_t))
        if m.hasher == NULL:
            free(m)
            return NULL
    return m


cdef const char* match_kind_name(int kind) noexcept nogil:
    """What Python calls a match_kind; NULL for a number that is none."""
    if kind == MATCH_DIRECT:
        return "direct"
    if kind == MATCH_FANOUT:
        return "fanout"
    if kind == MATCH_TOPIC:
        return "topic"
    if kind == MATCH_HEADERS:
        return "headers"
    if kind == MATCH_HASH:
        return "hash"
    if kind == MATCH_RANDOM:
        return "random"
    if kind == MATCH_MODULUS:
        return "modulus"
    if kind == MATCH_FILTERS:
        return "filters"
    if kind == MATCH_REVERSED:
        return "reversed"
    return NULL


cdef bint match_goes_by_key(int kind) noexcept nogil:
    """Whether equal routing keys have equal routes as long as no binding changes."""
    return kind != MATCH_HEADERS and kind != MATCH_RANDOM


cdef void match_table_free(match_table_t* table, int what) noexcept nogil:
    """Free the slots and what they hold: *what* 0 keys, 1 topic nodes, 2 bindings."""
    cdef match_link_t* link
    cdef match_link_t* after
    cdef u32 i
    for i in range(table.n_slots):
        link = table.slots[i]
        while link != NULL:
            after = link.next
            if what == 0:
                match_dests_clear(&(<match_key_t*>link).dests)
            if what == 1:
                topic_free(topic_node_of(link))
                free(topic_node_of(link))
            else:
                free(link)
            link = after
    free(table.slots)


cdef void match_free(match_t* m) noexcept nogil:
    """Free the matcher, not the destinations. NULL is allowed."""
    if m == NULL:
        return
    if m.kind == MATCH_FILTERS:
        filters_free(m)
    match_table_free(&m.keys, 0)
    match_table_free(&m.nodes, 1)
    match_table_free(&m.bindings, 2)
    free(m.pairs.slots)
    hash_free(m.hasher)
    topic_free(&m.root)
    match_dests_clear(&m.every)
    match_dests_clear(&m.bare)
    free(m)


cdef void match_set_default_any(match_t* m, bint is_any) noexcept nogil:
    """What a headers binding without x-match means; set before the first binding."""
    m.default_any = is_any


cdef int match_bind(match_t* m, const u8* key, u32 key_len, const u8* args, u32 args_len,
                    dest_t* dest) noexcept nogil:
    """Add a binding.

    Args: *args*, content of the binding's field table without its length (headers and hash only;
    identity compares its bytes, so the caller normalises), for hash behind the destination's name
    as a short string. Keeps *dest* until match_unbind.
    Returns a match_result: MATCH_ADDED, MATCH_UNCHANGED, MATCH_NO_MEMORY, MATCH_BAD_MODE (406),
    MATCH_BAD_INPUT, MATCH_BAD_WEIGHT (406), MATCH_TOO_HEAVY (406).
    """
    cdef int result
    if m.kind == MATCH_DIRECT:
        result = match_key_bind(m, key, key_len, dest)
    elif m.kind == MATCH_FANOUT:
        result = match_fanout_bind(m, key, key_len, dest)
    elif m.kind == MATCH_TOPIC:
        result = topic_bind(m, key, key_len, dest)
    elif m.kind == MATCH_HASH:
        result = hash_bind(m, key, key_len, args, args_len, dest)
    elif m.kind == MATCH_RANDOM or m.kind == MATCH_MODULUS:
        result = pick_bind(m, dest)
    elif m.kind == MATCH_FILTERS:
        result = filter_bind(m, key, key_len, dest)
    elif m.kind == MATCH_REVERSED:
        result = reversed_bind(m, key, key_len, dest)
    else:
        result = header_bind(m, key, key_len, args, args_len, dest)
    if result == MATCH_ADDED:
        m.count += 1
    return result


cdef int match_unbind(match_t* m, const u8* key, u32 key_len, const u8* args, u32 args_len,
                      dest_t* dest) noexcept nogil:
    """Remove a binding: 1 removed, 0 there was none; MATCH_BAD_WEIGHT when it never could be."""
    cdef int result
    if m.kind == MATCH_DIRECT:
        result = match_key_unbind(m, key, key_len, dest)
    elif m.kind == MATCH_FANOUT:
        result = match_fanout_unbind(m, key, key_len, dest)
    elif m.kind == MATCH_TOPIC:
        result = topic_unbind(m, key, key_len, dest)
    elif m.kind == MATCH_HASH:
        result = hash_unbind(m, key, key_len, args, args_len, dest)
    elif m.kind == MATCH_RANDOM or m.kind == MATCH_MODULUS:
        result = pick_unbind(m, dest)
    elif m.kind == MATCH_FILTERS:
        result = filter_unbind(m, key, key_len, dest)
    elif m.kind == MATCH_REVERSED:
        result = match_key_unbind(m, key, key_len, dest)
    else:
        result = header_unbind(m, key, key_len, args, args_len, dest)
    if result == MATCH_ADDED:
        m.count -= 1
    return result


# hot
cdef int match_route(const match_t* m, const u8* key, u32 key_len, const u8* props, u32 headers_at,
                     targets_t* out) noexcept nogil:
    """Append the destinations of one message that this routing has not got yet.

    Args: *props*, its properties in wire order, and the offset of the headers table's length in
    them, 0 for none.
    Returns 0, -1 when out of memory, MATCH_BAD_HEADER (406), or MATCH_TIRED when the turn is over:
    then the same call goes on. Source: docs/protocol.md.
    Cost: direct 10-25 ns, topic 20-90 ns, headers 60-90 ns for four; perf/micro/match.py.
    """
    if m.kind == MATCH_DIRECT:
        return match_key_route(m, key, key_len, out)
    if m.kind == MATCH_FANOUT:
        return match_take_from(&m.every, &out.cursor.at, m.keys.n == 1, out)
    if m.kind == MATCH_TOPIC:
        return topic_route(m, key, key_len, out)
    out.work += 4
    if m.kind == MATCH_HASH:
        return hash_route(m, key, key_len, props, headers_at, out)
    if m.kind == MATCH_RANDOM or m.kind == MATCH_MODULUS:
        return pick_route(m, key, key_len, out)
    if m.kind == MATCH_REVERSED:
        return reversed_route(m, key, key_len, out)
    if m.kind == MATCH_FILTERS:
        return 0                # these destinations are no queues: see filters_route
    if headers_at == 0:
        return header_route(m, NULL, 0, out)
    return header_route(m, props + headers_at + 4, be32(props + headers_at), out)

# Pick: exchanges whose bindings only say where: each message goes to one of the destinations, to
# any (random), or to the one that the hash of the routing key names (modulus).
#
# A destination is bound once, whatever keys its bindings have; the caller counts them. The order of
# binding is kept, so that a key finds the same one after a restart that has not changed bindings.
# Part of match.pyx, which calls it: routing allocates nothing, binding may.
# Source: documentation of RabbitMQ's exchanges x-random, x-local-random and x-modulus-hash.


cdef int pick_bind(match_t* m, dest_t* dest) noexcept nogil:
    """See match_bind."""
    if match_dests_find(&m.every, dest) >= 0:
        return MATCH_UNCHANGED
    return MATCH_NO_MEMORY if match_dests_add(&m.every, dest) < 0 else MATCH_ADDED


cdef int pick_unbind(match_t* m, dest_t* dest) noexcept nogil:
    """See match_unbind."""
    return MATCH_ADDED if match_dests_remove(&m.every, dest) else MATCH_UNCHANGED


# hot
cdef inline u32 pick_random(u64* state, u64 seed, u32 n) noexcept nogil:
    """One of n, each as likely. Knuth's linear congruence, of which the high bits are good; any odd
    number may be added, and the seed of the process makes it a sequence of its own."""
    state[0] = state[0] * <u64>6364136223846793005 + (seed << 1 | 1)
    return <u32>(((state[0] >> 32) * n) >> 32)


# hot
cdef int pick_route(const match_t* m, const u8* key, u32 key_len, targets_t* out) noexcept nogil:
    """The one destination of a message; of one that is deleted and still bound, the next one.
    0, or MATCH_NO_MEMORY. Cost: 5 ns, modulus 2 ns per byte of the key."""
    cdef dest_t** items = match_dests_items(&m.every)
    cdef u32 n = m.every.n, at, _tried
    if n == 0:
        return 0
    if m.kind == MATCH_RANDOM:
        at = pick_random(&out.reached.random, m.seed, n)
    else:
        at = crc32(0, key, key_len) % n
    for _tried in range(n):
        if not items[at].is_gone:
            return match_take(out, items[at])
        at = at + 1 if at + 1 < n else 0
    return 0

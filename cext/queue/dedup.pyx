# Dedup: the keys that an exchange or a queue has seen, the oldest of which make way for new ones.
#
# A key is the value of a message's header. What is kept of it is its SipHash under a salt of the
# cache's own: 128 bits that nobody outside can steer. That two keys of a full cache are taken for
# the same has a chance of 2^-108 per message, less than that of an undetected error of the memory;
# and who knew two such keys would gain nothing that sending the same key twice does not give. So
# keys may be as long as they like and cost 48 bytes each.
#
# The caller asks `dedup_seen` before it stores a message, and says `dedup_remember` once it is
# stored: what was refused may come again. Nothing leaves the cache but the oldest key; one that has
# expired is not seen any more, and is renewed when its message comes again. The file is in
# dedup_log.pyx. Called by publish.pyx, features.pyx and dead_letter.pyx.
# Source: docs/deduplication.md.

cdef extern from *:
    """
    #define DEDUP_FOREVER INT64_MAX
    """
    i64 DEDUP_FOREVER

cdef enum:
    DEDUP_FIRST = 32            # entries of a cache that begins
    DEDUP_MIN = 129             # with entry 0, granted whatever others have taken
    DEDUP_UNITS = 100           # of work, to look for a message and to remember it


# ---- keys ----------------------------------------------------------------------------------------

cdef const u8* message_header(const msg_t* m, const u8* name, u32 len) noexcept nogil:
    """The value of a header at its type, or NULL: there is none, or it is void."""
    cdef const u8* entry
    if m.headers_at == 0:
        return NULL
    entry = table_find(m.props + m.headers_at + 4, m.headers_len, name, len)
    if entry == NULL or entry[1 + entry[0]] == c'V':
        return NULL
    return entry + 1 + entry[0]


# hot
cdef bint dedup_key(const dedup_t* d, const msg_t* m, u64* key) noexcept nogil:
    """Hash the key of m; False when it has none. Numbers of the same value are the same key,
    whatever their type. Cost: 3 ns per header and 70 ns."""
    cdef const u8* value = message_header(m, d.header, d.header_len)
    cdef header_number_t number
    cdef u8 same[9]
    cdef const u8* end
    if value == NULL:
        return False
    if header_number(value, &number):
        same[0] = c'n' if number.is_whole else c'r'     # letters that are no type
        memcpy(&same[1], &number.whole if number.is_whole else <void*>&number.real, 8)
        siphash(d.salt, same, 9, key)
        return True
    end = m.props + m.headers_at + 4 + m.headers_len
    siphash(d.salt, value, value_size(value, end - value), key)
    return True


cdef i64 dedup_until(const dedup_t* d, const msg_t* m, i64 now_ms) noexcept nogil:
    """When the key of m expires: after the time that it says, or that the cache says."""
    cdef const u8* value = message_header(m, b"x-cache-ttl", 11)
    cdef header_number_t number
    cdef i64 ttl_ms = d.ttl_ms
    if value != NULL and header_number(value, &number) and number.is_whole:
        ttl_ms = number.whole if number.whole > 0 else 0
    if ttl_ms < 0 or ttl_ms > DEDUP_FOREVER - now_ms:
        return DEDUP_FOREVER
    return now_ms + ttl_ms


# ---- the table and the ring of ages --------------------------------------------------------------
# With each entry comes a bucket, which takes its share of one that was there before. So no key has
# to wait until hundreds of thousands of others are in new buckets.

cdef inline u32* dedup_bucket(const dedup_t* d, const u64* key) noexcept nogil:
    """The bucket of a key."""
    cdef u32 at = <u32>key[0] & d.mask
    return &d.buckets[at if at < d.n_buckets else at & (d.mask >> 1)]


# hot
cdef inline u32 dedup_find(const dedup_t* d, const u64* key) noexcept nogil:
    """The entry of a key, 0 when there is none."""
    cdef u32 at
    if d.n == 0:
        return 0
    at = dedup_bucket(d, key)[0]
    while at and (d.entries[at].key[0] != key[0] or d.entries[at].key[1] != key[1]):
        at = d.entries[at].following
    return at


cdef void dedup_link(dedup_t* d, u32 at) noexcept nogil:
    """Put an entry into its bucket."""
    cdef u32* bucket = dedup_bucket(d, d.entries[at].key)
    d.entries[at].following = bucket[0]
    bucket[0] = at


cdef void dedup_take_out(dedup_t* d, u32 at) noexcept nogil:
    """Forget a key; its entry is free."""
    cdef dedup_entry_t* entry = &d.entries[at]
    cdef u32* link = dedup_bucket(d, entry.key)
    while link[0] != at:
        link = &d.entries[link[0]].following
    link[0] = entry.following
    d.entries[entry.older].newer = entry.newer
    d.entries[entry.newer].older = entry.older
    if d.rewrite != NULL and d.rewrite.done == at:
        d.rewrite.done = entry.older
    if d.unwritten == at:
        d.unwritten = entry.newer
    entry.following = d.free
    d.free = at
    d.n -= 1


cdef bint dedup_grow(dedup_t* d) noexcept nogil:
    """Make room for twice as many keys; False when there is no memory for them."""
    cdef u64 cap = d.cap * 2 if d.cap else DEDUP_FIRST, cap_buckets = DEDUP_FIRST, more
    cdef dedup_entry_t* entries
    cdef u32* buckets
    if cap > <u64>d.limit + 1:
        cap = <u64>d.limit + 1
    while cap_buckets < cap:
        cap_buckets *= 2
    more = (cap - d.cap) * sizeof(dedup_entry_t) + (cap_buckets - d.cap_buckets) * sizeof(u32)
    if cap > DEDUP_MIN and d.budget.used + more > d.budget.most:
        return False
    buckets = <u32*>realloc(d.buckets, cap_buckets * sizeof(u32))
    if buckets == NULL:
        return False
    d.buckets = buckets
    entries = <dedup_entry_t*>realloc(d.entries, cap * sizeof(dedup_entry_t))
    if entries == NULL:
        return False
    d.entries = entries
    if d.cap == 0:
        entries[0].older = entries[0].newer = 0
        buckets[0] = 0
        d.n_buckets = 1
    d.cap = <u32>cap
    d.cap_buckets = <u32>cap_buckets
    d.budget.used += more
    return True


cdef void dedup_split(dedup_t* d) noexcept nogil:
    """Add a bucket, for which there is room."""
    cdef u32 added = d.n_buckets, at
    cdef u32* link
    d.n_buckets += 1
    if added > d.mask:
        d.mask = d.mask * 2 + 1
    d.buckets[added] = 0
    link = &d.buckets[added & (d.mask >> 1)]
    while link[0]:
        at = link[0]
        if d.entries[at].key[0] & d.mask == added:
            link[0] = d.entries[at].following
            dedup_link(d, at)
        else:
            link = &d.entries[at].following


cdef u32 dedup_free_entry(dedup_t* d) noexcept nogil:
    """An entry for a new key: that of the oldest one when there can be no more. 0 = none."""
    cdef u32 at
    if d.free == 0 and d.n < d.limit and (d.n_used + 1 < d.cap or dedup_grow(d)):
        d.n_used += 1
        if d.n_used > d.n_buckets:
            dedup_split(d)
        return d.n_used
    if d.free == 0:
        if d.n == 0:
            return 0
        dedup_take_out(d, d.entries[0].newer)
    at = d.free
    d.free = d.entries[at].following
    return at


# hot
cdef u32 dedup_insert(dedup_t* d, const u64* key, i64 until_ms) noexcept nogil:
    """Make a key the newest. Returns its entry, 0 when there is no memory."""
    cdef u32 at = dedup_find(d, key)
    cdef dedup_entry_t* entry
    if at:
        dedup_take_out(d, at)
    at = dedup_free_entry(d)
    if at == 0:
        return 0
    entry = &d.entries[at]
    entry.key[0] = key[0]
    entry.key[1] = key[1]
    entry.until_ms = until_ms
    entry.is_new = False
    entry.is_kept = True
    entry.newer = 0
    entry.older = d.entries[0].older
    d.entries[entry.older].newer = at
    d.entries[0].older = at
    dedup_link(d, at)
    d.n += 1
    return at


# ---- what callers ask ----------------------------------------------------------------------------

# hot
cdef u32 dedup_seen(const dedup_t* d, const msg_t* m, i64 now_ms) noexcept nogil:
    """The entry of the key of m, which is a duplicate then; 0 when it is not remembered.

    Cost: 100 ns and 3 ns per header."""
    cdef u64 key[2]
    cdef u32 at
    if d.n == 0 or not dedup_key(d, m, key):
        return 0
    at = dedup_find(d, key)
    return at if at and d.entries[at].until_ms > now_ms else 0


# hot
cdef void dedup_remember(dedup_t* d, const msg_t* m, i64 now_ms, bint is_stored) noexcept nogil:
    """m has been taken: remember its key, if it has one. Without memory it is not.

    `is_stored` says whether a durable queue took it: only then may the key outlive the broker.
    Cost: 120 ns and 3 ns per header."""
    cdef u64 key[2]
    cdef i64 until_ms
    cdef u32 at
    if d.limit == 0 or not dedup_key(d, m, key):
        return
    until_ms = dedup_until(d, m, now_ms)
    if until_ms <= now_ms:
        return
    at = dedup_insert(d, key, until_ms)
    if at == 0:
        return
    d.entries[at].is_new = True
    d.entries[at].is_kept = is_stored
    if d.unwritten == 0:
        d.unwritten = at
    if not d.is_dirty and d.loop != NULL:
        d.is_dirty = True
        d.dirty_next = d.loop.dirty_dedups
        d.loop.dirty_dedups = d


cdef void dedup_forget_new(dedup_t* d) noexcept nogil:
    """The messages of this tick may be lost: their keys must not stop them from coming again."""
    if d.cap == 0:
        return
    while d.entries[0].older and d.entries[d.entries[0].older].is_new:
        dedup_take_out(d, d.entries[0].older)


cdef void loop_forget_new_keys(loop_t* loop, queue_t* broken) noexcept nogil:
    """A queue broke: forget what it, or an exchange that may have led to it, has just noted."""
    cdef dedup_t* d = loop.dirty_dedups
    while d != NULL:
        if d.queue == NULL or d.queue == broken:
            dedup_forget_new(d)
        d = d.dirty_next

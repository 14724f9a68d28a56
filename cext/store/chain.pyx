# Chain: where records go on behind bytes that are no record, in memory.
#
# Records have no mark and no checksum: a single one cannot be told from chance. What is believed is
# a chain of plausible records that runs exactly to the end of the data. Called by salvage.pyx of
# the broker, and by the scanner of Spark tasks.
# Source: docs/formats.md.
cdef enum:
    DAY_MS = 86_400_000

cdef extern from *:
    """
    #define OLDEST_MS 1099511627776ull      /* 2004: no broker of this format is older */
    """
    u64 OLDEST_MS


cdef struct salvage_t:              # the bytes from the damage to the end of the data
    u8* data
    u8* starts                      # one bit for each byte: a chain to the end starts here
    u32 n
    u64 oldest_ms


cdef inline bint salvage_is_start(const salvage_t* s, u32 at) noexcept nogil:
    return s.starts[at >> 3] >> (at & 7) & 1


cdef inline void salvage_mark(salvage_t* s, u32 at) noexcept nogil:
    s.starts[at >> 3] |= <u8>(1 << (at & 7))


cdef bint salvage_links(const salvage_t* s, u32 at, u32 end, rec_t* rec) noexcept nogil:
    """Whether the bytes at `at` could be a record that is followed by a chain to the end.

    A message always has an exchange or a key, and is not much younger than the one behind it."""
    cdef u64 stamp = le64(s.data + at)
    cdef u32 next_
    if stamp < s.oldest_ms or record_parse(s.data + at, s.n - at, rec) != 1 or rec.names_len <= 2:
        return False
    next_ = at + rec.size
    if not salvage_is_start(s, next_):
        return False
    return next_ >= end or stamp <= le64(s.data + next_) + DAY_MS


cdef u32 salvage_first(salvage_t* s, u32 end) noexcept nogil:
    """Mark every start of a chain and return the first, `n` when there is none.

    The damaged record's own length is believed if it leads to a chain, or exactly to the end: then
    only its head is bad, and what looks like a chain within it is its body."""
    cdef rec_t rec
    cdef u32 at = end
    cdef u32 first = s.n
    while at > 1:
        at -= 1
        if s.n - at >= RECORD_FIXED + 2 and salvage_links(s, at, end, &rec):
            salvage_mark(s, at)
            first = at
    if s.n >= RECORD_FIXED + 2 and first < s.n:
        put_le64(s.data, s.oldest_ms)
        if salvage_links(s, 0, end, &rec):
            return rec.size
    return first


cdef u32 salvage_count(const salvage_t* s, u32 at, u32 end) noexcept nogil:
    """Records of the chain that starts at `at`."""
    cdef rec_t rec
    cdef u32 n = 0
    while at < end and record_parse(s.data + at, s.n - at, &rec) == 1:
        at += rec.size
        n += 1
    return n


cdef u32 salvage_search(salvage_t* s, u32 end, u32 most, u32* found) noexcept nogil:
    """Offset of the first record of the chain that leads to `end`, or into the zeros behind it.

    `found` are its records, 0 when there is no chain; `most`, how many it can have by the meta
    file: a longer one has begun inside the damaged body."""
    cdef rec_t rec
    cdef u32 at
    for at in range(end, s.n + 1):
        salvage_mark(s, at)
    at = salvage_first(s, end)
    found[0] = salvage_count(s, at, end)
    while found[0] > most and record_parse(s.data + at, s.n - at, &rec) == 1:
        at += rec.size
        found[0] -= 1
    return at

# Copies: the CC and BCC headers of a message: further routing keys, the latter hidden from clients.
#
# Both are arrays of strings. Each exchange that a message comes to matches each string like a
# routing key; a queue that several of them reach gets one copy. BCC is stored and not delivered.
# Called by amqp.pyx (checks), route.pyx and deliver.pyx. Source: docs/protocol.md.


# ---- reading -------------------------------------------------------------------------------------

cdef i64 count_strings(const u8* value) noexcept nogil:
    """How many strings a field value that is known to be valid, at its type, is an array of; none
    if it is void, which counts as absent; -1 if it is something else."""
    cdef i64 count = 0
    cdef u64 n, step
    if value[0] == c'V':
        return 0
    if value[0] != c'A':
        return -1
    n = be32(value + 1)
    value += 5
    while n:
        if value[0] != c'S':
            return -1
        step = 5 + <u64>be32(value + 1)
        value += step
        n -= step
        count += 1
    return count


cdef inline bint has_copies(const msg_t* m) noexcept nogil:
    return m.cc_at != 0 or m.bcc_at != 0


cdef u32 copies_error(msg_t* m, u32 most) noexcept nogil:
    """Note in m where CC and BCC are in its headers, which are valid, and check them: `most` keys
    in all; and whether it says where it goes when it dies. 0 or a walk_error. Cost: 3 ns per
    header."""
    cdef const u8* p = m.props + m.headers_at + 4
    cdef u64 n = m.headers_len
    cdef u64 size = entry_size(p, n)
    cdef i64 n_cc = 0, n_bcc = 0
    while size:
        if p[0] == 2 and m.cc_at == 0 and same_bytes(p + 1, <const u8*>b"CC", 2):
            m.cc_at = <u32>(p - m.props)
        elif p[0] == 3 and m.bcc_at == 0 and same_bytes(p + 1, <const u8*>b"BCC", 3):
            m.bcc_at = <u32>(p - m.props)
        elif ((p[0] == 22 and same_bytes(p + 1, <const u8*>b"x-dead-letter-exchange", 22))
              or (p[0] == 25 and same_bytes(p + 1, <const u8*>b"x-dead-letter-routing-key", 25))):
            m.is_special = True
        p += size
        n -= size
        size = entry_size(p, n)
    if m.cc_at:
        n_cc = count_strings(m.props + m.cc_at + 3)
    if m.bcc_at:
        n_bcc = count_strings(m.props + m.bcc_at + 4)
    if n_cc < 0 or n_bcc < 0:
        return ERROR_CC if n_cc < 0 else ERROR_BCC
    return ERROR_COPIES if n_cc + n_bcc > most else 0


# ---- routing -------------------------------------------------------------------------------------

cdef struct keys_t:             # strings of CC that are left, then those of BCC
    const u8* p
    u64 n
    const u8* bcc               # NULL = none, or begun


cdef void keys_enter(keys_t* keys, const u8* value) noexcept nogil:
    """Begin with the value of CC or BCC, at its type."""
    keys.p = value + 5
    keys.n = be32(value + 1) if value[0] == c'A' else 0


cdef bint keys_next(keys_t* keys, slice_t* key) noexcept nogil:
    """Take the next one; False when there is none."""
    if keys.n == 0 and keys.bcc != NULL:
        keys_enter(keys, keys.bcc)
        keys.bcc = NULL
    if keys.n == 0:
        return False
    key.n = be32(keys.p + 1)
    key.p = keys.p + 5
    keys.p += 5 + <u64>key.n
    keys.n -= 5 + <u64>key.n
    return True


cdef bint match_is_by_key(const match_t* match) noexcept nogil:
    """Whether another key can lead to other queues."""
    if match.kind == MATCH_HASH:
        return match.hasher.header == NULL and match.hasher.property == 0
    return match.kind <= MATCH_TOPIC and match.kind != MATCH_FANOUT


cdef int match_keys(match_t* match, const msg_t* m, u32* n_keys, targets_t* out) noexcept nogil:
    """Append what the routing key of m, its CC and BCC match. What match_route returns.

    `n_keys`, 0 at first, says which of them is next when it is tired."""
    cdef const u8* first = m.names + m.names[0] + 1
    cdef keys_t keys
    cdef slice_t key
    cdef u32 i = 1
    cdef int rc = 0
    if n_keys[0] == 0:
        rc = match_route(match, first + 1, first[0], m.props, m.headers_at, out)
        if rc:
            return rc
        n_keys[0] = 1
    memset(&keys, 0, sizeof(keys_t))
    if has_copies(m) and match_is_by_key(match):
        keys.bcc = m.props + m.bcc_at + 4 if m.bcc_at else NULL
        if m.cc_at:
            keys_enter(&keys, m.props + m.cc_at + 3)
    while keys_next(&keys, &key):
        if i == n_keys[0]:
            rc = match_route(match, key.p, key.n, m.props, m.headers_at, out)
            if rc:
                return rc
            n_keys[0] += 1
            if match_tired(out, 4):
                return MATCH_TIRED
        i += 1
    n_keys[0] = 0
    return 0


# ---- hiding --------------------------------------------------------------------------------------

# hot
cdef inline void record_find_bcc(rec_t* r) noexcept nogil:
    """Note where the BCC entry of a record is. Cost: 3 ns per header, nothing without headers."""
    cdef const u8* entry
    r.bcc_at = r.bcc_len = 0
    if r.headers_at == 0 or r.headers_len < 5:
        return
    entry = table_find(r.props + r.headers_at + 4, r.headers_len, <const u8*>b"BCC", 3)
    if entry != NULL:
        r.bcc_at = <u32>(entry - r.props)
        r.bcc_len = <u32>entry_size(entry, r.props_len - r.bcc_at)

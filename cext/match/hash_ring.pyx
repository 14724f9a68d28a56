# Hash ring: the bindings of a consistent hash exchange. One of them takes each message, chosen by
# a hash of the routing key, of one header or of one property; equal keys stay together.
#
# The binding key is a weight. Two algorithms, fixed when the exchange is made:
# *ring*: each binding has as many points as its weight, at positions that follow from the name of
# its destination alone; a key belongs to the next point. Points cost memory, so they are limited.
# *jump*: each binding has as many buckets as its weight, in the order of binding. Only running sums
# are kept, so a weight costs nothing.
# Part of match.pyx, which calls it: routing allocates nothing, binding may.
# Source: docs/protocol.md; J. Lamping, E. Veach, "A Fast, Minimal Memory, Consistent Hash
# Algorithm".

# ---- weights ---------------------------------------------------------------------------------

cdef i64 hash_weight(const u8* key, u32 key_len) noexcept nogil:
    """The number that a binding key spells in decimal digits, blanks before them allowed; -1 when
    it is no number below 2^32."""
    cdef i64 weight = 0
    cdef u32 i = 0
    while i < key_len and (key[i] == c' ' or 9 <= key[i] <= 13):
        i += 1
    if i == key_len:
        return -1
    while i < key_len:
        if not c'0' <= key[i] <= c'9':
            return -1
        weight = weight * 10 + (key[i] - c'0')
        if weight > <i64>0xFFFFFFFF:
            return -1
        i += 1
    return weight


# hot
cdef inline u64 hash_total(const hasher_t* h) noexcept nogil:
    """Sum of all weights."""
    return h.slots[h.n_slots - 1].upto if h.n_slots else 0


# ---- ring ------------------------------------------------------------------------------------

cdef void ring_places(const u8* name, u32 name_len, u32 n, u32* places) noexcept nogil:
    """CRC32 of "<name>.<t>" for each t below n. All digits but the last are a smaller t's."""
    cdef u32 dot = crc32(crc32(0, name, name_len), <const u8*>b".", 1)
    cdef u32 t
    cdef u8 digit
    for t in range(n):
        digit = <u8>(c'0' + t % 10)
        places[t] = crc32(places[t / 10] if t >= 10 else dot, &digit, 1)


cdef void ring_order(u32* places, u32* spare, u32 n) noexcept nogil:
    """Sort n places, octet by octet from the lowest: comparing those of the heaviest binding would
    hold up everybody. `spare` has room for as many. Cost: 8 ns per place."""
    cdef u32 starts[256]
    cdef u32 i, count, start, shift = 0
    cdef u32* swapped
    while shift < 32:
        memset(starts, 0, sizeof(starts))
        for i in range(n):
            starts[(places[i] >> shift) & 0xFF] += 1
        start = 0
        for i in range(256):
            count = starts[i]
            starts[i] = start
            start += count
        for i in range(n):
            count = (places[i] >> shift) & 0xFF
            spare[starts[count]] = places[i]
            starts[count] += 1
        swapped = places        # four times: in the end all is where it was
        places = spare
        spare = swapped
        shift += 8


cdef int ring_add(hasher_t* h, hash_binding_t* binding, const u8* name,
                  u32 name_len) noexcept nogil:
    """Merge the points of a new binding in; at the same place the older one stays first.
    0, or MATCH_NO_MEMORY."""
    cdef u32 n_new = binding.weight, n_old = h.n_points
    cdef u32* places
    cdef hash_point_t* grown
    if n_new == 0:
        return 0
    places = <u32*>malloc(2 * <size_t>n_new * sizeof(u32))
    if places == NULL:
        return MATCH_NO_MEMORY
    grown = <hash_point_t*>realloc(h.points, (<size_t>n_old + n_new) * sizeof(hash_point_t))
    if grown == NULL:
        free(places)
        return MATCH_NO_MEMORY
    ring_places(name, name_len, n_new, places)
    ring_order(places, places + n_new, n_new)
    h.points = grown
    h.n_points = n_old + n_new
    while n_new:
        if n_old and grown[n_old - 1].at > places[n_new - 1]:
            n_old -= 1
            grown[n_old + n_new] = grown[n_old]
        else:
            n_new -= 1
            grown[n_old + n_new].at = places[n_new]
            grown[n_old + n_new].binding = binding
    free(places)
    return 0


cdef void ring_remove(hasher_t* h, const hash_binding_t* binding) noexcept nogil:
    """Take the points of a binding out."""
    cdef u32 i, n = 0
    cdef hash_point_t* smaller
    if binding.weight == 0:
        return
    for i in range(h.n_points):
        if h.points[i].binding != binding:
            h.points[n] = h.points[i]
            n += 1
    h.n_points = n
    if n == 0:
        free(h.points)
        h.points = NULL
        return
    smaller = <hash_point_t*>realloc(h.points, n * sizeof(hash_point_t))
    if smaller != NULL:
        h.points = smaller


# hot
cdef inline hash_binding_t* ring_find(const hasher_t* h, const u8* key, u32 key_len) noexcept nogil:
    """The binding of the first point at or behind the key. Behind the last point it is the one
    that was bound first: that is the original's choice, and no worse than the lowest point.
    The weights are not all 0. Cost: 50 ns for a key of 17 bytes, 130 ns with 100,000 points."""
    cdef u32 at = crc32(0, key, key_len), low = 0, high = h.n_points, middle
    while low < high:
        middle = low + (high - low) / 2
        if h.points[middle].at < at:
            low = middle + 1
        else:
            high = middle
    if low < h.n_points:
        return h.points[low].binding
    low = 0
    while h.slots[low].upto == 0:
        low += 1
    return h.slots[low].binding


# ---- jump ------------------------------------------------------------------------------------

# hot
cdef inline u64 jump_bucket(u64 key, u64 n) noexcept nogil:
    """One of n buckets (1 ≤ n < 2^53). Cost: 30 ns, 100 ns for 100,000.

    Kept in a double until it is known to be below n: a far jump does not fit an integer."""
    cdef u64 bucket = 0
    cdef double after = 0
    while after < <double>n:
        bucket = <u64>after
        key = key * <u64>2862933555777941757 + 1
        after = <double>(bucket + 1) * (2147483648.0 / <double>((key >> 33) + 1))
    return bucket


# hot
cdef inline hash_binding_t* jump_find(const hasher_t* h, const u8* key, u32 key_len) noexcept nogil:
    """The binding that the key's bucket belongs to; the weights are not all 0."""
    cdef u32 crc = crc32(0, key, key_len), low = 0, high = h.n_slots - 1, middle
    cdef u64 salted = crc32(crc, <const u8*>b"_salt", 5)
    cdef u64 bucket = jump_bucket(<u64>crc << 32 | salted, hash_total(h))
    while low < high:
        middle = low + (high - low) / 2
        if h.slots[middle].upto <= bucket:
            low = middle + 1
        else:
            high = middle
    return h.slots[low].binding


# ---- bindings --------------------------------------------------------------------------------

cdef int hash_set(match_t* m, bint is_jump, const u8* header, u32 header_len,
                  u32 property) noexcept nogil:
    """The algorithm, and what to hash on instead of the routing key: the header, or NULL, or the
    flag of a property, or 0. Before the first binding. 0, or MATCH_NO_MEMORY."""
    m.hasher.is_jump = is_jump
    m.hasher.property = property
    if header == NULL:
        return 0
    m.hasher.header = <u8*>malloc(header_len + 1)
    if m.hasher.header == NULL:
        return MATCH_NO_MEMORY
    memcpy(m.hasher.header, header, header_len)
    m.hasher.header_len = header_len
    return 0


cdef int hash_set_up(match_t* m, bint is_jump, bytes header, u32 property) except -1:
    """hash_set for Python callers."""
    cdef const u8* name = NULL
    cdef u32 n = 0
    if header is not None:
        name, n = header, len(header)
    if property and property not in HASH_PROPERTIES.values():
        raise ValueError(f"no property to hash on: {property:#x}")
    if hash_set(m, is_jump, name, n, property) < 0:
        raise MemoryError
    return 0


cdef void hash_free(hasher_t* h) noexcept nogil:
    """Free all but the bindings, which match_t.bindings owns. NULL is allowed."""
    if h == NULL:
        return
    free(h.header)
    free(h.slots)
    free(h.points)
    free(h)


cdef hash_binding_t* hash_find(match_t* m, const u8* key, u32 key_len, const u8* args,
                               u32 args_len, dest_t* dest) noexcept nogil:
    cdef u64 hash = header_identity(m, key, key_len, args, args_len, dest)
    cdef match_link_t* link
    cdef hash_binding_t* binding
    cdef u8* tail
    if m.bindings.n == 0:
        return NULL
    link = match_slot(&m.bindings, hash)[0]
    while link != NULL:
        binding = <hash_binding_t*>link
        tail = <u8*>(binding + 1)
        if (link.hash == hash and binding.dest == dest
                and binding_is(tail, binding.key_len, binding.args_len, key, key_len, args,
                               args_len)):
            return binding
        link = link.next
    return NULL


cdef int hash_reserve(hasher_t* h) noexcept nogil:
    """Make room for one more slot. 0, or MATCH_NO_MEMORY."""
    cdef hash_slot_t* grown
    if h.n_slots < h.cap_slots:
        return 0
    grown = <hash_slot_t*>realloc(h.slots, (<size_t>h.cap_slots * 2 + 4) * sizeof(hash_slot_t))
    if grown == NULL:
        return MATCH_NO_MEMORY
    h.slots = grown
    h.cap_slots = h.cap_slots * 2 + 4
    return 0


cdef int hash_bind(match_t* m, const u8* key, u32 key_len, const u8* args, u32 args_len,
                   dest_t* dest) noexcept nogil:
    """See match_bind; *args* is the destination's name as a short string, then the table."""
    cdef hasher_t* h = m.hasher
    cdef i64 weight = hash_weight(key, key_len)
    cdef hash_binding_t* binding
    if weight < 0:
        return MATCH_BAD_WEIGHT
    if args_len == 0 or args[0] >= args_len:
        return MATCH_BAD_INPUT
    if hash_find(m, key, key_len, args, args_len, dest) != NULL:
        return MATCH_UNCHANGED
    if not h.is_jump and hash_total(h) + <u64>weight > HASH_POINTS_MAX:
        return MATCH_TOO_HEAVY
    if match_table_reserve(&m.bindings) < 0 or hash_reserve(h) < 0:
        return MATCH_NO_MEMORY
    binding = <hash_binding_t*>calloc(1, sizeof(hash_binding_t) + key_len + args_len)
    if binding == NULL:
        return MATCH_NO_MEMORY
    binding.link.hash = header_identity(m, key, key_len, args, args_len, dest)
    binding.dest = dest
    binding.weight = <u32>weight
    binding.key_len = key_len
    binding.args_len = args_len
    memcpy(<u8*>(binding + 1), key, key_len)
    memcpy(<u8*>(binding + 1) + key_len, args, args_len)
    if not h.is_jump and ring_add(h, binding, args + 1, args[0]) < 0:
        free(binding)
        return MATCH_NO_MEMORY
    match_table_put(&m.bindings, &binding.link)
    h.slots[h.n_slots].upto = hash_total(h) + <u64>weight
    h.slots[h.n_slots].binding = binding
    h.n_slots += 1
    return MATCH_ADDED


cdef int hash_unbind(match_t* m, const u8* key, u32 key_len, const u8* args, u32 args_len,
                     dest_t* dest) noexcept nogil:
    """See match_unbind."""
    cdef hasher_t* h = m.hasher
    cdef hash_binding_t* binding
    cdef u32 i = 0
    if hash_weight(key, key_len) < 0:
        return MATCH_BAD_WEIGHT
    binding = hash_find(m, key, key_len, args, args_len, dest)
    if binding == NULL:
        return MATCH_UNCHANGED
    if not h.is_jump:
        ring_remove(h, binding)
    while h.slots[i].binding != binding:
        i += 1
    h.n_slots -= 1
    for i in range(i, h.n_slots):
        h.slots[i].binding = h.slots[i + 1].binding
        h.slots[i].upto = h.slots[i + 1].upto - binding.weight
    match_table_cut(&m.bindings, &binding.link)
    free(binding)
    return MATCH_ADDED


# ---- routing ---------------------------------------------------------------------------------

# hot
cdef int hash_route(const match_t* m, const u8* key, u32 key_len, const u8* props, u32 headers_at,
                    targets_t* out) noexcept nogil:
    """The one destination of a message. 0, MATCH_NO_MEMORY, or MATCH_BAD_HEADER for a header that
    is no string; a missing header or property and void count as the empty string, and a time is
    hashed as it is written in decimal digits."""
    cdef hasher_t* h = m.hasher
    cdef const u8* entry = NULL
    cdef char digits[24]
    if h.property:
        key_len = 0
        if be16(props) & h.property:
            entry = props + props_place(props, h.property)
            if h.property == FLAG_TIMESTAMP:
                key_len = <u32>snprintf(digits, sizeof(digits), b"%llu",
                                        <unsigned long long>be64(entry))
                key = <const u8*>digits
            else:
                key_len = entry[0]
                key = entry + 1
    elif h.header != NULL:
        key_len = 0
        if headers_at:
            entry = table_find(props + headers_at + 4, be32(props + headers_at), h.header,
                               h.header_len)
        if entry != NULL:
            key = entry + 1 + entry[0]
            if key[0] != c'S' and key[0] != c'V':
                return MATCH_BAD_HEADER
            if key[0] == c'S':
                key_len = be32(key + 1)
            key += 5
    if hash_total(h) == 0:
        return 0
    if h.is_jump:
        return match_take(out, jump_find(h, key, key_len).dest)
    return match_take(out, ring_find(h, key, key_len).dest)


HASH_PROPERTIES = {"message_id": FLAG_MESSAGE_ID, "correlation_id": FLAG_CORRELATION_ID,
                   "timestamp": FLAG_TIMESTAMP}

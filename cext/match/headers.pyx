# Headers: a binding is found through one of its pairs, so that routing visits the bindings that
# share a pair with the message, not all. Part of match.pyx.

# ---- values -----------------------------------------------------------------------------

# hot
cdef inline const u8* header_skip(const u8* value, const u8* end) noexcept nogil:
    """End of the value at *value*, which may be anywhere up to *end*; NULL when it is malformed."""
    cdef u64 size = value_size(value, end - value)
    return value + size if size else NULL


# hot
cdef inline const u8* header_value(const u8* field, const u8* end) noexcept nogil:
    """The value behind the key of *field*, which must lie before *end*."""
    cdef size_t key_len = field[0]
    return field + 1 + key_len if key_len < <size_t>(end - field - 1) else NULL


# hot
cdef i64 header_count(const u8* field, const u8* end) noexcept nogil:
    """Number of fields of a table; -1 when it is malformed at this level."""
    cdef const u8* value
    cdef i64 n = 0
    while field < end:
        value = header_value(field, end)
        field = header_skip(value, end) if value != NULL else NULL
        if field == NULL:
            return -1
        n += 1
    return n


# hot
cdef bint header_equal(const u8* a, const u8* a_end, const u8* b, const u8* b_end) noexcept nogil:
    """Two values mean the same. Recursion is bounded by the depth of *a*, a checked binding."""
    cdef header_number_t x
    cdef header_number_t y
    if a_end - a == b_end - b and same_bytes(a, b, a_end - a):
        return True
    if header_number(a, &x):
        if not header_number(b, &y) or x.is_whole != y.is_whole:
            return False
        return x.whole == y.whole if x.is_whole else x.real == y.real
    if a[0] != b[0]:
        return False
    if a[0] == c't':
        return (a[1] != 0) == (b[1] != 0)
    if a[0] == c'A':
        return header_equal_arrays(a + 5, a_end, b + 5, b_end)
    if a[0] == c'F':
        return header_equal_tables(a + 5, a_end, b + 5, b_end)
    return False


cdef bint header_equal_arrays(const u8* a, const u8* a_end, const u8* b,
                              const u8* b_end) noexcept nogil:
    cdef const u8* after_a
    cdef const u8* after_b
    while a < a_end and b < b_end:
        after_a = header_skip(a, a_end)
        after_b = header_skip(b, b_end)
        if after_a == NULL or after_b == NULL or not header_equal(a, after_a, b, after_b):
            return False
        a = after_a
        b = after_b
    return a == a_end and b == b_end


cdef bint header_equal_tables(const u8* a, const u8* a_end, const u8* b,
                              const u8* b_end) noexcept nogil:
    """Same keys with equal values in any order; above HEADER_NESTED_MAX only identical bytes."""
    cdef i64 n = header_count(a, a_end)
    cdef const u8* value
    cdef const u8* after
    cdef const u8* other
    if n < 0 or n > HEADER_NESTED_MAX or n != header_count(b, b_end):
        return False
    while a < a_end:
        value = header_value(a, a_end)
        after = header_skip(value, a_end)
        other = header_lookup(a + 1, a[0], b, b_end)
        if other == NULL or not header_equal(value, after, other, header_skip(other, b_end)):
            return False
        a = after
    return True


cdef const u8* header_lookup(const u8* key, u32 key_len, const u8* field,
                             const u8* end) noexcept nogil:
    """First value under *key* in a table that header_count accepted; NULL when absent."""
    cdef const u8* value
    while field < end:
        value = header_value(field, end)
        if field[0] == key_len and same_bytes(field + 1, key, key_len):
            return value
        field = header_skip(value, end)
    return NULL


# hot
cdef u64 header_hash(const u8* value, u32 value_len, u64 seed) noexcept nogil:
    """Equal values hash alike. Arrays and tables share one hash per type: equality decides."""
    cdef header_number_t number
    cdef u8 flag[2]
    if value[0] == c'S':
        return hash_bytes(value, value_len, seed)
    if header_number(value, &number):
        if number.is_whole:
            return hash_bytes(<const u8*>&number.whole, 8, seed)
        return hash_bytes(<const u8*>&number.real, 8, ~seed)
    if value[0] == c'A' or value[0] == c'F':
        return hash_bytes(value, 1, seed)
    if value[0] == c't':
        flag[0] = value[0]
        flag[1] = value[1] != 0
        return hash_bytes(flag, 2, seed)
    return hash_bytes(value, value_len, seed)


# ---- bindings -----------------------------------------------------------------------

# hot
cdef inline bint header_is_private(const u8* key, u32 key_len) noexcept nogil:
    """Keys beginning with "x-" take part only where a binding asks for them."""
    return key_len >= 2 and key[0] == c'x' and key[1] == c'-'


cdef inline bint header_is_pair(const u8* key, u32 key_len, bint is_with_x) noexcept nogil:
    """Whether an argument of a binding is to be compared."""
    if is_with_x:
        return key_len != 7 or not same_bytes(key, b"x-match", 7)
    return not header_is_private(key, key_len)


# hot
cdef inline u64 header_key_bit(const u8* key, u32 key_len) noexcept nogil:
    """One of 64 bits per key: most headers no binding asks for are dropped before hashing."""
    if key_len == 0:
        return 1
    return <u64>1 << ((key_len + 5 * <u32>key[0] + 11 * <u32>key[key_len - 1]) & 63)


# hot
cdef inline header_pair_t* header_pairs(header_binding_t* binding) noexcept nogil:
    return <header_pair_t*>(binding + 1)


cdef int header_mode(match_t* m, const u8* args, const u8* end, u32* n_pairs) noexcept nogil:
    """1 any, 0 all, 2 more with-x, or MATCH_BAD_MODE; counts the pairs. *args* is well formed."""
    cdef int mode = m.default_any
    cdef const u8* at = args
    cdef const u8* value
    cdef const u8* after
    cdef i64 n
    while at < end:
        value = header_value(at, end)
        after = header_skip(value, end)
        if at[0] == 7 and same_bytes(at + 1, b"x-match", 7):
            n = after - value - 5
            if value[0] != c'S' or (n != 3 and n != 10):
                return MATCH_BAD_MODE
            if not same_bytes(value + 5, b"any", 3) and not same_bytes(value + 5, b"all", 3):
                return MATCH_BAD_MODE
            mode = same_bytes(value + 5, b"any", 3)
            if n == 10:
                if not same_bytes(value + 8, b"-with-x", 7):
                    return MATCH_BAD_MODE
                mode += 2
        at = after
    n_pairs[0] = 0
    while args < end:
        n_pairs[0] += header_is_pair(args + 1, args[0], mode >= 2)
        args = header_skip(header_value(args, end), end)
    return mode


cdef u64 header_identity(match_t* m, const u8* key, u32 key_len, const u8* args, u32 args_len,
                         dest_t* dest) noexcept nogil:
    cdef u64 hash = hash_bytes(args, args_len, hash_bytes(key, key_len, m.seed))
    return hash_bytes(<const u8*>&dest, sizeof(dest), hash)


cdef inline bint binding_is(const u8* tail, u32 own_key_len, u32 own_args_len, const u8* key,
                            u32 key_len, const u8* args, u32 args_len) noexcept nogil:
    """Whether a binding, whose key and arguments stand at *tail*, has these."""
    return (own_key_len == key_len and own_args_len == args_len and same_bytes(tail, key, key_len)
            and same_bytes(tail + key_len, args, args_len))


cdef header_binding_t* header_find(match_t* m, const u8* key, u32 key_len, const u8* args,
                                   u32 args_len, dest_t* dest) noexcept nogil:
    cdef u64 hash = header_identity(m, key, key_len, args, args_len, dest)
    cdef header_binding_t* binding
    cdef match_link_t* link
    cdef u8* tail
    if m.bindings.n == 0:
        return NULL
    link = match_slot(&m.bindings, hash)[0]
    while link != NULL:
        binding = <header_binding_t*>link
        tail = <u8*>(header_pairs(binding) + binding.n_pairs)
        if (link.hash == hash and binding.dest == dest
                and binding_is(tail, binding.key_len, binding.args_len, key, key_len, args,
                               args_len)):
            return binding
        link = link.next
    return NULL


cdef void header_compile(match_t* m, header_binding_t* binding) noexcept nogil:
    """Fill the pairs of *binding* from its own copy of the arguments."""
    cdef header_pair_t* pair = header_pairs(binding)
    cdef const u8* field = <const u8*>(pair + binding.n_pairs) + binding.key_len
    cdef const u8* end = field + binding.args_len
    cdef const u8* after
    while field < end:
        after = header_skip(header_value(field, end), end)
        if header_is_pair(field + 1, field[0], binding.is_with_x):
            pair.binding = binding
            pair.key = field + 1
            pair.key_len = field[0]
            pair.value = field + 1 + pair.key_len
            pair.value_len = <u32>(after - pair.value)
            pair.key_hash = hash_bytes(pair.key, pair.key_len, m.seed)
            pair.link.hash = header_hash(pair.value, pair.value_len, pair.key_hash)
            m.key_bits |= header_key_bit(pair.key, pair.key_len)
            pair += 1
        field = after


cdef u32 header_crowd(match_t* m, u64 hash) noexcept nogil:
    """How many bindings already stand under this pair; more than 64 is not counted."""
    cdef match_link_t* link = match_slot(&m.pairs, hash)[0]
    cdef u32 n = 0
    while link != NULL and n < 64:
        n += link.hash == hash
        link = link.next
    return n


cdef void header_file(match_t* m, header_binding_t* binding) noexcept nogil:
    """Enter the pairs into the table: all of an "any", of an "all" the least common one."""
    cdef header_pair_t* pairs = header_pairs(binding)
    cdef u32 least = 0xFFFFFFFF, crowd, i
    for i in range(binding.n_pairs):
        if binding.is_any:
            match_table_reserve(&m.pairs)
            match_table_put(&m.pairs, &pairs[i].link)
            continue
        crowd = header_crowd(m, pairs[i].link.hash)
        if crowd < least:
            least = crowd
            binding.picked = i
    if not binding.is_any and binding.n_pairs > 0:
        match_table_put(&m.pairs, &pairs[binding.picked].link)


cdef int header_list(match_t* m, header_binding_t* binding) noexcept nogil:
    """Rules without a pair: `every` for messages with headers, `bare` for those without."""
    cdef bint is_open = binding.n_pairs == 0 and not binding.is_any
    if is_open and match_dests_add(&m.every, binding.dest) < 0:
        return MATCH_NO_MEMORY
    if binding.args_len == 0 and match_dests_add(&m.bare, binding.dest) < 0:
        if is_open:
            match_dests_remove(&m.every, binding.dest)
        return MATCH_NO_MEMORY
    return 0


cdef int header_bind(match_t* m, const u8* key, u32 key_len, const u8* args, u32 args_len,
                     dest_t* dest) noexcept nogil:
    cdef header_binding_t* binding
    cdef u32 n_pairs
    cdef int mode
    cdef u8* tail
    if not table_is_valid(args, args_len, 0):
        return MATCH_BAD_INPUT
    mode = header_mode(m, args, args + args_len, &n_pairs)
    if mode < 0:
        return MATCH_BAD_MODE
    if header_find(m, key, key_len, args, args_len, dest) != NULL:
        return MATCH_UNCHANGED
    if match_table_reserve(&m.bindings) < 0 or match_table_reserve(&m.pairs) < 0:
        return MATCH_NO_MEMORY
    binding = <header_binding_t*>calloc(
        1, sizeof(header_binding_t) + n_pairs * sizeof(header_pair_t) + key_len + args_len)
    if binding == NULL:
        return MATCH_NO_MEMORY
    binding.link.hash = header_identity(m, key, key_len, args, args_len, dest)
    binding.dest = dest
    binding.key_len = key_len
    binding.args_len = args_len
    binding.n_pairs = n_pairs
    binding.is_any = mode & 1
    binding.is_with_x = mode >= 2
    m.has_with_x = m.has_with_x or binding.is_with_x
    tail = <u8*>(header_pairs(binding) + n_pairs)
    memcpy(tail, key, key_len)
    memcpy(tail + key_len, args, args_len)
    if header_list(m, binding) < 0:
        free(binding)
        return MATCH_NO_MEMORY
    header_compile(m, binding)
    header_file(m, binding)
    match_table_put(&m.bindings, &binding.link)
    return MATCH_ADDED


cdef int header_unbind(match_t* m, const u8* key, u32 key_len, const u8* args, u32 args_len,
                       dest_t* dest) noexcept nogil:
    cdef header_binding_t* binding = header_find(m, key, key_len, args, args_len, dest)
    cdef header_pair_t* pairs
    cdef u32 i
    if binding == NULL:
        return MATCH_UNCHANGED
    pairs = header_pairs(binding)
    for i in range(binding.n_pairs):
        if binding.is_any or i == binding.picked:
            match_table_cut(&m.pairs, &pairs[i].link)
    if binding.n_pairs == 0 and not binding.is_any:
        match_dests_remove(&m.every, dest)
    if args_len == 0:
        match_dests_remove(&m.bare, dest)
    match_table_cut(&m.bindings, &binding.link)
    free(binding)
    if m.bindings.n == 0:
        m.key_bits = 0
    return MATCH_ADDED


# ---- routing --------------------------------------------------------------------------

# hot
cdef inline header_field_t* header_seek(header_index_t* index, const u8* key, u32 key_len, u64 hash,
                                        u32* slot) noexcept nogil:
    """The message's field under *key*, or NULL and the free slot where it would go."""
    cdef header_field_t* field
    cdef u32 at = <u32>hash & index.mask
    while index.slots[at] != 0:
        field = &index.fields[index.slots[at] - 1]
        if (field.key_hash == hash and field.key_len == key_len
                and same_bytes(field.key, key, key_len)):
            return field
        at = (at + 1) & index.mask
    slot[0] = at
    return NULL


# hot
cdef void header_read(const match_t* m, const u8* at, const u8* end,
                      header_index_t* index) noexcept nogil:
    """Index the fields some binding may ask for; of equal keys the first counts. 8 ns per field."""
    cdef header_field_t* field
    cdef const u8* value
    cdef const u8* after
    cdef u64 hash
    cdef u32 key_len, slot
    memset(index.slots, 0, (index.mask + 1) * sizeof(u32))
    index.n = 0
    while at < end:
        key_len = at[0]
        value = at + 1 + key_len
        after = header_skip(value, end)
        if m.key_bits & header_key_bit(at + 1, key_len) and (
                m.has_with_x or not header_is_private(at + 1, key_len)):
            hash = hash_bytes(at + 1, key_len, m.seed)
            if header_seek(index, at + 1, key_len, hash, &slot) == NULL:
                field = &index.fields[index.n]
                field.key_hash = hash
                field.key = at + 1
                field.key_len = key_len
                field.value = value
                field.value_len = <u32>(after - value)
                index.n += 1
                index.slots[slot] = index.n
        at = after


# hot
cdef inline bint header_agrees(header_pair_t* pair, header_field_t* field) noexcept nogil:
    return header_equal(pair.value, pair.value + pair.value_len,
                        field.value, field.value + field.value_len)


# hot
cdef bint header_holds(header_binding_t* binding, header_index_t* index) noexcept nogil:
    """True when every pair of an "all" is among the message's headers. Cost: 8 ns per pair."""
    cdef header_pair_t* pair = header_pairs(binding)
    cdef header_field_t* field
    cdef u32 _i, slot
    for _i in range(binding.n_pairs):
        field = header_seek(index, pair.key, pair.key_len, pair.key_hash, &slot)
        if field == NULL or not header_agrees(pair, field):
            return False
        pair += 1
    return True


# hot
cdef inline bint header_meets(header_pair_t* pair, header_field_t* field,
                              header_index_t* index) noexcept nogil:
    """Does the binding behind *pair* match, given that *field* hashes like the pair?"""
    if not pair.binding.is_any:
        return header_holds(pair.binding, index)
    return (pair.key_len == field.key_len and same_bytes(pair.key, field.key, field.key_len)
            and header_agrees(pair, field))


# hot
cdef int header_probe(const match_t* m, header_index_t* index, targets_t* out) noexcept nogil:
    """Try the bindings that share a pair with the message. Cost: 10 ns per field and candidate.

    A destination that this call has taken is not tried again; one from before is, as long as it
    is not known whether anything matches here."""
    cdef match_cursor_t* at = &out.cursor
    cdef header_field_t* field
    cdef header_pair_t* pair
    cdef match_link_t* link
    cdef u64 hash
    while at.at < index.n:
        field = &index.fields[at.at]
        hash = header_hash(field.value, field.value_len, field.key_hash)
        link = at.link if at.link != NULL else match_slot(&m.pairs, hash)[0]
        at.link = NULL
        while link != NULL:
            pair = <header_pair_t*>link
            if (link.hash == hash
                    and (out.n == at.n_before or not targets_have(out, pair.binding.dest))):
                if header_meets(pair, field, index) and match_take(out, pair.binding.dest) < 0:
                    return MATCH_NO_MEMORY
                out.work += pair.binding.n_pairs + (pair.value_len >> 6)
            link = link.next
            if match_tired(out, 1):
                at.link = link
                at.at += link == NULL
                return MATCH_TIRED
        at.at += 1
        if match_tired(out, 1 + (field.value_len >> 6)):
            return MATCH_TIRED
    at.at = 0
    return 0


# hot
cdef int header_route(const match_t* m, const u8* headers, u32 headers_len,
                      targets_t* out) noexcept nogil:
    """A malformed table matches nothing. Allocates above HEADER_INLINE fields, once."""
    cdef header_field_t fields[HEADER_INLINE]
    cdef u32 slots[HEADER_INLINE * 2]
    cdef header_index_t index
    cdef size_t n_slots = 8
    cdef void* block = NULL
    cdef i64 n
    cdef int result
    if headers == NULL or headers_len == 0:
        return match_take_from(&m.bare, &out.cursor.at, False, out)
    n = header_count(headers, headers + headers_len)
    if n < 0:
        return 0
    if not out.cursor.is_begun:
        result = match_take_from(&m.every, &out.cursor.at, False, out)
        if result or m.pairs.n == 0:
            return result
        out.cursor.is_begun = True
        out.cursor.n_before = out.n
    while n_slots < <size_t>n * 2:
        n_slots *= 2
    index.fields = fields
    index.slots = slots
    index.mask = <u32>(n_slots - 1)
    if n > HEADER_INLINE:
        block = malloc(n * sizeof(header_field_t) + n_slots * sizeof(u32))
        if block == NULL:
            return MATCH_NO_MEMORY
        index.fields = <header_field_t*>block
        index.slots = <u32*>(index.fields + n)
    header_read(m, headers, headers + headers_len, &index)
    out.work += <u32>n
    result = header_probe(m, &index, out)
    out.cursor.is_begun = result == MATCH_TIRED
    free(block)
    return result

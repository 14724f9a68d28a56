# Keys: literal binding keys of every kind, in one hash table, and the destinations behind them.
#
# A destination is taken once by each routing. Routing one message may be long: it asks now and then
# whether its turn is over, and then keeps where it is in targets_t, so that the same call goes on
# from there. Bindings must not have changed until then; destinations that were taken have to be
# made known anew (targets_resume). Part of match.pyx.

# ---- destinations ---------------------------------------------------------------------------

cdef int match_widen(targets_t* out) noexcept nogil:
    """Double the capacity of *out*; -1 when out of memory."""
    cdef u32 cap = out.cap * 2 if out.cap else 8
    cdef void* items = realloc(out.items, cap * sizeof(dest_t*))
    if items == NULL:
        return MATCH_NO_MEMORY
    out.items = <dest_t**>items
    out.cap = cap
    return 0


# hot
cdef inline reached_slot_t* reached_find(reached_table_t* table, const void* what,
                                         u64 generation) noexcept nogil:
    """The slot of an address in a generation; a free one when it has none. There must be one."""
    cdef u64 at = (<u64>what >> 4) * <u64>0x9E3779B97F4A7C15 >> 32
    cdef reached_slot_t* slot = &table.slots[at & (table.cap - 1)]
    while slot.generation == generation and slot.what != what:
        at += 1
        slot = &table.slots[at & (table.cap - 1)]
    return slot


# hot
cdef inline bint reached_add(reached_table_t* table, const void* what,
                             u64 generation) noexcept nogil:
    """Whether a generation has an address already; else it has it now."""
    cdef reached_slot_t* slot = reached_find(table, what, generation)
    if slot.generation == generation:
        return True
    slot.what = what
    slot.generation = generation
    return False


cdef int reached_know(reached_table_t* table, void** items, u32 n, u32* n_reached,
                      u64 generation) noexcept nogil:
    """Have all *items* of a generation in the table, with room for one more; the first *n_reached*
    are there. 0, or MATCH_NO_MEMORY."""
    cdef u64 cap = table.cap
    cdef void* slots
    if (<u64>n + 1) * 2 > cap:
        while (<u64>n + 1) * 2 > cap:
            cap = cap * 2 if cap else REACHED_FEW * 8
        slots = calloc(cap, sizeof(reached_slot_t))
        if slots == NULL:
            return MATCH_NO_MEMORY
        free(table.slots)
        table.slots = <reached_slot_t*>slots
        table.cap = <u32>cap
        n_reached[0] = 0
    while n_reached[0] < n:
        reached_add(table, items[n_reached[0]], generation)
        n_reached[0] += 1
    return 0


cdef void reached_free(reached_t* reached) noexcept nogil:
    free(reached.dests.slots)
    free(reached.nodes.slots)


cdef int targets_know(targets_t* out) noexcept nogil:
    """reached_know of all that *out* has."""
    return reached_know(&out.reached.dests, <void**>out.items, out.n, &out.n_reached,
                        out.generation)


# hot
cdef inline bint targets_have(targets_t* out, const dest_t* dest) noexcept nogil:
    """Whether this routing has a destination; False also without memory, which taking it tells.
    Cost: 1 ns for each of a few, 4 ns for many."""
    cdef u32 i
    if out.n > REACHED_FEW:
        return (targets_know(out) == 0 and out.generation
                == reached_find(&out.reached.dests, dest, out.generation).generation)
    for i in range(out.n):
        if out.items[i] == dest:
            return True
    return False


# hot
cdef inline int match_append(targets_t* out, dest_t* dest) noexcept nogil:
    """Append a destination that is not there yet."""
    if out.n == out.cap and match_widen(out) < 0:
        return MATCH_NO_MEMORY
    out.items[out.n] = dest
    out.n += 1
    return 0


# hot
cdef inline int match_take_new(targets_t* out, dest_t* dest) noexcept nogil:
    """match_take of what cannot be there: a list without repetitions, taken from its beginning."""
    return 0 if dest.is_gone else match_append(out, dest)


cdef int match_take_of_many(targets_t* out, dest_t* dest) noexcept nogil:
    """match_take with more than a few targets. Cost: 4 ns."""
    if targets_know(out):
        return MATCH_NO_MEMORY
    if reached_add(&out.reached.dests, dest, out.generation):
        out.n_again += 1
        return 0
    out.n_reached += 1
    return match_append(out, dest)


# hot
cdef inline int match_take(targets_t* out, dest_t* dest) noexcept nogil:
    """Append *dest* unless this routing has it already, or it is gone. Cost: 2 ns and the touch of
    `is_gone`."""
    if dest.is_gone:
        return 0
    if out.n > REACHED_FEW:
        return match_take_of_many(out, dest)
    if targets_have(out, dest):
        out.n_again += 1
        return 0
    return match_append(out, dest)


# hot
cdef inline void targets_begin(targets_t* out, reached_t* reached) noexcept nogil:
    """Be ready for the routing of another message."""
    reached.dests.generation += 1
    out.reached = reached
    out.n = out.n_reached = 0
    out.generation = reached.dests.generation
    if out.is_tired:
        cursor_reset(out)


cdef void targets_resume(targets_t* out, reached_t* reached) noexcept nogil:
    """Go on with a routing after others, which may have overwritten what it has reached."""
    reached.dests.generation += 1
    out.reached = reached
    out.n_reached = 0
    out.generation = reached.dests.generation


cdef void targets_free(targets_t* out) noexcept nogil:
    free(out.items)
    free(out.cursor.here.items)
    free(out.cursor.next.items)
    free(out.cursor.steps.items)


cdef void cursor_reset(targets_t* out) noexcept nogil:
    """Whatever comes next begins at its beginning."""
    cdef match_cursor_t* at = &out.cursor
    out.is_tired = at.is_begun = at.is_slow = False
    at.at = at.dest = at.word = 0
    at.here.n = at.here.n_reached = at.next.n = at.next.n_reached = 0
    at.steps.n = 0
    at.link = NULL


cdef bint match_ask(targets_t* out) noexcept nogil:
    """Much has been done: whether the turn is over."""
    cdef u32 work = out.work
    out.work = 0
    if out.pause == NULL or not out.pause(out.pauser, work):
        return False
    out.is_tired = True
    return True


# hot
cdef inline bint match_tired(targets_t* out, u32 work) noexcept nogil:
    """Charge work; whether the turn is over. Cost: 1 ns."""
    out.work += work
    return out.work >= out.look and match_ask(out)


# hot
cdef inline dest_t** match_dests_items(const match_dests_t* dests) noexcept nogil:
    return <dest_t**>&dests.at.one if dests.cap == 0 else dests.at.many


# hot
cdef inline int match_take_all(const match_dests_t* dests, targets_t* out) noexcept nogil:
    """Append every destination of one binding key. Cost: 2 ns each."""
    cdef dest_t** items = match_dests_items(dests)
    cdef bint is_first = out.n == 0
    cdef u32 i
    for i in range(dests.n):
        if (match_take_new(out, items[i]) if is_first else match_take(out, items[i])) < 0:
            return MATCH_NO_MEMORY
    out.work += dests.n
    return 0


# hot
cdef inline int match_take_from(const match_dests_t* dests, u32* at, bint is_set,
                                targets_t* out) noexcept nogil:
    """The same from *at* on, which is 0 again at the end; MATCH_TIRED when the turn ends before.
    *is_set*: no destination stands there twice."""
    cdef dest_t** items = match_dests_items(dests)
    cdef bint is_new = is_set and out.n == 0
    while at[0] < dests.n:
        if (match_take_new(out, items[at[0]]) if is_new else match_take(out, items[at[0]])) < 0:
            return MATCH_NO_MEMORY
        at[0] += 1
        if match_tired(out, 1):
            return MATCH_TIRED
    at[0] = 0
    return 0


cdef i64 match_dests_find(match_dests_t* dests, dest_t* dest) noexcept nogil:
    """The last place of *dest*, -1 when it has none. From the end: whoever undoes many bindings
    begins with the newest one."""
    cdef dest_t** items = match_dests_items(dests)
    cdef i64 i = dests.n
    while i:
        i -= 1
        if items[i] == dest:
            return i
    return -1


cdef int match_dests_add(match_dests_t* dests, dest_t* dest) noexcept nogil:
    cdef dest_t* only = dests.at.one
    cdef u32 cap = dests.cap * 2 if dests.cap else 4
    cdef void* items
    if dests.n == 0 and dests.cap == 0:
        dests.at.one = dest
        dests.n = 1
        return 0
    if dests.cap == 0 or dests.n == dests.cap:
        items = realloc(dests.at.many if dests.cap else NULL, cap * sizeof(dest_t*))
        if items == NULL:
            return MATCH_NO_MEMORY
        dests.at.many = <dest_t**>items
        if dests.cap == 0:
            dests.at.many[0] = only
        dests.cap = cap
    dests.at.many[dests.n] = dest
    dests.n += 1
    return 0


cdef void match_dests_clear(match_dests_t* dests) noexcept nogil:
    if dests.cap:
        free(dests.at.many)
    memset(dests, 0, sizeof(match_dests_t))


cdef bint match_dests_remove(match_dests_t* dests, dest_t* dest) noexcept nogil:
    """Take out one occurrence of *dest*; False when there is none. Keeps the order."""
    cdef dest_t** items = match_dests_items(dests)
    cdef i64 at = match_dests_find(dests, dest)
    cdef void* smaller
    if at < 0:
        return False
    dests.n -= 1
    memmove(&items[at], &items[at + 1], (dests.n - at) * sizeof(dest_t*))
    if dests.cap == 0:
        return True
    if dests.n <= 1:
        dest = items[0]
        free(items)
        dests.cap = 0
        dests.at.one = dest
    elif dests.n * 4 <= dests.cap:
        smaller = realloc(items, dests.cap // 2 * sizeof(dest_t*))
        if smaller != NULL:
            dests.at.many = <dest_t**>smaller
            dests.cap //= 2
    return True


# ---- hash table ------------------------------------------------------------------------------

# hot
cdef inline match_link_t** match_slot(const match_table_t* table, u64 hash) noexcept nogil:
    """The chain of what has that hash. The table must have slots."""
    cdef u32 at = <u32>hash & table.mask
    if table.n_slots > table.mask:
        return &table.slots[at]
    # Without a branch, which nobody could foretell.
    return &table.slots[at & (table.mask >> <u32>(at >= table.n_slots))]


cdef inline void match_link_at(match_link_t* link, match_link_t** slot) noexcept nogil:
    """Become the first of a chain."""
    link.next = slot[0]
    link.at = NULL
    if link.next != NULL:
        link.next.at = &link.next
    slot[0] = link


cdef void match_link_rehome(match_table_t* table, u32 at) noexcept nogil:
    cdef match_link_t* link = table.slots[at]
    cdef match_link_t* after
    table.slots[at] = NULL
    while link != NULL:
        after = link.next
        match_link_at(link, match_slot(table, link.hash))
        link = after


cdef enum:
    FEWEST_SLOTS = 8
    SLOTS_AT_ONCE = 4096  # 20 us


cdef bint match_table_room(match_table_t* table, u32 n_slots) noexcept nogil:
    """Have room for so many slots, a power of two, and no fewer than there are. Whether there was
    memory."""
    cdef void* slots = realloc(table.slots, n_slots * sizeof(match_link_t*))
    if slots == NULL:
        return False
    table.slots = <match_link_t**>slots
    table.mask = n_slots - 1
    return True


cdef inline bint match_table_is_odd(const match_table_t* table) noexcept nogil:
    """Whether a table has a number of slots that is no power of two, although it is small: finding
    a slot is quicker if it is one."""
    return table.n_slots <= table.mask and table.mask < SLOTS_AT_ONCE


cdef int match_table_grow(match_table_t* table, match_rehome_t rehome) noexcept nogil:
    """Make room for one more: two slots for each, in a small table for twice as many. Only the
    very first slots can fail: later, chains grow instead."""
    if table.slots == NULL:
        if not match_table_room(table, FEWEST_SLOTS):
            return MATCH_NO_MEMORY
        memset(table.slots, 0, FEWEST_SLOTS * sizeof(match_link_t*))
        table.n_slots = FEWEST_SLOTS
    while <u64>table.n * 2 >= table.n_slots or match_table_is_odd(table):
        if table.n_slots > table.mask and (
                table.mask >= 0x3FFFFFFF or not match_table_room(table, 2 * table.n_slots)):
            return 0
        table.slots[table.n_slots] = NULL
        table.n_slots += 1
        rehome(table, (table.n_slots - 1) & (table.mask >> 1))
    return 0


cdef void match_table_shrink(match_table_t* table, match_rehome_t rehome) noexcept nogil:
    """One was taken out of its slot. Slots go when four of five are of no use."""
    table.n -= 1
    if table.n == 0:
        free(table.slots)
        memset(table, 0, sizeof(match_table_t))
        return
    while table.n_slots > FEWEST_SLOTS and (
            table.n < table.n_slots // 5 or match_table_is_odd(table)):
        table.n_slots -= 1
        rehome(table, table.n_slots)
        if table.n_slots == (table.mask + 1) >> 1:
            # Its slots are half the room: without a smaller one it keeps what it has.
            if not match_table_room(table, table.n_slots):
                table.mask = table.n_slots - 1


cdef int match_table_reserve(match_table_t* table) noexcept nogil:
    """Make room for one more link."""
    return match_table_grow(table, &match_link_rehome)


cdef void match_table_put(match_table_t* table, match_link_t* link) noexcept nogil:
    match_link_at(link, match_slot(table, link.hash))
    table.n += 1


cdef void match_table_cut(match_table_t* table, match_link_t* link) noexcept nogil:
    """Unlink *link*, which must be in the table."""
    cdef match_link_t** at = link.at if link.at != NULL else match_slot(table, link.hash)
    at[0] = link.next
    if link.next != NULL:
        link.next.at = link.at
    match_table_shrink(table, &match_link_rehome)


# ---- literal keys ----------------------------------------------------------------------------

# hot
cdef inline match_key_t* match_key_find(const match_t* m, const u8* key, u32 key_len,
                                        u64 hash) noexcept nogil:
    cdef match_link_t* link
    cdef match_key_t* node
    if m.keys.n == 0:
        return NULL
    link = match_slot(&m.keys, hash)[0]
    while link != NULL:
        node = <match_key_t*>link
        if link.hash == hash and node.key_len == key_len and same_bytes(node + 1, key, key_len):
            return node
        link = link.next
    return NULL


# hot
cdef inline int match_key_route(const match_t* m, const u8* key, u32 key_len,
                                targets_t* out) noexcept nogil:
    """Exact key. Cost: 15 ns in cache, two cache misses in a large table."""
    cdef match_key_t* node = match_key_find(m, key, key_len, hash_bytes(key, key_len, m.seed))
    if node == NULL:
        return 0
    return match_take_from(&node.dests, &out.cursor.at, True, out)


cdef match_key_t* match_key_make(match_t* m, const u8* key, u32 key_len, u64 hash) noexcept nogil:
    """A new literal key, which nothing is bound to yet; NULL when out of memory."""
    cdef match_key_t* node
    if match_table_reserve(&m.keys) < 0:
        return NULL
    node = <match_key_t*>calloc(1, sizeof(match_key_t) + key_len)
    if node == NULL:
        return NULL
    node.link.hash = hash
    node.key_len = key_len
    memcpy(node + 1, key, key_len)
    match_table_put(&m.keys, &node.link)
    return node


cdef int match_key_bind(match_t* m, const u8* key, u32 key_len, dest_t* dest) noexcept nogil:
    cdef u64 hash = hash_bytes(key, key_len, m.seed)
    cdef match_key_t* node = match_key_find(m, key, key_len, hash)
    if node != NULL:
        if match_dests_find(&node.dests, dest) >= 0:
            return MATCH_UNCHANGED
        return MATCH_ADDED if match_dests_add(&node.dests, dest) == 0 else MATCH_NO_MEMORY
    node = match_key_make(m, key, key_len, hash)
    if node == NULL:
        return MATCH_NO_MEMORY
    match_dests_add(&node.dests, dest)  # the first one needs no memory
    return MATCH_ADDED


cdef int match_key_unbind(match_t* m, const u8* key, u32 key_len, dest_t* dest) noexcept nogil:
    cdef match_key_t* node = match_key_find(m, key, key_len, hash_bytes(key, key_len, m.seed))
    if node == NULL or not match_dests_remove(&node.dests, dest):
        return MATCH_UNCHANGED
    if node.dests.n == 0:
        match_table_cut(&m.keys, &node.link)
        free(node)
    return MATCH_ADDED


# ---- fanout ----------------------------------------------------------------------------------

cdef int match_fanout_bind(match_t* m, const u8* key, u32 key_len, dest_t* dest) noexcept nogil:
    """`every` holds a destination once per binding, so unbinding one key needs no count."""
    cdef int result = match_key_bind(m, key, key_len, dest)
    if result == MATCH_ADDED and match_dests_add(&m.every, dest) < 0:
        match_key_unbind(m, key, key_len, dest)
        return MATCH_NO_MEMORY
    return result


cdef int match_fanout_unbind(match_t* m, const u8* key, u32 key_len, dest_t* dest) noexcept nogil:
    cdef int result = match_key_unbind(m, key, key_len, dest)
    if result == MATCH_ADDED:
        match_dests_remove(&m.every, dest)
    return result

# Match: the compiled bindings of one exchange, from a routing key or headers to destinations.
#
# Owns: one match_t per exchange, in plain C memory. Python binds and unbinds; the route cache calls
# match_route when it does not know a key, headers exchanges call it for every message. A match_t
# and the destinations it names belong to one thread. Nothing here touches Python, copies a
# destination or frees one: whoever deletes a destination unbinds it first.
#
# Literal keys of every kind stand in one hash table. Topic keys with wildcards form a trie whose
# literal children stand in a second table under (parent, word). A headers binding is found through
# one of its pairs, so routing visits the bindings that share a pair with the message, not all.
# Consistent hashing is in hash_ring.pyx, what takes any one destination in pick.pyx.
#
# Routing one message may be long: it asks now and then whether its turn is over, and then keeps
# where it is in targets_t, so that the same call goes on from there. Bindings must not have changed
# until then; destinations that were taken have to be marked anew (targets_resume).
#
# Longer than 500 lines: three matchers, and included files cannot hide a shared table elsewhere.
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from bytes cimport be32, hash_bytes, i64, same_bytes, u8, u32, u64
from match cimport (
    DEST_GONE, HEADER_INLINE, HEADER_NESTED_MAX, MATCH_ADDED, MATCH_BAD_INPUT, MATCH_BAD_HEADER,
    MATCH_BAD_MODE, MATCH_DIRECT, MATCH_FANOUT, MATCH_HASH, MATCH_LOOK, MATCH_MODULUS,
    MATCH_NO_MEMORY, MATCH_RANDOM, MATCH_TIRED, MATCH_TOPIC, MATCH_UNCHANGED, TOPIC_KEY_MAX,
    TOPIC_QUICK, dest_t, hasher_t, header_field_t, header_index_t, header_pair_t, header_rule_t,
    match_cursor_t, match_dests_t, match_key_t, match_link_t, match_t, match_table_t, targets_t,
    topic_node_t, topic_nodes_t, topic_words_t,
)


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
cdef inline int match_take(targets_t* out, dest_t* dest) noexcept nogil:
    """Append *dest* unless this routing has it already. Cost: 2 ns and the touch of `mark`."""
    if dest.mark >= out.generation:
        out.n_again += dest.mark != DEST_GONE
        return 0
    if out.n == out.cap and match_widen(out) < 0:
        return MATCH_NO_MEMORY
    dest.mark = out.generation
    out.items[out.n] = dest
    out.n += 1
    return 0


# hot
cdef inline void targets_begin(targets_t* out, u64 generation) noexcept nogil:
    """Be ready for the routing of another message."""
    out.n = 0
    out.generation = generation
    if out.is_tired:
        cursor_reset(out)


cdef void targets_resume(targets_t* out, u64 generation) noexcept nogil:
    """Go on with a routing after others: what was taken has their marks. Cost: 10 ns each."""
    cdef u32 i
    out.generation = generation
    for i in range(out.n):
        if out.items[i].mark != DEST_GONE:
            out.items[i].mark = generation


cdef void targets_free(targets_t* out) noexcept nogil:
    free(out.items)
    free(out.cursor.here.items)
    free(out.cursor.next.items)


cdef void cursor_reset(targets_t* out) noexcept nogil:
    """Whatever comes next begins at its beginning."""
    cdef match_cursor_t* at = &out.cursor
    out.is_tired = at.is_begun = at.is_slow = False
    at.at = at.dest = at.word = at.here.n = at.next.n = 0
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
cdef inline dest_t** match_dests_items(match_dests_t* dests) noexcept nogil:
    return &dests.at.one if dests.cap == 0 else dests.at.many


# hot
cdef inline int match_take_all(match_dests_t* dests, targets_t* out) noexcept nogil:
    """Append every destination of one binding key. Cost: 2 ns each."""
    cdef dest_t** items = match_dests_items(dests)
    cdef u32 i
    for i in range(dests.n):
        if match_take(out, items[i]) < 0:
            return MATCH_NO_MEMORY
    out.work += dests.n
    return 0


# hot
cdef inline int match_take_from(match_dests_t* dests, u32* at, targets_t* out) noexcept nogil:
    """The same from *at* on, which is 0 again at the end; MATCH_TIRED when the turn ends before."""
    cdef dest_t** items = match_dests_items(dests)
    while at[0] < dests.n:
        if match_take(out, items[at[0]]) < 0:
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

cdef inline void match_link_at(match_link_t* link, match_link_t** slot) noexcept nogil:
    """Become the first of a chain."""
    link.next = slot[0]
    link.at = slot
    if link.next != NULL:
        link.next.at = &link.next
    slot[0] = link


cdef int match_table_resize(match_table_t* table, u32 n_slots) noexcept nogil:
    cdef match_link_t** slots = <match_link_t**>calloc(n_slots, sizeof(match_link_t*))
    cdef match_link_t* link
    cdef match_link_t* after
    cdef u32 i
    if slots == NULL:
        return MATCH_NO_MEMORY
    for i in range(table.mask + 1 if table.slots != NULL else 0):
        link = table.slots[i]
        while link != NULL:
            after = link.next
            match_link_at(link, &slots[link.hash & (n_slots - 1)])
            link = after
    free(table.slots)
    table.slots = slots
    table.mask = n_slots - 1
    return 0


cdef int match_table_reserve(match_table_t* table) noexcept nogil:
    """Make room for one more. Only the very first slots can fail: later, chains grow instead."""
    if table.slots == NULL:
        return match_table_resize(table, 8)
    if table.n > table.mask and table.mask < 0x3FFFFFFF:
        match_table_resize(table, (table.mask + 1) * 2)
    return 0


cdef void match_table_put(match_table_t* table, match_link_t* link) noexcept nogil:
    match_link_at(link, &table.slots[link.hash & table.mask])
    table.n += 1


cdef void match_table_cut(match_table_t* table, match_link_t* link) noexcept nogil:
    """Unlink *link*, which must be in the table."""
    link.at[0] = link.next
    if link.next != NULL:
        link.next.at = link.at
    table.n -= 1
    if table.n == 0:
        free(table.slots)
        table.slots = NULL
        table.mask = 0
    elif table.mask >= 8 and table.n < table.mask // 8:
        match_table_resize(table, (table.mask + 1) // 4)


# ---- literal keys ----------------------------------------------------------------------------

# hot
cdef inline match_key_t* match_key_find(match_t* m, const u8* key, u32 key_len,
                                        u64 hash) noexcept nogil:
    cdef match_link_t* link
    cdef match_key_t* node
    if m.keys.n == 0:
        return NULL
    link = m.keys.slots[hash & m.keys.mask]
    while link != NULL:
        node = <match_key_t*>link
        if link.hash == hash and node.key_len == key_len and same_bytes(node + 1, key, key_len):
            return node
        link = link.next
    return NULL


# hot
cdef inline int match_key_route(match_t* m, const u8* key, u32 key_len,
                                targets_t* out) noexcept nogil:
    """Exact key. Cost: 15 ns in cache, two cache misses in a large table."""
    cdef match_key_t* node = match_key_find(m, key, key_len, hash_bytes(key, key_len, m.seed))
    if node == NULL:
        return 0
    return match_take_from(&node.dests, &out.cursor.at, out)


cdef int match_key_bind(match_t* m, const u8* key, u32 key_len, dest_t* dest) noexcept nogil:
    cdef u64 hash = hash_bytes(key, key_len, m.seed)
    cdef match_key_t* node = match_key_find(m, key, key_len, hash)
    if node != NULL:
        if match_dests_find(&node.dests, dest) >= 0:
            return MATCH_UNCHANGED
        return MATCH_ADDED if match_dests_add(&node.dests, dest) == 0 else MATCH_NO_MEMORY
    if match_table_reserve(&m.keys) < 0:
        return MATCH_NO_MEMORY
    node = <match_key_t*>calloc(1, sizeof(match_key_t) + key_len)
    if node == NULL:
        return MATCH_NO_MEMORY
    node.link.hash = hash
    node.key_len = key_len
    memcpy(node + 1, key, key_len)
    match_dests_add(&node.dests, dest)  # the first one needs no memory
    match_table_put(&m.keys, &node.link)
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


# ---- topic -----------------------------------------------------------------------------------

# hot
cdef inline void topic_split(match_t* m, const u8* key, u32 key_len,
                             topic_words_t* words) noexcept nogil:
    """Part *key* (≤ TOPIC_KEY_MAX bytes) at its dots and hash each word. Cost: 5 ns per word."""
    cdef u32 start = 0, n = 0, i
    words.key = key
    for i in range(key_len + 1):
        if i < key_len and key[i] != c'.':
            continue
        words.start[n] = start
        words.length[n] = i - start
        words.hash[n] = hash_bytes(key + start, i - start, m.seed)
        start = i + 1
        n += 1
    words.n = n


# hot
cdef inline u64 topic_edge(topic_node_t* parent, u64 word_hash) noexcept nogil:
    """Hash of (parent, word). The multiply spreads equal words under neighbouring parents."""
    cdef u64 hash = (word_hash ^ <u64><size_t>parent) * <u64>0x9FB21C651E98DF25
    return hash ^ (hash >> 32)


# hot
cdef inline topic_node_t* topic_literal(match_t* m, topic_node_t* node, topic_words_t* words,
                                        u32 i) noexcept nogil:
    cdef match_link_t* link
    cdef topic_node_t* child
    cdef u64 hash
    if node.n_literals == 0:
        return NULL
    hash = topic_edge(node, words.hash[i])
    link = m.nodes.slots[hash & m.nodes.mask]
    while link != NULL:
        child = <topic_node_t*>link
        if (link.hash == hash and child.parent == node and child.word_len == words.length[i]
                and same_bytes(child + 1, words.key + words.start[i], words.length[i])):
            return child
        link = link.next
    return NULL


# hot
cdef int topic_enter(match_t* m, topic_node_t* node, topic_words_t* words, u32 i,
                     targets_t* out) noexcept nogil:
    """Reach a '#' before word *i*: it takes the rest, or its children go on from any later word.

    One visit per routing is enough: walks go from left to right, so the first visit has the
    smallest *i* and covers what a later one could add. Thus any number of '#' stays polynomial,
    at most (words x nodes) steps.
    """
    cdef topic_node_t* child
    cdef int rc
    if node.walk == m.walk:
        return 0
    node.walk = m.walk
    if match_take_all(&node.dests, out) < 0:
        return MATCH_NO_MEMORY
    if node.hash != NULL:
        rc = topic_enter(m, node.hash, words, i, out)
        if rc:
            return rc
    if node.n_literals == 0 and node.star == NULL:
        return 0
    while i < words.n:
        child = topic_literal(m, node, words, i)
        i += 1
        out.work += 1
        if out.work > out.cursor.quick_end:
            return MATCH_TIRED
        if child != NULL:
            rc = topic_walk(m, child, words, i, out)
            if rc:
                return rc
        if node.star != NULL:
            rc = topic_walk(m, node.star, words, i, out)
            if rc:
                return rc
    return 0


# hot
cdef int topic_walk(match_t* m, topic_node_t* node, topic_words_t* words, u32 i,
                    targets_t* out) noexcept nogil:
    """Go on from *node*, which the words before *i* have reached. Recursion ≤ words of a binding.

    Cost: 5 ns per node in cache; see perf/micro/match.py.
    """
    cdef int rc
    while node != NULL:
        if node.hash != NULL:
            rc = topic_enter(m, node.hash, words, i, out)
            if rc:
                return rc
        if i == words.n:
            return match_take_all(&node.dests, out)
        if node.star != NULL:
            out.work += 1
            if out.work > out.cursor.quick_end:
                return MATCH_TIRED
            rc = topic_walk(m, node.star, words, i + 1, out)
            if rc:
                return rc
        node = topic_literal(m, node, words, i)
        i += 1
    return 0


# hot
cdef inline int topic_route(match_t* m, const u8* key, u32 key_len, targets_t* out) noexcept nogil:
    """Literal keys by one probe, then the trie if any key has wildcards: at first the quick way,
    which may visit a node once for each way that leads there, and if that is too much by position
    in the key, which does not."""
    cdef topic_words_t words
    cdef int rc
    if key_len > TOPIC_KEY_MAX:
        return 0
    if key_len > 0 and key[key_len - 1] == c'.':
        key_len -= 1
    if m.keys.n != 0 and not out.cursor.is_slow:
        rc = match_key_route(m, key, key_len, out)
        if rc:
            return rc
    if m.root.n_literals == 0 and m.root.star == NULL and m.root.hash == NULL:
        return 0
    topic_split(m, key, key_len, &words)
    if not out.cursor.is_slow:
        m.walk += 1
        out.cursor.quick_end = out.work + (TOPIC_QUICK if out.look >= MATCH_LOOK else 0)
        rc = topic_walk(m, &m.root, &words, 0, out)
        if rc != MATCH_TIRED:
            return rc
    return topic_by_position(m, &words, out)


cdef int topic_reach(topic_node_t* node, u64 walk, topic_nodes_t* to) noexcept nogil:
    """Add a node, and the '#' that may follow it without a word, to those of a position."""
    cdef void* grown
    while node != NULL and node.walk != walk:
        if to.n == to.cap:
            grown = realloc(to.items, (<size_t>to.cap * 2 + 64) * sizeof(topic_node_t*))
            if grown == NULL:
                return MATCH_NO_MEMORY
            to.items = <topic_node_t**>grown
            to.cap = to.cap * 2 + 64
        node.walk = walk
        to.items[to.n] = node
        to.n += 1
        node = node.hash
    return 0


cdef int topic_step(match_t* m, topic_node_t* node, topic_words_t* words, u32 i, u64 walk,
                    topic_nodes_t* to) noexcept nogil:
    """Add the nodes that word *i* leads to from *node*: a '#' stays where it is, too."""
    if node.parent != NULL and node.parent.hash == node and topic_reach(node, walk, to) < 0:
        return MATCH_NO_MEMORY
    if topic_reach(node.star, walk, to) < 0:
        return MATCH_NO_MEMORY
    return topic_reach(topic_literal(m, node, words, i), walk, to)


cdef int topic_by_position(match_t* m, topic_words_t* words, targets_t* out) noexcept nogil:
    """All nodes that each position in the key reaches, one position after the other: at most
    (words x nodes) steps, whatever the bindings. Goes on where it was when it got tired: a node may
    then be visited once more, because other walks have left their marks."""
    cdef match_cursor_t* at = &out.cursor
    cdef topic_nodes_t nodes
    cdef int rc
    if not at.is_slow:
        cursor_reset(out)
        at.is_slow = True
        m.walk += 1
        if topic_reach(&m.root, m.walk, &at.here) < 0:
            return MATCH_NO_MEMORY
        m.walk += 1
        at.walk = m.walk
    while at.word < words.n:
        while at.at < at.here.n:
            if topic_step(m, at.here.items[at.at], words, at.word, at.walk, &at.next) < 0:
                return MATCH_NO_MEMORY
            at.at += 1
            if match_tired(out, 4):
                return MATCH_TIRED
        nodes = at.here
        at.here = at.next
        at.next = nodes
        at.next.n = at.at = 0
        at.word += 1
        m.walk += 1
        at.walk = m.walk
    while at.at < at.here.n:
        rc = match_take_from(&at.here.items[at.at].dests, &at.dest, out)
        if rc:
            return rc
        at.at += 1
        if match_tired(out, 1):
            return MATCH_TIRED
    cursor_reset(out)
    return 0


cdef bint topic_is_word(topic_words_t* words, u32 i, u8 wildcard) noexcept nogil:
    return words.length[i] == 1 and words.key[words.start[i]] == wildcard


cdef bint topic_has_wildcard(topic_words_t* words) noexcept nogil:
    cdef u32 i
    for i in range(words.n):
        if topic_is_word(words, i, c'*') or topic_is_word(words, i, c'#'):
            return True
    return False


cdef topic_node_t* topic_child(match_t* m, topic_node_t* node, topic_words_t* words,
                               u32 i) noexcept nogil:
    if topic_is_word(words, i, c'*'):
        return node.star
    if topic_is_word(words, i, c'#'):
        return node.hash
    return topic_literal(m, node, words, i)


cdef topic_node_t* topic_grow(match_t* m, topic_node_t* parent, topic_words_t* words,
                              u32 i) noexcept nogil:
    """Add the child of *parent* for binding word *i*; NULL when out of memory."""
    cdef bint is_star = topic_is_word(words, i, c'*')
    cdef bint is_literal = not is_star and not topic_is_word(words, i, c'#')
    cdef u32 word_len = words.length[i] if is_literal else 0
    cdef topic_node_t* node
    if is_literal and match_table_reserve(&m.nodes) < 0:
        return NULL
    node = <topic_node_t*>calloc(1, sizeof(topic_node_t) + word_len)
    if node == NULL:
        return NULL
    node.parent = parent
    if is_star:
        parent.star = node
        return node
    if not is_literal:
        parent.hash = node
        return node
    node.word_len = word_len
    memcpy(node + 1, words.key + words.start[i], word_len)
    node.link.hash = topic_edge(parent, words.hash[i])
    match_table_put(&m.nodes, &node.link)
    parent.n_literals += 1
    return node


cdef void topic_prune(match_t* m, topic_node_t* node) noexcept nogil:
    """Free *node* and its ancestors as far as nothing is bound at or below them."""
    cdef topic_node_t* parent
    while node != &m.root and node.dests.n == 0 and node.n_literals == 0:
        if node.star != NULL or node.hash != NULL:
            return
        parent = node.parent
        if parent.star == node:
            parent.star = NULL
        elif parent.hash == node:
            parent.hash = NULL
        else:
            match_table_cut(&m.nodes, &node.link)
            parent.n_literals -= 1
        free(node)
        node = parent


cdef int topic_bind(match_t* m, const u8* key, u32 key_len, dest_t* dest) noexcept nogil:
    cdef topic_words_t words
    cdef topic_node_t* node = &m.root
    cdef topic_node_t* child
    cdef u32 i
    if key_len > TOPIC_KEY_MAX:
        return MATCH_BAD_INPUT
    topic_split(m, key, key_len, &words)
    if not topic_has_wildcard(&words):
        return match_key_bind(m, key, key_len, dest)
    for i in range(words.n):
        child = topic_child(m, node, &words, i)
        if child == NULL:
            child = topic_grow(m, node, &words, i)
        if child == NULL:
            topic_prune(m, node)
            return MATCH_NO_MEMORY
        node = child
    if match_dests_find(&node.dests, dest) >= 0:
        return MATCH_UNCHANGED
    if match_dests_add(&node.dests, dest) == 0:
        return MATCH_ADDED
    topic_prune(m, node)
    return MATCH_NO_MEMORY


cdef int topic_unbind(match_t* m, const u8* key, u32 key_len, dest_t* dest) noexcept nogil:
    cdef topic_words_t words
    cdef topic_node_t* node = &m.root
    cdef u32 i
    if key_len > TOPIC_KEY_MAX:
        return MATCH_UNCHANGED
    topic_split(m, key, key_len, &words)
    if not topic_has_wildcard(&words):
        return match_key_unbind(m, key, key_len, dest)
    for i in range(words.n):
        node = topic_child(m, node, &words, i)
        if node == NULL:
            return MATCH_UNCHANGED
    if not match_dests_remove(&node.dests, dest):
        return MATCH_UNCHANGED
    topic_prune(m, node)
    return MATCH_ADDED


cdef void topic_free(topic_node_t* node) noexcept nogil:
    """Free the wildcard children of *node*; literal children are freed through the table."""
    if node.star != NULL:
        topic_free(node.star)
        free(node.star)
    if node.hash != NULL:
        topic_free(node.hash)
        free(node.hash)
    match_dests_clear(&node.dests)


# ---- headers: values -----------------------------------------------------------------------------

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


# ---- headers: bindings -----------------------------------------------------------------------

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
cdef inline header_pair_t* header_pairs(header_rule_t* rule) noexcept nogil:
    return <header_pair_t*>(rule + 1)


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


cdef header_rule_t* header_find(match_t* m, const u8* key, u32 key_len, const u8* args,
                                u32 args_len, dest_t* dest) noexcept nogil:
    cdef u64 hash = header_identity(m, key, key_len, args, args_len, dest)
    cdef header_rule_t* rule
    cdef match_link_t* link
    cdef u8* tail
    if m.rules.n == 0:
        return NULL
    link = m.rules.slots[hash & m.rules.mask]
    while link != NULL:
        rule = <header_rule_t*>link
        tail = <u8*>(header_pairs(rule) + rule.n_pairs)
        if (link.hash == hash and rule.dest == dest and rule.key_len == key_len
                and rule.args_len == args_len and same_bytes(tail, key, key_len)
                and same_bytes(tail + key_len, args, args_len)):
            return rule
        link = link.next
    return NULL


cdef void header_compile(match_t* m, header_rule_t* rule) noexcept nogil:
    """Fill the pairs of *rule* from its own copy of the arguments."""
    cdef header_pair_t* pair = header_pairs(rule)
    cdef const u8* field = <const u8*>(pair + rule.n_pairs) + rule.key_len
    cdef const u8* end = field + rule.args_len
    cdef const u8* after
    while field < end:
        after = header_skip(header_value(field, end), end)
        if header_is_pair(field + 1, field[0], rule.is_with_x):
            pair.rule = rule
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
    cdef match_link_t* link = m.pairs.slots[hash & m.pairs.mask]
    cdef u32 n = 0
    while link != NULL and n < 64:
        n += link.hash == hash
        link = link.next
    return n


cdef void header_file(match_t* m, header_rule_t* rule) noexcept nogil:
    """Enter the pairs into the table: all of an "any", of an "all" the least common one."""
    cdef header_pair_t* pairs = header_pairs(rule)
    cdef u32 least = 0xFFFFFFFF, crowd, i
    for i in range(rule.n_pairs):
        if rule.is_any:
            match_table_reserve(&m.pairs)
            match_table_put(&m.pairs, &pairs[i].link)
            continue
        crowd = header_crowd(m, pairs[i].link.hash)
        if crowd < least:
            least = crowd
            rule.picked = i
    if not rule.is_any and rule.n_pairs > 0:
        match_table_put(&m.pairs, &pairs[rule.picked].link)


cdef int header_list(match_t* m, header_rule_t* rule) noexcept nogil:
    """Rules without a pair: `every` for messages with headers, `bare` for those without."""
    cdef bint is_open = rule.n_pairs == 0 and not rule.is_any
    if is_open and match_dests_add(&m.every, rule.dest) < 0:
        return MATCH_NO_MEMORY
    if rule.args_len == 0 and match_dests_add(&m.bare, rule.dest) < 0:
        if is_open:
            match_dests_remove(&m.every, rule.dest)
        return MATCH_NO_MEMORY
    return 0


cdef int header_bind(match_t* m, const u8* key, u32 key_len, const u8* args, u32 args_len,
                     dest_t* dest) noexcept nogil:
    cdef header_rule_t* rule
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
    if match_table_reserve(&m.rules) < 0 or match_table_reserve(&m.pairs) < 0:
        return MATCH_NO_MEMORY
    rule = <header_rule_t*>calloc(
        1, sizeof(header_rule_t) + n_pairs * sizeof(header_pair_t) + key_len + args_len)
    if rule == NULL:
        return MATCH_NO_MEMORY
    rule.link.hash = header_identity(m, key, key_len, args, args_len, dest)
    rule.dest = dest
    rule.key_len = key_len
    rule.args_len = args_len
    rule.n_pairs = n_pairs
    rule.is_any = mode & 1
    rule.is_with_x = mode >= 2
    m.has_with_x = m.has_with_x or rule.is_with_x
    tail = <u8*>(header_pairs(rule) + n_pairs)
    memcpy(tail, key, key_len)
    memcpy(tail + key_len, args, args_len)
    if header_list(m, rule) < 0:
        free(rule)
        return MATCH_NO_MEMORY
    header_compile(m, rule)
    header_file(m, rule)
    match_table_put(&m.rules, &rule.link)
    return MATCH_ADDED


cdef int header_unbind(match_t* m, const u8* key, u32 key_len, const u8* args, u32 args_len,
                       dest_t* dest) noexcept nogil:
    cdef header_rule_t* rule = header_find(m, key, key_len, args, args_len, dest)
    cdef header_pair_t* pairs
    cdef u32 i
    if rule == NULL:
        return MATCH_UNCHANGED
    pairs = header_pairs(rule)
    for i in range(rule.n_pairs):
        if rule.is_any or i == rule.picked:
            match_table_cut(&m.pairs, &pairs[i].link)
    if rule.n_pairs == 0 and not rule.is_any:
        match_dests_remove(&m.every, dest)
    if args_len == 0:
        match_dests_remove(&m.bare, dest)
    match_table_cut(&m.rules, &rule.link)
    free(rule)
    if m.rules.n == 0:
        m.key_bits = 0
    return MATCH_ADDED


# ---- headers: routing --------------------------------------------------------------------------

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
cdef void header_read(match_t* m, const u8* at, const u8* end,
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
cdef bint header_holds(header_rule_t* rule, header_index_t* index) noexcept nogil:
    """True when every pair of an "all" is among the message's headers. Cost: 8 ns per pair."""
    cdef header_pair_t* pair = header_pairs(rule)
    cdef header_field_t* field
    cdef u32 _i, slot
    for _i in range(rule.n_pairs):
        field = header_seek(index, pair.key, pair.key_len, pair.key_hash, &slot)
        if field == NULL or not header_agrees(pair, field):
            return False
        pair += 1
    return True


# hot
cdef inline bint header_meets(header_pair_t* pair, header_field_t* field,
                              header_index_t* index) noexcept nogil:
    """Does the rule behind *pair* match, given that *field* hashes like the pair?"""
    if not pair.rule.is_any:
        return header_holds(pair.rule, index)
    return (pair.key_len == field.key_len and same_bytes(pair.key, field.key, field.key_len)
            and header_agrees(pair, field))


# hot
cdef int header_probe(match_t* m, header_index_t* index, targets_t* out) noexcept nogil:
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
        link = at.link if at.link != NULL else m.pairs.slots[hash & m.pairs.mask]
        at.link = NULL
        while link != NULL:
            pair = <header_pair_t*>link
            if (link.hash == hash
                    and (pair.rule.dest.mark != out.generation or out.n == at.n_before)):
                if header_meets(pair, field, index) and match_take(out, pair.rule.dest) < 0:
                    return MATCH_NO_MEMORY
                out.work += pair.rule.n_pairs + (pair.value_len >> 6)
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
cdef int header_route(match_t* m, const u8* headers, u32 headers_len,
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
        return match_take_from(&m.bare, &out.cursor.at, out)
    n = header_count(headers, headers + headers_len)
    if n < 0:
        return 0
    if not out.cursor.is_begun:
        result = match_take_from(&m.every, &out.cursor.at, out)
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


# ---- the matcher -------------------------------------------------------------------------------

cdef match_t* match_new(int kind, u64 seed) noexcept nogil:
    """An empty matcher of a match_kind; NULL when out of memory. *seed*: random, per process."""
    cdef match_t* m = <match_t*>calloc(1, sizeof(match_t))
    if m == NULL:
        return NULL
    m.kind = kind
    m.seed = seed
    m.walk = seed if kind == MATCH_RANDOM else 0
    if kind == MATCH_HASH:
        m.hasher = <hasher_t*>calloc(1, sizeof(hasher_t))
        if m.hasher == NULL:
            free(m)
            return NULL
    return m


cdef void match_table_free(match_table_t* table, int what) noexcept nogil:
    """Free the slots and what they hold: *what* 0 keys, 1 topic nodes, 2 rules."""
    cdef match_link_t* link
    cdef match_link_t* after
    cdef u32 i
    for i in range(table.mask + 1 if table.slots != NULL else 0):
        link = table.slots[i]
        while link != NULL:
            after = link.next
            if what == 0:
                match_dests_clear(&(<match_key_t*>link).dests)
            elif what == 1:
                topic_free(<topic_node_t*>link)
            free(link)
            link = after
    free(table.slots)


cdef void match_free(match_t* m) noexcept nogil:
    """Free the matcher, not the destinations. NULL is allowed."""
    if m == NULL:
        return
    match_table_free(&m.keys, 0)
    match_table_free(&m.nodes, 1)
    match_table_free(&m.rules, 2)
    free(m.pairs.slots)
    hash_free(m.hasher)
    topic_free(&m.root)
    match_dests_clear(&m.every)
    match_dests_clear(&m.bare)
    free(m)


cdef void match_set_default_any(match_t* m, bint is_any) noexcept nogil:
    """What a headers binding without x-match means; set before the first binding."""
    m.default_any = is_any


cdef u32 match_count(match_t* m) noexcept nogil:
    """Number of bindings."""
    return m.count


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
    else:
        result = header_unbind(m, key, key_len, args, args_len, dest)
    if result == MATCH_ADDED:
        m.count -= 1
    return result


# hot
cdef int match_route(match_t* m, const u8* key, u32 key_len, const u8* props, u32 headers_at,
                     targets_t* out) noexcept nogil:
    """Append the destinations of one message that this generation has not got yet.

    Args: *props*, its properties in wire order, and the offset of the headers table's length in
    them, 0 for none.
    Returns 0, -1 when out of memory, MATCH_BAD_HEADER (406), or MATCH_TIRED when the turn is over:
    then the same call goes on. Source: amqp.md section 8.
    Cost: direct 10-25 ns, topic 20-90 ns, headers 60-90 ns for four; perf/micro/match.py.
    """
    if m.kind == MATCH_DIRECT:
        return match_key_route(m, key, key_len, out)
    if m.kind == MATCH_FANOUT:
        return match_take_from(&m.every, &out.cursor.at, out)
    if m.kind == MATCH_TOPIC:
        return topic_route(m, key, key_len, out)
    out.work += 4
    if m.kind == MATCH_HASH:
        return hash_route(m, key, key_len, props, headers_at, out)
    if m.kind == MATCH_RANDOM or m.kind == MATCH_MODULUS:
        return pick_route(m, key, key_len, out)
    if headers_at == 0:
        return header_route(m, NULL, 0, out)
    return header_route(m, props + headers_at + 4, be32(props + headers_at), out)


# ---- for tests and tools -----------------------------------------------------------------------

cdef extern from *:
    """
    #include <time.h>
    static inline uint64_t matcher_cpu_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    """
    u64 matcher_cpu_ns() noexcept nogil

cdef struct matcher_dest_t:
    dest_t dest
    i64 number


cdef bytes properties_of(bytes headers):
    """Properties in wire order with this content of a headers table, or with none."""
    if headers is None:
        return b"\0\0"
    return (<int>FLAG_HEADERS).to_bytes(2, "big") + len(headers).to_bytes(4, "big") + headers


cdef bint match_always(void* pauser, u32 work) noexcept nogil:
    """A turn that is over whenever somebody asks."""
    return True


cdef class Matcher:
    """A match_t with integers for destinations. For tests and tools; the broker never makes one.

    Args: *kind* 0 direct, 1 fanout, 2 topic, 3 headers, 4 hash, 5 random, 6 modulus; *seed* of the
    hash tables, and of what is random.
    """
    cdef match_t* match
    cdef targets_t targets
    cdef u64 generation
    cdef readonly int pauses    # of the last routing
    cdef dict addresses

    def __cinit__(self, int kind, u64 seed):
        if not 0 <= kind <= MATCH_MODULUS:
            raise ValueError(f"unknown kind {kind}")
        self.addresses = {}
        self.match = match_new(kind, seed)
        if self.match == NULL:
            raise MemoryError

    def __dealloc__(self):
        match_free(self.match)
        targets_free(&self.targets)
        for address in (self.addresses or {}).values():
            free(<void*><size_t>address)

    cdef dest_t* dest(self, i64 number) except NULL:
        cdef matcher_dest_t* dest
        if number not in self.addresses:
            dest = <matcher_dest_t*>calloc(1, sizeof(matcher_dest_t))
            if dest == NULL:
                raise MemoryError
            dest.number = number
            self.addresses[number] = <size_t>dest
        return <dest_t*><size_t>self.addresses[number]

    def __len__(self):
        return match_count(self.match)

    def weight(self):
        """Number of table entries and wildcards at the root: 0 when nothing is left behind."""
        cdef match_t* m = self.match
        return (m.keys.n + m.nodes.n + m.rules.n + m.pairs.n + m.every.n + m.bare.n
                + (m.root.star != NULL) + (m.root.hash != NULL)
                + (m.hasher.n_slots + m.hasher.n_points if m.hasher != NULL else 0))

    def set_default_any(self, bint is_any):
        """Meaning of a headers binding without x-match."""
        match_set_default_any(self.match, is_any)

    def set_hash(self, bint is_jump, bytes header=None, u32 property=0):
        """Algorithm of consistent hashing, and the header or the property to hash on."""
        if self.match.hasher == NULL:
            raise ValueError("not a matcher that hashes")
        hash_set_up(self.match, is_jump, header, property)

    def bind(self, bytes key not None, bytes args not None, i64 dest):
        """The match_result of match_bind."""
        return match_bind(self.match, key, len(key), args, len(args), self.dest(dest))

    def unbind(self, bytes key not None, bytes args not None, i64 dest):
        """1 removed, 0 there was none, -4 for a weight that is no number."""
        return match_unbind(self.match, key, len(key), args, len(args), self.dest(dest))

    def route(self, bytes key not None, bytes headers=None, bytes properties=None,
              list others=None):
        """Destinations of one message, each once, in the order they were found.

        With keys of *others*, it is stopped whenever that is possible, and one of those messages
        is routed before it goes on."""
        cdef props_t found
        cdef targets_t between
        cdef u32 n = 0
        if properties is None:
            properties = properties_of(headers)
        if (props_walk(properties, len(properties), True, &found) != 1
                or found.len != <u32>len(properties)):
            raise ValueError("malformed properties")
        memset(&between, 0, sizeof(targets_t))
        between.look = MATCH_LOOK
        self.targets.look = 0 if others else MATCH_LOOK
        self.targets.pause = NULL
        if others:
            self.targets.pause = match_always
        self.generation += 1
        targets_begin(&self.targets, self.generation)
        rc = match_route(self.match, key, len(key), properties, found.headers_at, &self.targets)
        while rc == MATCH_TIRED:
            other = others[n % len(others)]
            n += 1
            self.generation += 1
            targets_begin(&between, self.generation)
            match_route(self.match, other, len(other), NULL, 0, &between)
            self.generation += 1
            targets_resume(&self.targets, self.generation)
            rc = match_route(self.match, key, len(key), properties, found.headers_at,
                             &self.targets)
        targets_free(&between)
        self.pauses = n
        if rc == MATCH_BAD_HEADER:
            raise ValueError("the header to hash on is no string")
        if rc < 0:
            raise MemoryError
        return [(<matcher_dest_t*>self.targets.items[i]).number for i in range(self.targets.n)]

    def bench(self, list keys not None, u64 n, bytes headers=None):
        """Nanoseconds of processor time per routing; *n* routings take the *keys* in turn."""
        cdef bytes properties = properties_of(headers)
        cdef const u8* props = properties
        cdef u32 headers_at = 0 if headers is None else 2
        cdef size_t n_keys = len(keys), at = 0
        cdef u64 _i, start, spent
        cdef bytes item
        self.targets.look = MATCH_LOOK
        self.targets.pause = NULL
        cdef const u8** key = <const u8**>malloc((n_keys + 1) * sizeof(u8*))
        cdef u32* size = <u32*>malloc((n_keys + 1) * sizeof(u32))
        try:
            if key == NULL or size == NULL:
                raise MemoryError
            if n_keys == 0 or n == 0:
                raise ValueError("nothing to route")
            for at in range(n_keys):
                item = keys[at]
                key[at] = item
                size[at] = len(item)
            at = 0
            with nogil:
                start = matcher_cpu_ns()
                for _i in range(n):
                    self.generation += 1
                    targets_begin(&self.targets, self.generation)
                    match_route(self.match, key[at], size[at], props, headers_at, &self.targets)
                    at = at + 1 if at + 1 < n_keys else 0
                spent = matcher_cpu_ns() - start
            return <double>spent / n
        finally:
            free(key)
            free(size)

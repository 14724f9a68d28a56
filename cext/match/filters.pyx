# Filters: the subscriptions of MQTT, from a topic to sessions.
#
# Filters without a wildcard are literal keys (keys.pyx). The others form a trie of levels, of the
# same nodes as topic.pyx: `star` is '+', `hash` is '#', whose subscriptions match its parent, too.
# A node is reached by one way only, so no topic visits it twice. The walk has a stack in the
# cursor, which is as high as the trie is deep, and goes on in a later turn. A queue has at most one
# subscription with a filter; a table finds it. Part of match.pyx; called by mqtt/ only, since its
# destinations are subscriptions and no queues.
# Source: docs/mqtt.md, subscriptions; the standard, section 4.7.


# ---- levels --------------------------------------------------------------------------------------

# hot
cdef inline u32 level_end(const u8* topic, u32 len, u32 at) noexcept nogil:
    """Where the level that begins at `at` ends. Cost: 0.3 ns per byte."""
    while at < len and topic[at] != c'/':
        at += 1
    return at


cdef bint filter_is_literal(const u8* filter_, u32 len) noexcept nogil:
    cdef u32 i
    for i in range(len):
        if filter_[i] == c'+' or filter_[i] == c'#':
            return False
    return True


cdef bint filter_is_valid(const u8* filter_, u32 len) noexcept nogil:
    """Whether wildcards fill their levels, '#' the last one, and there are not too many levels."""
    cdef u32 at = 0, end, i, n = 0
    if len == 0 or len > TOPIC_MAX:
        return False
    if filter_is_literal(filter_, len):
        return True
    while at <= len:
        end = level_end(filter_, len, at)
        for i in range(at, end):
            if filter_[i] == c'#' and (end - at != 1 or end != len):
                return False
            if filter_[i] == c'+' and end - at != 1:
                return False
        n += 1
        at = end + 1
    return n <= FILTER_LEVELS_MAX


# ---- nodes ---------------------------------------------------------------------------------------

# hot
cdef inline topic_node_t* filter_literal(const match_t* m, const topic_node_t* node, const u8* word,
                                         u32 n) noexcept nogil:
    """The child for a level, or NULL. Cost: 5 ns in cache and 0.1 ns per byte."""
    cdef match_link_t* link
    cdef topic_node_t* child
    cdef u64 hash
    if node.n_literals == 0:
        return NULL
    hash = topic_edge(node, hash_bytes(word, n, m.seed))
    link = match_slot(&m.nodes, hash)[0]
    while link != NULL:
        child = topic_node_of(link)
        if (link.hash == hash and child.parent == node and child.word_len == n
                and same_bytes(child + 1, word, n)):
            return child
        link = link.next
    return NULL


cdef inline bint level_is(const u8* word, u32 n, u8 wildcard) noexcept nogil:
    return n == 1 and word[0] == wildcard


cdef topic_node_t* filter_child(const match_t* m, const topic_node_t* node, const u8* word,
                                u32 n) noexcept nogil:
    if level_is(word, n, c'+'):
        return node.star
    if level_is(word, n, c'#'):
        return node.hash
    return filter_literal(m, node, word, n)


cdef topic_node_t* filter_grow(match_t* m, topic_node_t* parent, const u8* word,
                               u32 n) noexcept nogil:
    """Add the child of *parent* for a level of a filter; NULL when out of memory."""
    cdef bint is_plus = level_is(word, n, c'+')
    cdef bint is_literal = not is_plus and not level_is(word, n, c'#')
    cdef topic_node_t* node
    if is_literal and match_table_reserve(&m.nodes) < 0:
        return NULL
    node = topic_node_new(parent, is_literal, n if is_literal else 0)
    if node == NULL:
        return NULL
    if is_plus:
        parent.star = node
        return node
    if not is_literal:
        parent.hash = node
        return node
    node.word_len = n
    memcpy(node + 1, word, n)
    node.link.hash = topic_edge(parent, hash_bytes(word, n, m.seed))
    match_table_put(&m.nodes, &node.link)
    parent.n_literals += 1
    return node


cdef topic_node_t* filter_node(match_t* m, const u8* filter_, u32 len, bint grows) noexcept nogil:
    """The node of a filter with wildcards; NULL when there is none, or no memory for it."""
    cdef topic_node_t* node = &m.root
    cdef topic_node_t* child
    cdef u32 at = 0, end
    while at <= len:
        end = level_end(filter_, len, at)
        child = filter_child(m, node, filter_ + at, end - at)
        if child == NULL and grows:
            child = filter_grow(m, node, filter_ + at, end - at)
            if child == NULL:
                topic_prune(m, node)
        if child == NULL:
            return NULL
        node = child
        at = end + 1
    return node


cdef match_key_t* filter_key(match_t* m, const u8* filter_, u32 len, bint grows) noexcept nogil:
    """The literal key of a filter without wildcards; NULL when there is none, or no memory."""
    cdef u64 hash = hash_bytes(filter_, len, m.seed)
    cdef match_key_t* key = match_key_find(m, filter_, len, hash)
    if key != NULL or not grows:
        return key
    return match_key_make(m, filter_, len, hash)


cdef void filter_trim(match_t* m, match_key_t* key, topic_node_t* node) noexcept nogil:
    """Let go of what nothing is bound to any more."""
    if node != NULL:
        topic_prune(m, node)
    elif key.dests.n == 0:
        match_table_cut(&m.keys, &key.link)
        free(key)


# ---- subscriptions -------------------------------------------------------------------------------

cdef inline u64 subscription_hash(const match_dests_t* place, const dest_t* queue) noexcept nogil:
    cdef u64 hash = (<u64><size_t>place ^ (<u64><size_t>queue << 7)) * <u64>0x9FB21C651E98DF25
    return hash ^ (hash >> 32)


cdef inline subscription_t** subscription_slot(const match_table_t* table,
                                               const match_dests_t* place,
                                               const dest_t* queue) noexcept nogil:
    """The chain that a subscription is in. The table has no links: that would be three words for
    each, and a chain of these hashes is short."""
    return <subscription_t**>match_slot(table, subscription_hash(place, queue))


cdef void subscriptions_rehome(match_table_t* table, u32 at) noexcept nogil:
    cdef subscription_t* s = <subscription_t*>table.slots[at]
    cdef subscription_t* after
    cdef subscription_t** slot
    table.slots[at] = NULL
    while s != NULL:
        after = s.next
        slot = subscription_slot(table, s.place, s.queue)
        s.next = slot[0]
        slot[0] = s
        s = after


cdef int subscriptions_reserve(match_table_t* table) noexcept nogil:
    """Make room for one more subscription."""
    return match_table_grow(table, &subscriptions_rehome)


cdef void subscriptions_cut(match_table_t* table, subscription_t* s) noexcept nogil:
    """Take out one that is there."""
    cdef subscription_t** at = subscription_slot(table, s.place, s.queue)
    while at[0] != s:
        at = &at[0].next
    at[0] = s.next
    match_table_shrink(table, &subscriptions_rehome)


cdef subscription_t* subscription_find(const match_t* m, const match_dests_t* place,
                                       const dest_t* queue) noexcept nogil:
    cdef subscription_t* s
    if m.bindings.n == 0:
        return NULL
    s = subscription_slot(&m.bindings, place, queue)[0]
    while s != NULL and not (s.place == place and s.queue == queue):
        s = s.next
    return s


cdef int subscription_add(match_t* m, match_dests_t* place,
                          const subscription_t* wanted) noexcept nogil:
    """MATCH_ADDED or MATCH_NO_MEMORY."""
    cdef subscription_t* s
    cdef subscription_t** slot
    if subscriptions_reserve(&m.bindings) < 0:
        return MATCH_NO_MEMORY
    s = <subscription_t*>malloc(sizeof(subscription_t))
    if s == NULL:
        return MATCH_NO_MEMORY
    s[0] = wanted[0]
    s.place = place
    s.at = place.n
    if match_dests_add(place, &s.dest) < 0:
        free(s)
        return MATCH_NO_MEMORY
    slot = subscription_slot(&m.bindings, place, s.queue)
    s.next = slot[0]
    slot[0] = s
    m.bindings.n += 1
    return MATCH_ADDED


cdef void subscription_remove(match_t* m, subscription_t* s) noexcept nogil:
    """The last one of its place takes its stead."""
    cdef match_dests_t* place = s.place
    cdef dest_t** items = match_dests_items(place)
    cdef subscription_t* last = <subscription_t*>items[place.n - 1]
    items[s.at] = &last.dest
    last.at = s.at
    items[place.n - 1] = &s.dest
    match_dests_remove(place, &s.dest)
    subscriptions_cut(&m.bindings, s)
    free(s)


cdef int filter_bind(match_t* m, const u8* filter_, u32 len, const dest_t* dest) noexcept nogil:
    """Subscribe as *dest*, a subscription_t that is copied, says: MATCH_ADDED, MATCH_UNCHANGED when
    it takes the place of the queue's subscription with that filter, or an error."""
    cdef const subscription_t* wanted = <const subscription_t*>dest
    cdef topic_node_t* node = NULL
    cdef match_key_t* key = NULL
    cdef match_dests_t* place
    cdef subscription_t* s
    cdef int rc
    if dest.kind != DEST_SUBSCRIPTION or not filter_is_valid(filter_, len):
        return MATCH_BAD_INPUT
    if filter_is_literal(filter_, len):
        key = filter_key(m, filter_, len, True)
    else:
        node = filter_node(m, filter_, len, True)
    if key == NULL and node == NULL:
        return MATCH_NO_MEMORY
    place = &node.dests if node != NULL else &key.dests
    s = subscription_find(m, place, wanted.queue)
    if s != NULL:
        s.id = wanted.id
        s.qos = wanted.qos
        s.is_no_local = wanted.is_no_local
        s.keeps_retain = wanted.keeps_retain
        s.is_apart = wanted.is_apart
        return MATCH_UNCHANGED
    rc = subscription_add(m, place, wanted)
    if rc < 0:
        filter_trim(m, key, node)
    return rc


cdef int filter_unbind(match_t* m, const u8* filter_, u32 len, const dest_t* dest) noexcept nogil:
    """End the subscription of a queue, given as it is or by a subscription_t. 1 removed, 0 there
    was none."""
    cdef const dest_t* queue = dest
    cdef topic_node_t* node = NULL
    cdef match_key_t* key = NULL
    cdef subscription_t* s
    if dest.kind == DEST_SUBSCRIPTION:
        queue = (<const subscription_t*>dest).queue
    if not filter_is_valid(filter_, len):
        return MATCH_UNCHANGED
    if filter_is_literal(filter_, len):
        key = filter_key(m, filter_, len, False)
    else:
        node = filter_node(m, filter_, len, False)
    if key == NULL and node == NULL:
        return MATCH_UNCHANGED
    s = subscription_find(m, &node.dests if node != NULL else &key.dests, queue)
    if s == NULL:
        return MATCH_UNCHANGED
    subscription_remove(m, s)
    filter_trim(m, key, node)
    return MATCH_ADDED


cdef void filters_free(match_t* m) noexcept nogil:
    """Free all subscriptions; places are freed with their keys and nodes."""
    cdef subscription_t* s
    cdef subscription_t* after
    cdef u32 i
    for i in range(m.bindings.n_slots):
        s = <subscription_t*>m.bindings.slots[i]
        while s != NULL:
            after = s.next
            free(s)
            s = after
    free(m.bindings.slots)
    memset(&m.bindings, 0, sizeof(match_table_t))


# ---- routing -------------------------------------------------------------------------------------

# hot
cdef inline int filters_take(const match_dests_t* dests, u32* at, targets_t* out) noexcept nogil:
    """Append all subscriptions of a place, from *at* on, which is 0 again at the end. Cost: 1 ns
    each."""
    cdef dest_t** items = match_dests_items(dests)
    while at[0] < dests.n:
        if match_append(out, items[at[0]]) < 0:
            return MATCH_NO_MEMORY
        at[0] += 1
        if match_tired(out, 1):
            return MATCH_TIRED
    at[0] = 0
    return 0


# hot
cdef inline int filters_push(filter_steps_t* steps, const topic_node_t* node,
                             u32 at) noexcept nogil:
    cdef size_t cap
    cdef void* grown
    if node == NULL:
        return 0
    if steps.n == steps.cap:
        cap = <size_t>steps.cap * 2 + 8
        grown = realloc(steps.items, cap * sizeof(filter_step_t))
        if grown == NULL:
            return MATCH_NO_MEMORY
        steps.items = <filter_step_t*>grown
        steps.cap = <u32>cap
    steps.items[steps.n].node = node
    steps.items[steps.n].at = at
    steps.items[steps.n].is_entered = False
    steps.n += 1
    return 0


# hot
cdef int filters_walk(const match_t* m, const u8* topic, u32 len, targets_t* out) noexcept nogil:
    """Look at the nodes on the stack, and at those that they lead to. Cost: 8 ns per node in
    cache."""
    cdef match_cursor_t* cursor = &out.cursor
    cdef filter_steps_t* steps = &cursor.steps
    cdef filter_step_t* step
    cdef const topic_node_t* node
    cdef bint is_hidden
    cdef u32 at, end
    cdef int rc
    while steps.n:
        step = &steps.items[steps.n - 1]
        node = step.node
        at = step.at
        is_hidden = at == 0 and topic[0] == c'$'    # no wildcard takes its first level
        if not step.is_entered:
            if node.hash != NULL and not is_hidden:
                rc = filters_take(&node.hash.dests, &cursor.dest, out)
                if rc:
                    return rc
            step.is_entered = True
        if at > len:
            if node.dests.n:
                rc = filters_take(&node.dests, &cursor.dest, out)
                if rc:
                    return rc
            steps.n -= 1
            continue
        steps.n -= 1
        end = level_end(topic, len, at)
        if not is_hidden and filters_push(steps, node.star, end + 1):
            return MATCH_NO_MEMORY
        if filters_push(steps, filter_literal(m, node, topic + at, end - at), end + 1):
            return MATCH_NO_MEMORY
        if match_tired(out, 1 + ((end - at) >> 5)):
            return MATCH_TIRED
    return 0


# hot
cdef int filters_route(const match_t* m, const u8* topic, u32 len, targets_t* out) noexcept nogil:
    """Append the subscriptions that a topic, of one byte at least, matches; what match_route
    returns. Cost: 15 ns without wildcards, see perf/micro/match.py."""
    cdef match_cursor_t* cursor = &out.cursor
    cdef match_key_t* key
    cdef int rc
    if not cursor.is_begun:
        key = match_key_find(m, topic, len, hash_bytes(topic, len, m.seed))
        if key != NULL:
            rc = filters_take(&key.dests, &cursor.at, out)
            if rc:
                return rc
        if m.root.n_literals == 0 and m.root.star == NULL and m.root.hash == NULL:
            return 0
        cursor.is_begun = True
        cursor.dest = cursor.steps.n = 0
        if filters_push(&cursor.steps, &m.root, 0):
            return MATCH_NO_MEMORY
    rc = filters_walk(m, topic, len, out)
    if rc != MATCH_TIRED:
        cursor.is_begun = False
    return rc

# Topic: binding keys with wildcards form a trie, whose literal children stand in one hash table
# under (parent, word). Literal keys are in keys.pyx. Part of match.pyx.
#
# At the end the reverse, where binding keys are literal and a routing key may have wildcards: all
# keys that are bound are looked at, one after the other, and equal routing keys are remembered by
# who calls it. Source of that: documentation of RabbitMQ's plugin for exchanges x-rtopic.


# hot
cdef inline void topic_split(const match_t* m, const u8* key, u32 key_len,
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
cdef inline u64 topic_edge(const topic_node_t* parent, u64 word_hash) noexcept nogil:
    """Hash of (parent, word). The multiply spreads equal words under neighbouring parents."""
    cdef u64 hash = (word_hash ^ <u64><size_t>parent) * <u64>0x9FB21C651E98DF25
    return hash ^ (hash >> 32)


# hot
cdef inline topic_node_t* topic_node_of(match_link_t* link) noexcept nogil:
    return <topic_node_t*>(<u8*>link - (sizeof(topic_node_t) - sizeof(match_link_t)))


cdef topic_node_t* topic_node_new(topic_node_t* parent, bint is_literal,
                                  u32 word_len) noexcept nogil:
    """A node without what only literal words need, if it is none. NULL when out of memory."""
    cdef size_t size = sizeof(topic_node_t) + word_len
    cdef topic_node_t* node
    if not is_literal:
        size -= sizeof(match_link_t)
    node = <topic_node_t*>calloc(1, size)
    if node != NULL:
        node.parent = parent
    return node


# hot
cdef inline topic_node_t* topic_literal(const match_t* m, const topic_node_t* node,
                                        topic_words_t* words, u32 i) noexcept nogil:
    cdef match_link_t* link
    cdef topic_node_t* child
    cdef u64 hash
    if node.n_literals == 0:
        return NULL
    hash = topic_edge(node, words.hash[i])
    link = match_slot(&m.nodes, hash)[0]
    while link != NULL:
        child = topic_node_of(link)
        if (link.hash == hash and child.parent == node and child.word_len == words.length[i]
                and same_bytes(child + 1, words.key + words.start[i], words.length[i])):
            return child
        link = link.next
    return NULL


cdef bint topic_grows(topic_nodes_t* nodes) noexcept nogil:
    """Make room for more in a list; False when out of memory."""
    cdef size_t cap = <size_t>nodes.cap * 2 + 8
    cdef void* grown = realloc(nodes.items, cap * sizeof(topic_node_t*))
    if grown == NULL:
        return False
    nodes.items = <const topic_node_t**>grown
    nodes.cap = <u32>cap
    return True


cdef int topic_know(topic_nodes_t* nodes, const topic_node_t* node, reached_table_t* table
                    ) noexcept nogil:
    """Have the loop's table know a list of more than a few, and the node that is added to it: 1, 0
    when it is there already, or MATCH_NO_MEMORY."""
    if nodes.n_reached == 0:
        table.generation += 1
        nodes.generation = table.generation
    if reached_know(table, <void**>nodes.items, nodes.n, &nodes.n_reached, nodes.generation):
        return MATCH_NO_MEMORY
    if reached_add(table, node, nodes.generation):
        return 0
    nodes.n_reached += 1
    return 1


# hot
cdef inline int topic_add(topic_nodes_t* nodes, const topic_node_t* node,
                          targets_t* out) noexcept nogil:
    """Append a node to a list: 1, 0 when it is there already, or MATCH_NO_MEMORY. Cost: 2 ns for a
    few, 5 ns for many."""
    cdef int rc
    cdef u32 i
    if nodes.n > REACHED_FEW:
        rc = topic_know(nodes, node, &out.reached.nodes)
        if rc <= 0:
            return rc
    else:
        for i in range(nodes.n):
            if nodes.items[i] == node:
                return 0
    if nodes.n == nodes.cap and not topic_grows(nodes):
        return MATCH_NO_MEMORY
    nodes.items[nodes.n] = node
    nodes.n += 1
    return 1


# hot
cdef int topic_enter(const match_t* m, const topic_node_t* node, topic_words_t* words, u32 i,
                     targets_t* out) noexcept nogil:
    """Reach a '#' before word *i*: it takes the rest, or its children go on from any later word.

    One visit per routing is enough: walks go from left to right, so the first visit has the
    smallest *i* and covers what a later one could add. Thus any number of '#' stays polynomial,
    at most (words x nodes) steps.
    """
    cdef const topic_node_t* child
    cdef int rc = topic_add(&out.cursor.here, node, out)
    if rc <= 0:
        return rc
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
cdef int topic_walk(const match_t* m, const topic_node_t* node, topic_words_t* words, u32 i,
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
cdef inline int topic_route(const match_t* m, const u8* key, u32 key_len,
                            targets_t* out) noexcept nogil:
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
        out.cursor.here.n = out.cursor.here.n_reached = 0
        out.cursor.quick_end = out.work + (TOPIC_QUICK if out.look >= MATCH_LOOK else 0)
        rc = topic_walk(m, &m.root, &words, 0, out)
        if rc != MATCH_TIRED:
            return rc
    return topic_by_position(m, &words, out)


cdef int topic_reach(const topic_node_t* node, topic_nodes_t* to, targets_t* out) noexcept nogil:
    """Add a node, and the '#' that may follow it without a word, to those of a position. 0, or
    MATCH_NO_MEMORY."""
    cdef int rc = 1
    while node != NULL and rc > 0:
        rc = topic_add(to, node, out)
        node = node.hash
    return rc if rc < 0 else 0


cdef int topic_step(const match_t* m, const topic_node_t* node, topic_words_t* words, u32 i,
                    topic_nodes_t* to, targets_t* out) noexcept nogil:
    """Add the nodes that word *i* leads to from *node*: a '#' stays where it is, too."""
    if node.parent != NULL and node.parent.hash == node and topic_reach(node, to, out) < 0:
        return MATCH_NO_MEMORY
    if topic_reach(node.star, to, out) < 0:
        return MATCH_NO_MEMORY
    return topic_reach(topic_literal(m, node, words, i), to, out)


cdef int topic_by_position(const match_t* m, topic_words_t* words,
                           targets_t* out) noexcept nogil:
    """All nodes that each position in the key reaches, one position after the other: at most
    (words x nodes) steps, whatever the bindings. Goes on where it was when it got tired: a node may
    then be visited once more, because other routings have overwritten what the table knew."""
    cdef match_cursor_t* at = &out.cursor
    cdef topic_nodes_t nodes
    cdef int rc
    if not at.is_slow:
        cursor_reset(out)
        at.is_slow = True
        if topic_reach(&m.root, &at.here, out) < 0:
            return MATCH_NO_MEMORY
    while at.word < words.n:
        while at.at < at.here.n:
            if topic_step(m, at.here.items[at.at], words, at.word, &at.next, out) < 0:
                return MATCH_NO_MEMORY
            at.at += 1
            if match_tired(out, 4):
                return MATCH_TIRED
        nodes = at.here
        at.here = at.next
        at.next = nodes
        at.next.n = at.next.n_reached = at.at = 0
        at.word += 1
    while at.at < at.here.n:
        rc = match_take_from(&at.here.items[at.at].dests, &at.dest, True, out)
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
    node = topic_node_new(parent, is_literal, word_len)
    if node == NULL:
        return NULL
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


# ---- the reverse -----------------------------------------------------------------------------

cdef int reversed_bind(match_t* m, const u8* key, u32 key_len, dest_t* dest) noexcept nogil:
    """See match_bind."""
    if key_len > TOPIC_KEY_MAX:
        return MATCH_BAD_INPUT
    return match_key_bind(m, key, key_len, dest)


cdef bint reversed_fits(topic_words_t* pattern, topic_words_t* key, u32* work) noexcept nogil:
    """Whether words with wildcards stand for those of a key. Whatever follows the last '#' so far
    is all that may have to be tried again: at most (words x words) steps."""
    cdef u32 p = 0, k = 0, behind = 0, again = 0
    while k < key.n:
        work[0] += 1
        if p < pattern.n and topic_is_word(pattern, p, c'#'):
            p += 1
            behind, again = p, k
        elif p < pattern.n and (topic_is_word(pattern, p, c'*')
                                or (pattern.hash[p] == key.hash[k]
                                    and pattern.length[p] == key.length[k]
                                    and same_bytes(pattern.key + pattern.start[p],
                                                   key.key + key.start[k], key.length[k]))):
            p += 1
            k += 1
        elif behind:
            again += 1
            p, k = behind, again
        else:
            return False
    while p < pattern.n and topic_is_word(pattern, p, c'#'):
        p += 1
    return p == pattern.n


cdef int reversed_route(const match_t* m, const u8* key, u32 key_len,
                        targets_t* out) noexcept nogil:
    """A routing key without wildcards by one probe, another one by all keys that are bound. 0,
    MATCH_NO_MEMORY or MATCH_TIRED. Cost: 50 ns for each of those keys."""
    cdef match_cursor_t* at = &out.cursor
    cdef topic_words_t pattern, words
    cdef match_key_t* bound
    cdef u32 work
    cdef int rc
    if key_len > TOPIC_KEY_MAX or m.keys.n == 0:
        return 0
    topic_split(m, key, key_len, &pattern)
    if not topic_has_wildcard(&pattern):
        return match_key_route(m, key, key_len, out)
    while at.link != NULL or at.at < m.keys.n_slots:
        if at.link == NULL:
            at.link = m.keys.slots[at.at]
            at.at += 1
            continue
        bound = <match_key_t*>at.link
        work = 4
        if not at.dest:             # else some of its destinations are taken
            topic_split(m, <const u8*>(bound + 1), bound.key_len, &words)
            at.is_begun = reversed_fits(&pattern, &words, &work)
        if at.is_begun:
            rc = match_take_from(&bound.dests, &at.dest, True, out)
            if rc:
                return rc
        at.link = at.link.next
        if match_tired(out, work):
            return MATCH_TIRED
    cursor_reset(out)
    return 0

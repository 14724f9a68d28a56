# Topic tree: the retained messages of a virtual host in the order of the bytes of their topics.
#
# A B+ tree of pointers: leaves are linked, an inner node knows the first message below each child.
# A place in it is a topic, so a walk survives whatever happens between its portions. Nothing here
# depends on how many levels a topic has. Called by retained.pyx and retained_walk.pyx.

cdef enum:
    TREE_ORDER = 64             # keys of a node
    TREE_HEIGHT = 12            # more than any number of messages needs
    TREE_MERGE = 16             # a leaf of fewer looks whether its neighbour takes them
    TREE_MERGED = 48            # up to so many in one


cdef inline int topic_order(const u8* a, u32 n_a, const u8* b, u32 n_b) noexcept nogil:
    """Below, at or above 0: where a comes beside b."""
    cdef int rc = memcmp(a, b, n_a if n_a < n_b else n_b)
    if rc:
        return rc
    return (n_a > n_b) - (n_a < n_b)


cdef inline u64 tree_node_size(u32 height) noexcept nogil:
    return sizeof(rtree_t) + (TREE_ORDER - 1 if height else 0) * sizeof(rtree_t*)


cdef rtree_t* tree_make(u32 height) noexcept nogil:
    cdef rtree_t* node = <rtree_t*>malloc(tree_node_size(height))
    if node != NULL:
        node.prev = node.next = NULL
        node.n = 0
        node.height = height
    return node


cdef inline u32 tree_place(const rtree_t* node, const u8* topic, u32 n) noexcept nogil:
    """How many keys of a node come before a topic, or are it. Cost: 6 comparisons."""
    cdef u32 low = 0, high = node.n, middle
    while low < high:
        middle = (low + high) >> 1
        if topic_order(node.keys[middle].topic, node.keys[middle].topic_len, topic, n) <= 0:
            low = middle + 1
        else:
            high = middle
    return low


cdef void tree_seek(rstore_t* rs, const u8* topic, u32 n, rtree_t** leaf,
                    u32* index) noexcept nogil:
    """The place of the first message that is this topic or comes behind it. Leaf NULL: none is."""
    cdef rtree_t* node = rs.root
    cdef u32 i
    while node != NULL and node.height:
        i = tree_place(node, topic, n)
        node = node.children[i - 1 if i else 0]
    leaf[0] = node
    index[0] = 0
    if node == NULL:
        return
    i = tree_place(node, topic, n)
    if i and topic_order(node.keys[i - 1].topic, node.keys[i - 1].topic_len, topic, n) == 0:
        i -= 1
    index[0] = i
    if i == node.n:
        leaf[0] = node.next
        index[0] = 0


# ---- adding --------------------------------------------------------------------------------------

cdef void tree_put(rtree_t* node, u32 at, rmsg_t* key, rtree_t* child) noexcept nogil:
    """Put a key, and the child of an inner node, at a place of a node that has room."""
    memmove(&node.keys[at + 1], &node.keys[at], (node.n - at) * sizeof(rmsg_t*))
    node.keys[at] = key
    if node.height:
        memmove(&node.children[at + 1], &node.children[at], (node.n - at) * sizeof(rtree_t*))
        node.children[at] = child
    node.n += 1


cdef rtree_t* tree_split(rtree_t* node, u32 at, rmsg_t* key, rtree_t* child,
                         rtree_t* right) noexcept nogil:
    """The same with a node that is full: some of it goes to `right`, an empty one of its height.
    What comes at the very end goes there alone, so that rising topics fill their leaves."""
    cdef u32 kept = TREE_ORDER if at == TREE_ORDER and node.next == NULL else TREE_ORDER // 2
    right.n = TREE_ORDER - kept
    memcpy(&right.keys[0], &node.keys[kept], right.n * sizeof(rmsg_t*))
    if node.height:
        memcpy(&right.children[0], &node.children[kept], right.n * sizeof(rtree_t*))
    node.n = kept
    right.next = node.next
    right.prev = node
    if node.next != NULL:
        node.next.prev = right
    node.next = right
    if at > kept or kept == TREE_ORDER:
        tree_put(right, at - kept, key, child)
    else:
        tree_put(node, at, key, child)
    return right


cdef int tree_prepare(rtree_t** path, u32 height, rtree_t** fresh) noexcept nogil:
    """Make the nodes that an addition needs along a path of full ones. How many, or -1."""
    cdef u32 n = 0, level = 0, i
    while level <= height and path[level].n == TREE_ORDER:
        level += 1
    for i in range(level):
        fresh[i] = tree_make(i)
        n += 1
    if level > height:
        fresh[level] = tree_make(height + 1)
        n += 1
    for i in range(n):
        if fresh[i] == NULL:
            while n:
                n -= 1
                free(fresh[n])
            return -1
    return <int>n


cdef bint tree_add_near(const rstore_t* rs, rmsg_t* msg, u32* at) noexcept nogil:
    """Whether a message whose topic is not there comes into the leaf that got the last one, which
    has room, and not as its first; then *at is its place. Topics often come in their order, and the
    way from the root is six comparisons for each level."""
    cdef const rtree_t* leaf = rs.recent
    cdef const u8* topic = msg.topic
    cdef u32 n = msg.topic_len
    cdef rmsg_t* key
    if leaf == NULL or leaf.n == TREE_ORDER:
        return False
    key = leaf.keys[leaf.n - 1]
    at[0] = leaf.n
    if topic_order(key.topic, key.topic_len, topic, n) > 0:
        at[0] = tree_place(leaf, topic, n)
        return at[0] != 0
    if leaf.next == NULL:
        return True
    key = leaf.next.keys[0]
    return topic_order(key.topic, key.topic_len, topic, n) > 0


cdef int tree_add(rstore_t* rs, rmsg_t* msg) noexcept nogil:
    """Add a message whose topic is not there. 0, or -1 out of memory."""
    cdef rtree_t* path[TREE_HEIGHT]
    cdef rtree_t* fresh[TREE_HEIGHT + 1]
    cdef u32 places[TREE_HEIGHT]
    cdef rtree_t* node = rs.root
    cdef rtree_t* child = NULL
    cdef rmsg_t* key = msg
    cdef u32 level, height, i
    cdef int n_fresh
    if tree_add_near(rs, msg, &i):
        rs.version += 1
        tree_put(rs.recent, i, msg, NULL)
        return 0
    if node == NULL:
        node = rs.root = tree_make(0)
        if node == NULL:
            return -1
        rs.bytes += tree_node_size(0)
    height = node.height
    level = height
    while True:
        path[level] = node
        i = tree_place(node, msg.topic, msg.topic_len)
        places[level] = i
        if level == 0:
            break
        places[level] = i - 1 if i else 0
        node = node.children[places[level]]
        level -= 1
    n_fresh = tree_prepare(path, height, fresh)
    if n_fresh < 0:
        return -1
    rs.version += 1
    rs.recent = fresh[0] if n_fresh else path[0]
    for level in range(height + 1):
        node = path[level]
        i = places[level] if level == 0 else places[level] + 1
        if node.n < TREE_ORDER:
            tree_put(node, i, key, child)
            break
        child = tree_split(node, i, key, child, fresh[level])
        rs.bytes += tree_node_size(level)
        key = child.keys[0]
    else:
        node = fresh[height + 1]
        node.keys[0] = rs.root.keys[0]
        node.children[0] = rs.root
        node.keys[1] = key
        node.children[1] = child
        node.n = 2
        rs.root = node
        rs.bytes += tree_node_size(node.height)
    # The first of a leaf is the first below the nodes that lead there by their first child.
    level = 0
    while level < height and path[level].keys[0] == msg:
        path[level + 1].keys[places[level + 1]] = msg
        level += 1
    if rs.root != path[height]:
        rs.root.keys[0] = path[height].keys[0]
    return 0


# ---- taking out ----------------------------------------------------------------------------------

cdef void tree_take(rtree_t* node, u32 at) noexcept nogil:
    node.n -= 1
    memmove(&node.keys[at], &node.keys[at + 1], (node.n - at) * sizeof(rmsg_t*))
    if node.height:
        memmove(&node.children[at], &node.children[at + 1], (node.n - at) * sizeof(rtree_t*))


cdef void tree_drop(rstore_t* rs, rtree_t* node) noexcept nogil:
    """Free a node that nothing points down to."""
    if node.prev != NULL:
        node.prev.next = node.next
    if node.next != NULL:
        node.next.prev = node.prev
    rs.bytes -= tree_node_size(node.height)
    if rs.recent == node:
        rs.recent = NULL
    lmq_poison(node, tree_node_size(node.height))
    free(node)


cdef void tree_remove(rstore_t* rs, rmsg_t* msg) noexcept nogil:
    """Take out a message that is there."""
    cdef rtree_t* path[TREE_HEIGHT]
    cdef u32 places[TREE_HEIGHT]
    cdef rtree_t* node = rs.root
    cdef rtree_t* right
    cdef u32 level = node.height, i
    rs.version += 1
    while True:
        path[level] = node
        i = tree_place(node, msg.topic, msg.topic_len)
        places[level] = i - 1 if i else 0
        if level == 0:
            break
        node = node.children[places[level]]
        level -= 1
    lmq_assert(node.keys[places[0]] == msg)
    tree_take(node, places[0])
    level = 0
    while path[level].n == 0 and level < rs.root.height:
        tree_drop(rs, path[level])
        level += 1
        tree_take(path[level], places[level])
    node = path[level]
    if level == 0 and 0 < node.n < TREE_MERGE and rs.root.height:
        right = node.next
        i = places[1] + 1
        if i < path[1].n and right.n + node.n <= TREE_MERGED:
            memcpy(&node.keys[node.n], &right.keys[0], right.n * sizeof(rmsg_t*))
            node.n += right.n
            tree_drop(rs, right)
            tree_take(path[1], i)
    # Who led there by the first child leads to another one now.
    while level < rs.root.height:
        path[level + 1].keys[places[level + 1]] = path[level].keys[0]
        level += 1
    while rs.root.height and rs.root.n == 1:
        node = rs.root
        rs.root = node.children[0]
        tree_drop(rs, node)
    if rs.root.n == 0:
        tree_drop(rs, rs.root)
        rs.root = NULL

# Heap: which of many comes first: a binary heap, the same code for each kind of item.
#
# Its owner holds the array and its length, and grows it. An item belongs before another by where
# its message is, or by when it is due. Nothing here allocates.

ctypedef fused ranked_t:
    u32
    loc_t
    due_t


cdef inline bint is_before(ranked_t a, ranked_t b) noexcept nogil:
    """Whether a belongs before b."""
    if ranked_t is u32:
        return a < b
    elif ranked_t is loc_t:
        return a.seg < b.seg or (a.seg == b.seg and a.pos < b.pos)
    else:
        return a.at_ms < b.at_ms or (a.at_ms == b.at_ms
                                     and (a.seg < b.seg or (a.seg == b.seg and a.pos < b.pos)))


cdef inline u32 heap_rise(ranked_t* heap, u32 i, ranked_t item) noexcept nogil:
    """Put an item at place i, or before, where it belongs; return where that is."""
    cdef u32 up
    while i:
        up = (i - 1) >> 1
        if not is_before(item, heap[up]):
            break
        heap[i] = heap[up]
        i = up
    heap[i] = item
    return i


cdef inline void heap_sink(ranked_t* heap, u32 n, u32 i, ranked_t item) noexcept nogil:
    """Put an item at place i of n, or behind, where it belongs."""
    cdef u32 child
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and is_before(heap[child + 1], heap[child]):
            child += 1
        if not is_before(heap[child], item):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = item


cdef inline void heap_replace(ranked_t* heap, u32 n, u32 i, ranked_t item) noexcept nogil:
    """Put an item where place i of n was left."""
    heap_sink(heap, n, heap_rise(heap, i, item), item)

# Counts: how often messages were delivered that have not been settled for good, of one store.
#
# Kept only while the queue has a delivery limit, for messages that were delivered. The file
# `deliveries` beside the segments lets the counts survive a restart, so that a poison message gets
# no fresh life from it. For a queue without limit it tells, after an orderly stop, which messages
# had been delivered at all. Called by features.pyx, queue.pyx, store.pyx and load.pyx.
#
#   entry       u32 segment, u32 position, u32 count    little-endian; count 0: forgotten
#
# A later entry replaces an earlier one; a torn one at the end is ignored. When no message has been
# delivered before there is no file. A file that has grown is replaced by one that was written
# beside it, once that is on disk; until then both get what is new.

cdef enum:
    COUNTS_ENTRY = 12
    COUNTS_SLACK = 4096         # entries beyond twice the live ones at which the file is rewritten
    COUNT_MAX = 0x7FFFFFFF      # what the header can say


# What stores without counts share, which is most of them: nothing is ever written to it.
cdef counts_t no_counts


cdef counts_t* store_counts(store_t* st) noexcept nogil:
    """The counts of a store, made when they are first written to; NULL when out of memory."""
    if st.counts is &no_counts:
        st.counts = <counts_t*>calloc(1, sizeof(counts_t))
        if st.counts == NULL:
            st.counts = &no_counts
            return NULL
    return st.counts


cdef count_t* counts_slot(const counts_t* k, u32 seg, u32 pos) noexcept nogil:
    """The slot of a message: its own, or the free one where it would be."""
    cdef u64 i = (pos * <u64>0x9E3779B97F4A7C15 + seg * <u64>0xC2B2AE3D27D4EB4F) >> 32
    while True:
        i &= k.cap - 1
        if k.slots[i].n == 0 or (k.slots[i].pos == pos and k.slots[i].seg == seg):
            return &k.slots[i]
        i += 1


cdef u32 counts_of(const counts_t* k, u32 seg, u32 pos) noexcept nogil:
    """Deliveries of a message so far."""
    return counts_slot(k, seg, pos).n if k.n else 0


cdef int counts_grow(counts_t* k) noexcept nogil:
    cdef counts_t grown = k[0]
    cdef u32 i
    grown.cap = k.cap * 2 if k.cap else 64
    grown.slots = <count_t*>calloc(grown.cap, sizeof(count_t))
    if grown.slots == NULL:
        return -1
    for i in range(k.cap):
        if k.slots[i].n:
            counts_slot(&grown, k.slots[i].seg, k.slots[i].pos)[0] = k.slots[i]
    free(k.slots)
    k[0] = grown
    return 0


cdef int counts_note(counts_t* k, u32 seg, u32 pos, u32 n) noexcept nogil:
    """Have the next flush write a change. 0, or -1 out of memory."""
    cdef count_t* grown
    if k.n_news == k.cap_news:
        grown = <count_t*>realloc(k.news, (<u64>k.cap_news * 2 + 64) * sizeof(count_t))
        if grown == NULL:
            return -1
        k.news = grown
        k.cap_news = k.cap_news * 2 + 64
    k.news[k.n_news].seg = seg
    k.news[k.n_news].pos = pos
    k.news[k.n_news].n = n
    k.n_news += 1
    return 0


cdef void store_forget_count(store_t* st, u32 seg, u32 pos) noexcept nogil:
    """A message that was counted is gone, and the file may still know it."""
    counts_forget(st.counts, seg, pos)
    if st.is_durable:
        counts_note(st.counts, seg, pos, 0)


cdef int counts_set(counts_t* k, u32 seg, u32 pos, u32 n) noexcept nogil:
    """Set how often a message was delivered, n > 0. 0, or -1 out of memory. Cost: 15 ns."""
    cdef count_t* slot
    if (<u64>k.n + 1) * 2 > k.cap and counts_grow(k):
        return -1
    slot = counts_slot(k, seg, pos)
    k.n += slot.n == 0
    slot.seg = seg
    slot.pos = pos
    slot.n = n
    return 0


cdef int store_count(store_t* st, u32 seg, u32 pos, u32 n) noexcept nogil:
    """A message was delivered so often. 0, or -1 out of memory."""
    cdef counts_t* k = store_counts(st)
    if k == NULL or counts_set(k, seg, pos, n):
        return -1
    return counts_note(k, seg, pos, n) if st.is_durable else 0


cdef void counts_forget(counts_t* k, u32 seg, u32 pos) noexcept nogil:
    """The message is gone."""
    cdef count_t* slot
    cdef count_t moved
    cdef u64 i
    if k.n == 0:
        return
    slot = counts_slot(k, seg, pos)
    if slot.n == 0:
        return
    slot.n = 0
    k.n -= 1
    i = slot - k.slots
    while True:                 # those behind it may have been pushed on by it
        i = (i + 1) & (k.cap - 1)
        if k.slots[i].n == 0:
            break
        moved = k.slots[i]
        k.slots[i].n = 0
        counts_slot(k, moved.seg, moved.pos)[0] = moved
    if k.n == 0 and k.cap > 4096:
        free(k.slots)
        k.slots = NULL
        k.cap = 0


cdef void store_release_counts(store_t* st) noexcept nogil:
    if st.counts is not &no_counts:
        free(st.counts.slots)
        free(st.counts.news)
        free(st.counts)
        st.counts = &no_counts


cdef void store_drop_counts(store_t* st) noexcept nogil:
    """There is no limit any more: what was counted is forgotten."""
    cdef char path[PATH_MAX_BYTES]
    counts_beside_path(st, path)
    if st.counts.has_beside:
        file_unlink(st.loop, path)
    counts_path(st, path)
    store_release_counts(st)
    file_unlink(st.loop, path)


# ---- the file ------------------------------------------------------------------------------------

cdef void counts_path(const store_t* st, char* path) noexcept nogil:
    snprintf(path, PATH_MAX_BYTES, b"%s/%s/deliveries", st.dirname, st.basename)


cdef void counts_beside_path(const store_t* st, char* path) noexcept nogil:
    snprintf(path, PATH_MAX_BYTES, b"%s/%s/deliveries.tmp", st.dirname, st.basename)


cdef void count_write(u8* p, const count_t* entry) noexcept nogil:
    put_le32(p, entry.seg)
    put_le32(p + 4, entry.pos)
    put_le32(p + 8, entry.n)


cdef int counts_append(loop_t* loop, const char* path, const count_t* entries, u32 n,
                       u32 at) noexcept nogil:
    """Write entries to a file, from entry number `at` on. 0, or -1 with errno."""
    cdef u8* buf = <u8*>malloc(<u64>n * COUNTS_ENTRY + 1)
    cdef u32 i
    cdef int fd, rc = -1
    if buf == NULL:
        return -1
    for i in range(n):
        count_write(buf + i * COUNTS_ENTRY, &entries[i])
    fd = file_open(loop, path, O_RDWR | O_CREAT)
    if fd >= 0:
        rc = file_write(loop, path, CHANGE_PATCH, fd, buf, <u64>n * COUNTS_ENTRY,
                        <i64>at * COUNTS_ENTRY)
        close_failed(fd)
    free(buf)
    return rc


cdef int counts_flush(store_t* st, loop_t* loop) noexcept nogil:
    """Write the changes since the last flush; a file that has grown too much is written anew, if
    there is a loop whose next sync that can wait for. 0, or -1 with errno."""
    cdef counts_t* k = st.counts
    cdef char path[PATH_MAX_BYTES]
    cdef char beside[PATH_MAX_BYTES]
    if k.n == 0 and k.file_n == 0:      # delivered and gone in one tick
        k.n_news = 0
        return 0
    counts_path(st, path)
    counts_beside_path(st, beside)
    if counts_append(st.loop, path, k.news, k.n_news, k.file_n):
        return -1
    k.file_n += k.n_news
    if k.has_beside and counts_append(
            st.loop, beside, k.news, k.n_news, k.beside_n) == 0:
        k.beside_n += k.n_news
    elif k.has_beside:
        k.has_beside = False            # the file is as good without
    k.n_news = 0
    if loop == NULL:
        return 0
    if not k.has_beside and k.file_n > 2 * <u64>k.n + COUNTS_SLACK:
        return counts_write_beside(st, loop)
    if k.has_beside and loop.n_synced >= k.until:
        k.has_beside = False
        if file_rename(st.loop, beside, path):
            return -1
        k.file_n = k.beside_n
    return 0


cdef int counts_write_beside(store_t* st, loop_t* loop) noexcept nogil:
    """Write the live counts to a new file, which the next sync brings to the disk; without a loop
    it is there when this returns. 0, or -1 with errno."""
    cdef counts_t* k = st.counts
    cdef char beside[PATH_MAX_BYTES]
    cdef count_t* live
    cdef u32 i, n = 0
    cdef int fd, rc
    counts_beside_path(st, beside)
    live = <count_t*>malloc((<u64>k.n + 1) * sizeof(count_t))
    if live == NULL:
        return -1
    for i in range(k.cap):
        if k.slots[i].n:
            live[n] = k.slots[i]
            n += 1
    rc = -1 if file_unlink(st.loop, beside) and errno != ENOENT else counts_append(
        st.loop, beside, live, n, 0)
    free(live)
    if rc:
        return -1
    fd = c_open(beside, O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return -1
    if loop == NULL:
        rc = sync_data(fd)
        close_failed(fd)
    elif not loop.sync:
        c_close(fd)
    else:
        rc = loop_add_sync_fd(loop, fd)
    k.has_beside = rc == 0
    k.beside_n = n
    k.until = loop.n_syncs + 1 if loop != NULL and loop.sync else 0
    return rc


cdef int counts_rewrite(store_t* st) noexcept nogil:
    """Replace the file by one with the live counts, on disk; or remove it when there are none.
    0, or -1 with errno. It waits for the disk."""
    cdef counts_t* k = st.counts
    cdef char path[PATH_MAX_BYTES]
    cdef char beside[PATH_MAX_BYTES]
    cdef int fd, rc
    if k.n == 0:
        return counts_remove(st)
    counts_path(st, path)
    counts_beside_path(st, beside)
    k.n_news = 0
    if counts_write_beside(st, NULL) or file_rename(st.loop, beside, path):
        return -1
    k.has_beside = False
    k.file_n = k.beside_n
    store_path(st, path)
    fd = c_open(path, O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return -1
    rc = sync_data(fd)
    close_failed(fd)
    return rc


cdef int counts_remove(store_t* st) noexcept nogil:
    """There are no counts: there is no file. 0, or -1 with errno."""
    cdef counts_t* k = st.counts
    cdef char path[PATH_MAX_BYTES]
    k.n_news = k.file_n = 0
    counts_beside_path(st, path)
    if k.has_beside:
        file_unlink(st.loop, path)
    k.has_beside = False
    counts_path(st, path)
    return 0 if file_unlink(st.loop, path) == 0 or errno == ENOENT else -1


cdef int store_clear_counts(store_t* st) noexcept nogil:
    """There are no messages, and others may come to stand where they were: forget what is left of
    those that were lost. 0, or -1 with errno."""
    if st.counts.n == 0:
        return 0
    memset(st.counts.slots, 0, st.counts.cap * sizeof(count_t))
    st.counts.n = 0
    return counts_remove(st) if st.is_durable else 0


cdef bint store_holds(const store_t* st, u32 seg_id, u32 pos) noexcept nogil:
    """Whether a message of a store that was just loaded may still be at that place."""
    cdef const seg_t* seg = store_segment(st, seg_id)
    cdef u32 i
    if seg == NULL or pos >= seg.size:
        return False
    for i in range(seg.n_deleted):
        if seg.deleted[i] == pos:
            return False
    return True


cdef int counts_load(store_t* st) noexcept nogil:
    """Read the file. What belongs to no message is taken out of it, too, on disk: a new one might
    come to stand there. 0, or -1 with errno."""
    cdef counts_t* k
    cdef char path[PATH_MAX_BYTES]
    cdef u8 entry[COUNTS_ENTRY]
    cdef i64 got = 0
    cdef int fd
    counts_path(st, path)
    fd = c_open(path, O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return 0 if errno == ENOENT else -1
    k = store_counts(st)
    if k == NULL:
        close_failed(fd)
        set_errno(ENOMEM)
        return -1
    while True:
        got = read_at(fd, entry, COUNTS_ENTRY, <i64>k.file_n * COUNTS_ENTRY)
        if got != COUNTS_ENTRY:
            break
        k.file_n += 1
        if le32(entry + 8) == 0:
            counts_forget(k, le32(entry), le32(entry + 4))
        elif store_holds(st, le32(entry), le32(entry + 4)):
            if counts_set(k, le32(entry), le32(entry + 4), min(le32(entry + 8), <u32>COUNT_MAX)):
                close_failed(fd)
                return -1
    close_failed(fd)
    if got < 0:
        return -1
    return counts_rewrite(st) if got or k.file_n != k.n else 0

# Handover: descriptors of what a store has written, for the next sync to cover.
#
# A sync runs over descriptors of its own, which it closes; so a file may roll or go meanwhile. When
# there are too many of them, one sync of the whole file system takes their place. What a removed
# segment has left goes after a sync that has covered its directory.
# Called by tick.pyx and by who changes files of a store. Source: docs/durability.md.
from posix.fcntl cimport O_DIRECTORY

cdef enum:
    MOST_SYNC_QUEUES = 1024     # files above which none is synced one by one
    MOST_LEFT = 16              # that segments have left, before a sync for their sake


# ---- the list of the next sync -------------------------------------------------------------------

cdef int loop_add_sync_fd(loop_t* loop, int fd) noexcept nogil:
    """Put a descriptor, which the loop then owns, on the next sync. 0, or -1."""
    cdef int* grown
    if fd < 0:
        return -1
    if loop.n_sync_fds == loop.cap_sync_fds:
        grown = <int*>realloc(loop.sync_fds, (loop.cap_sync_fds * 2 + 16) * sizeof(int))
        if grown == NULL:
            c_close(fd)
            return -1
        loop.sync_fds = grown
        loop.cap_sync_fds = loop.cap_sync_fds * 2 + 16
    loop.sync_fds[loop.n_sync_fds] = fd
    loop.n_sync_fds += 1
    return 0


cdef int loop_sync_too(loop_t* loop, int fd) noexcept nogil:
    """Have the next sync cover this file, too, what this tick writes to it included; where there is
    no descriptor for that, by way of the whole file system. 0, or -1 with errno."""
    if loop.dir_fd >= 0 and (loop.is_whole_wanted or loop.n_sync_fds >= MOST_SYNC_QUEUES
                             or loop.n_sync_fds >= loop.keep_files):
        loop.is_whole_wanted = True
        return 0
    return loop_sync_fd_or_all(loop, c_dup(fd))


cdef int loop_sync_names_too(loop_t* loop, const char* directory) noexcept nogil:
    """The same for the names of files in a directory."""
    return loop_sync_fd_or_all(loop, c_open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC))


cdef int loop_sync_fd_or_all(loop_t* loop, int fd) noexcept nogil:
    """loop_add_sync_fd, or without a descriptor (-1) the whole file system."""
    if loop_add_sync_fd(loop, fd) == 0:
        return 0
    if loop.dir_fd < 0:
        return -1
    loop.is_whole_wanted = True
    return 0


# ---- what removed segments have left -------------------------------------------------------------

cdef int store_leave_acks(store_t* st, u32 id) noexcept nogil:
    """Keep the deleted positions of a segment whose messages have just lost their name. Syncs that
    others wait for cover that; when none does for long, one is asked for. 0, or -1 out of memory.
    """
    cdef left_t* left = st.left
    cdef u32 cap
    store_drop_left(st)
    if left == NULL or left.n == left.cap:
        cap = left.cap * 2 if left != NULL else 8
        left = <left_t*>realloc(st.left, sizeof(left_t) + cap * sizeof(u32))
        if left == NULL:
            return -1
        if st.left == NULL:
            memset(left, 0, sizeof(left_t))
        left.cap = cap
        st.left = left
    left.ids[left.n] = id
    left.n += 1
    if left.n - left.n_due >= MOST_LEFT and store_hand_over_name(st, st.loop) == 0:
        store_covers_left(st)
    return 0


cdef void store_covers_left(store_t* st) noexcept nogil:
    """The next sync covers the store's directory."""
    store_drop_left(st)
    if st.left != NULL:
        st.left.n_due = st.left.n
        st.left.until = st.loop.n_syncs + 1


cdef void store_drop_left(store_t* st) noexcept nogil:
    """Remove what was left of segments whose removal is on disk."""
    cdef left_t* left = st.left
    cdef u32 i
    if left == NULL or left.n_due == 0 or st.loop.n_synced < left.until:
        return
    for i in range(left.n_due):
        segment_unlink_acks(st, left.ids[i])
    left.n -= left.n_due
    memmove(&left.ids[0], &left.ids[left.n_due], left.n * sizeof(u32))
    left.n_due = 0


cdef int store_drop_all_left(store_t* st) noexcept nogil:
    """Sync the directory, and remove all of them: the store closes. 0, or -1 with errno."""
    cdef char path[PATH_MAX_BYTES]
    cdef int fd
    if st.left == NULL or st.left.n == 0:
        return 0
    store_path(st, path)
    fd = c_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    if fd < 0:
        return -1
    if sync_data(fd):
        close_failed(fd)
        return -1
    c_close(fd)
    st.left.n_due = st.left.n
    st.left.until = 0
    store_drop_left(st)
    return 0


# ---- a store -------------------------------------------------------------------------------------

cdef int store_hand_over_file(store_t* st, loop_t* loop) noexcept nogil:
    """Put the write segment's descriptor on the next sync. 0, or -1 with errno."""
    cdef int fd
    if not st.is_unsynced:
        return 0
    fd = c_dup(st.wfd) if st.wfd >= 0 else segment_open(st, b"msgs", st.wseg.id, O_RDONLY)
    if fd >= 0 or st.wfd >= 0 or errno != ENOENT:       # else it was purged, or not begun
        if loop_add_sync_fd(loop, fd):
            return -1
    loop.is_large_wanted = loop.is_large_wanted or st.is_large_unsynced
    st.is_unsynced = st.is_large_unsynced = False
    return 0


cdef int store_hand_over_name(store_t* st, loop_t* loop) noexcept nogil:
    """The same for its directory. 0, or -1 with errno."""
    cdef char path[PATH_MAX_BYTES]
    store_path(st, path)
    return loop_add_sync_fd(loop, c_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC))


cdef int store_hand_over_directory(store_t* st, loop_t* loop) noexcept nogil:
    """The same for the names of new files. 0, or -1 with errno."""
    if st.is_dir_unsynced:
        if store_hand_over_name(st, loop):
            return -1
        if st.is_nested and loop_add_sync_fd(
                loop, c_open(st.dirname, O_RDONLY | O_DIRECTORY | O_CLOEXEC)):
            return -1
        st.is_dir_unsynced = st.is_acks_dir_unsynced = False
        store_covers_left(st)
    return 0


cdef int store_hand_over(store_t* st, loop_t* loop) noexcept nogil:
    """Put the descriptors of what was written on the next sync. 0, or -1 with errno."""
    if st.is_unsynced and st.wfd >= 0 and loop.n_sync_queues <= RESERVE_QUEUES:
        store_reserve(st, &loop.pool)
    if st.is_acks_wanted and st.is_acks_dir_unsynced:
        st.is_dir_unsynced = True
    st.is_acks_wanted = False           # the tick has handed over what it has written of them
    return -1 if store_hand_over_file(st, loop) else store_hand_over_directory(st, loop)

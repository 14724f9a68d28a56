# Handover: descriptors of what a store has written, for the next sync to cover.
#
# A sync runs over descriptors of its own, which it closes; so a file may roll or go meanwhile. When
# there are too many of them, one sync of the whole file system takes their place.
# Called by tick.pyx and by who changes files of a store. Source: storage reference section 14.
from posix.fcntl cimport O_DIRECTORY

cdef enum:
    MOST_SYNC_QUEUES = 1024     # files above which none is synced one by one


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
    if loop_add_sync_fd(loop, c_dup(fd)) == 0:
        return 0
    if loop.dir_fd < 0:
        return -1
    loop.is_whole_wanted = True
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


cdef int store_hand_over_directory(store_t* st, loop_t* loop) noexcept nogil:
    """The same for the names of new files. 0, or -1 with errno."""
    cdef char path[PATH_MAX_BYTES]
    if st.is_dir_unsynced:
        store_path(st, path)
        if loop_add_sync_fd(loop, c_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)):
            return -1
        if st.is_nested and loop_add_sync_fd(
                loop, c_open(st.parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC)):
            return -1
        st.is_dir_unsynced = st.is_acks_dir_unsynced = False
    return 0


cdef int store_hand_over(store_t* st, loop_t* loop) noexcept nogil:
    """Put the descriptors of what was written on the next sync. 0, or -1 with errno."""
    if st.is_unsynced and st.wfd >= 0 and loop.n_sync_queues <= RESERVE_QUEUES:
        store_reserve(st, &loop.pool)
    if st.is_acks_wanted and st.is_acks_dir_unsynced:
        st.is_dir_unsynced = True
    st.is_acks_wanted = False           # the tick has handed over what it has written of them
    return -1 if store_hand_over_file(st, loop) else store_hand_over_directory(st, loop)

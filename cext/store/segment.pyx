# Segment: files of one segment (msgs.N, acks.N, meta.N) and the pool of memory blocks.
#
# Files are written with pwrite and read with pread: a full disk or a bad sector is an error code
# here, never a signal, nothing is mapped, and a file is never longer than what was written
# (decision 0002). Called by store.pyx and reserve.pyx; knows nothing about records or queues.
# Source: docs/formats.md.
from posix.unistd cimport pread

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <unistd.h>
    extern int syncfs(int fd);
    """
    int fdatasync(int fd) nogil
    int syncfs(int fd) nogil

cdef enum:
    QUEUE_META = 4              # bytes of a meta file
    STREAM_META = 28


# ---- memory blocks -------------------------------------------------------------------------------

cdef u8* block_take(pool_t* pool) noexcept nogil:
    """One block of BLOCK_SIZE bytes; the one freed last comes first: it is still in the cache."""
    cdef u8* block
    if pool.n:
        pool.n -= 1
        block = pool.free_blocks[pool.n]
    else:
        block = <u8*>malloc(BLOCK_SIZE)
    if block != NULL:
        pool.n_used += 1
    return block


cdef void block_give(pool_t* pool, u8* block) noexcept nogil:
    if block == NULL:
        return
    lmq_assert(pool.n_used > 0)
    pool.n_used -= 1
    if pool.n < POOL_KEEP:
        pool.free_blocks[pool.n] = block
        pool.n += 1
    else:
        free(block)


cdef void buffer_give(pool_t* pool, u8* buffer, u64 cap) noexcept nogil:
    """Return a buffer that is a pool block when its capacity is BLOCK_SIZE."""
    if cap == BLOCK_SIZE:
        block_give(pool, buffer)
    else:
        free(buffer)


# ---- files ---------------------------------------------------------------------------------------

cdef int sync_data(int fd) noexcept nogil:
    """fdatasync, again when a signal has cut it short: some file systems let one. 0, or -1."""
    cdef int rc = fdatasync(fd)
    while rc and errno == EINTR:
        rc = fdatasync(fd)
    return rc


cdef int sync_all(int fd) noexcept nogil:
    """The same for syncfs, the whole file system that fd is on."""
    cdef int rc = syncfs(fd)
    while rc and errno == EINTR:
        rc = syncfs(fd)
    return rc


cdef void close_failed(int fd) noexcept nogil:
    """Close a descriptor that is of no use; errno keeps saying why."""
    cdef int error = errno
    c_close(fd)
    set_errno(error)


cdef i64 read_at(int fd, u8* p, u64 n, i64 at) noexcept nogil:
    """Read up to n bytes at file offset `at`. Returns the bytes read (fewer at the end), or -1."""
    cdef ssize_t k
    cdef u64 done = 0
    while done < n:
        k = pread(fd, p + done, n - done, at + <i64>done)
        if k < 0:
            if errno == EINTR:
                continue
            return -1
        if k == 0:
            break
        done += <u64>k
    return <i64>done


cdef int segment_open(store_t* st, const char* kind, u32 id, int flags) noexcept nogil:
    """Open a file of segment `id`; makes the queue's directory when it is missing.
    What is no regular file never blocks."""
    cdef char path[PATH_MAX_BYTES]
    cdef int fd
    segment_path(st, kind, id, path)
    fd = file_open(st.loop, path, flags)
    if fd < 0 and errno == ENOENT and flags & O_CREAT:
        if st.is_nested:
            directory_make(st.loop, st.dirname)
        store_path(st, path)
        directory_make(st.loop, path)
        segment_path(st, kind, id, path)
        fd = file_open(st.loop, path, flags)
    return fd


cdef seg_t* segment_new(u32 id) noexcept nogil:
    cdef seg_t* seg = <seg_t*>calloc(1, sizeof(seg_t))
    if seg != NULL:
        seg.id = id
        seg.size = SEGMENT_HEADER
        seg.ack_fd = -1
    return seg


cdef void segment_free(seg_t* seg) noexcept nogil:
    if seg.ack_fd >= 0:
        c_close(seg.ack_fd)
    free(seg.deleted)
    free(seg.acks)
    free(seg.marks)
    lmq_poison(seg, sizeof(seg_t))
    free(seg)


cdef int segment_push_deleted(seg_t* seg, u32 pos) noexcept nogil:
    """Have the cursor skip the record at pos. 0, or -1 out of memory. Cost: 10 ns."""
    cdef u32* grown
    if seg.n_deleted >= seg.cap_deleted:
        grown = <u32*>realloc(seg.deleted, (<u64>seg.n_deleted * 2 + 64) * sizeof(u32))
        if grown == NULL:
            return -1
        seg.deleted = grown
        seg.cap_deleted = seg.n_deleted * 2 + 64
    heap_rise(seg.deleted, seg.n_deleted, pos)
    seg.n_deleted += 1
    return 0


cdef void segment_fit_deleted(seg_t* seg) noexcept nogil:
    """Give back the room that the positions read from a file have left."""
    cdef u32* fit
    if seg.n_deleted:
        fit = <u32*>realloc(seg.deleted, <u64>seg.n_deleted * sizeof(u32))
        seg.deleted = fit if fit != NULL else seg.deleted
        seg.cap_deleted = seg.n_deleted
    else:
        free(seg.deleted)
        seg.deleted = NULL
        seg.cap_deleted = 0


cdef void segment_pop_deleted(seg_t* seg) noexcept nogil:
    """Forget the first position that the cursor was to skip."""
    seg.n_deleted -= 1
    if seg.n_deleted:
        heap_sink(seg.deleted, seg.n_deleted, 0, seg.deleted[seg.n_deleted])


cdef void segment_unlink(store_t* st, const seg_t* seg) noexcept nogil:
    """Remove the files of a segment. The messages go first, and their deleted positions when that
    is on disk: a segment that is there after a loss of power, without them, would be delivered
    again, whole. So they stay when the messages cannot go."""
    cdef char path[PATH_MAX_BYTES]
    segment_path(st, b"msgs", seg.id, path)
    if file_remove(st.loop, path):
        segment_empty(st, seg.id)
        return
    segment_path(st, b"meta", seg.id, path)
    file_unlink(st.loop, path)
    if seg.ack_size == 0 or not st.loop.sync or store_leave_acks(st, seg.id):
        segment_unlink_acks(st, seg.id)


cdef void segment_empty(store_t* st, u32 id) noexcept nogil:
    """Cut a segment that cannot be removed to nothing: the next start finds no messages in it, and
    tries again. What cannot even be cut has its deleted positions left."""
    cdef char path[PATH_MAX_BYTES]
    cdef int fd = segment_open(st, b"msgs", id, O_RDWR)
    if fd < 0:
        return
    if segment_resize(st, b"msgs", id, fd, SEGMENT_HEADER) == 0:
        segment_path(st, b"meta", id, path)
        file_unlink(st.loop, path)
    close_behind(fd)


cdef void segment_unlink_acks(store_t* st, u32 id) noexcept nogil:
    """Remove the deleted positions of a segment, if there are any."""
    cdef char path[PATH_MAX_BYTES]
    segment_path(st, b"acks", id, path)
    file_unlink(st.loop, path)


cdef int segment_write_meta(store_t* st, const seg_t* seg) noexcept nogil:
    """Write meta.N: the number of records of a finished segment, and for a stream their first
    offset and times (docs/formats.md). One with fillers has none: a start walks it, and
    knows them by themselves.

    0, or -1 with errno: one that is missing or short costs the next start a walk, nothing else."""
    cdef u8 facts[STREAM_META]
    cdef int fd, rc
    if seg.n_fillers:
        return 0
    fd = segment_open(st, b"meta", seg.id, O_RDWR | O_CREAT)
    if fd < 0:
        return -1
    put_le32(facts, seg.count)
    put_le64(facts + 4, <u64>seg.first_offset)
    put_le64(facts + 12, <u64>seg.first_ms)
    put_le64(facts + 20, <u64>seg.last_ms)
    rc = segment_write(st, b"meta", seg.id, CHANGE_PATCH, fd, facts,
                       STREAM_META if st.is_stream else QUEUE_META, 0)
    segment_touched(st, b"meta", seg.id, CHANGE_PATCH, 0, STREAM_META)
    c_close(fd)
    return rc


cdef int segment_finish(store_t* st, seg_t* seg) noexcept nogil:
    """Sync a finished segment, cut what is behind its data, and write its meta file. 0, or -1."""
    cdef int rc, fd = segment_open(st, b"msgs", seg.id, O_RDWR)
    if fd < 0:
        return -1
    rc = sync_data(fd)
    close_failed(fd)
    return rc or segment_cut(st, seg)


cdef int segment_cut(store_t* st, seg_t* seg) noexcept nogil:
    """Cut what is behind the data of a finished segment, and write its meta file. 0, or -1.

    Synced before: in a file without filling nobody could tell a torn record any more."""
    cdef int fd = segment_open(st, b"msgs", seg.id, O_RDWR)
    if fd < 0:
        return -1
    if segment_resize(st, b"msgs", seg.id, fd, seg.size):
        close_failed(fd)
        return -1
    c_close(fd)
    seg.is_reserved = False
    return segment_write_meta(st, seg)


cdef int segment_trim_acks(store_t* st, seg_t* seg) noexcept nogil:
    """Cut acks.N to its used size: a crashed original leaves a preallocated tail. 0, or -1."""
    cdef int fd
    if seg.ack_fd >= 0:
        return 0                # was cut when it was opened
    fd = segment_open(st, b"acks", seg.id, O_RDWR)
    if fd < 0:
        return 0 if errno == ENOENT else -1
    if segment_resize(st, b"acks", seg.id, fd, seg.ack_size):
        c_close(fd)
        return -1
    c_close(fd)
    return 0


cdef int segment_flush_acks(store_t* st, seg_t* seg, bint keep_open) noexcept nogil:
    """Append the deleted positions gathered since the last flush to acks.N. 0, or -1 with errno."""
    cdef i64 began_ns
    cdef int fd
    if seg.n_acks == 0:
        return 0
    if seg.ack_fd < 0:
        began_ns = clock_ns() if seg.ack_size == 0 else 0
        fd = segment_open(st, b"acks", seg.id, O_RDWR | O_CREAT)
        if fd < 0:
            return -1
        if segment_resize(st, b"acks", seg.id, fd, seg.ack_size):   # see segment_trim_acks
            close_failed(fd)
            return -1
        if seg.ack_size == 0:
            st.is_acks_dir_unsynced = True
            loop_made_file(st.loop, began_ns)
        seg.ack_fd = fd
    if st.is_acks_wanted and loop_sync_too(st.loop, seg.ack_fd):
        return -1
    if segment_write(st, b"acks", seg.id, CHANGE_APPEND, seg.ack_fd, <const u8*>seg.acks,
                     <u64>seg.n_acks * 4, seg.ack_size):
        return -1
    seg.ack_size += seg.n_acks * 4
    seg.n_acks = 0
    if not keep_open:
        c_close(seg.ack_fd)
        seg.ack_fd = -1
        free(seg.acks)
        seg.acks = NULL
        seg.cap_acks = 0
    return 0

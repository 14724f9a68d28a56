# Compaction: gives back the disk space of deleted messages in a segment that some message keeps.
#
# A run of deleted records becomes one filler: a record head at its beginning whose body is the rest
# of the run, and that body becomes a hole in the file. No message moves, so whoever knows where one
# is stays right, and any reader of the format skips the filler by its ack position. The positions
# of the runs must be on disk before. A crash at any point leaves a segment that the next start
# reads as before (load.pyx drops positions that are no record's start, and counts anew).
# Called by door.pyx. Source: storage reference sections 3 to 5 and 20.5.

cdef extern from "<fcntl.h>" nogil:
    int fallocate(int fd, int mode, long offset, long len)
    enum:
        FALLOC_FL_KEEP_SIZE
        FALLOC_FL_PUNCH_HOLE

cdef enum:
    FILLER_HEAD = 20            # time, two empty names, no properties, size of the body
    FILLER_LEAST = 16384        # bytes of a run that is worth a filler
    COMPACT_LEAST = 65536       # bytes of a segment that is worth a look
    PAGE = 4096


cdef seg_t* store_compactable(const store_t* st) noexcept nogil:
    """A finished segment, half of which was deleted since it was looked at last; or NULL."""
    cdef seg_t* seg
    cdef u32 i
    if not st.is_durable:
        return NULL
    for i in range(st.n_segs):
        seg = st.segs[i]
        if (seg is not st.wseg and seg is not st.rseg and seg.acked < seg.count
                and seg.size >= COMPACT_LEAST and not seg.damaged_at and not seg.is_reserved
                and seg.acked - seg.looked_acked >= (seg.count - seg.looked_acked + 1) // 2):
            return seg
    return NULL


cdef int filler_write(int fd, u32 start, u32 end) noexcept nogil:
    """Make one record of the bytes from start to end, and a hole of its body. 0, or -1."""
    cdef u8 head[FILLER_HEAD]
    cdef i64 hole = (<i64>start + FILLER_HEAD + PAGE - 1) // PAGE * PAGE
    cdef i64 hole_end = <i64>end // PAGE * PAGE
    memset(head, 0, FILLER_HEAD)
    head[0] = 1
    put_le64(head + FILLER_HEAD - 8, end - start - FILLER_HEAD)
    if write_at(fd, head, FILLER_HEAD, start):
        return -1
    if hole < hole_end and fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, hole,
                                     hole_end - hole):
        return -1
    return 0


cdef u32 acks_read(store_t* st, const seg_t* seg, u32** found) noexcept nogil:
    """The deleted positions of a segment, sorted, in memory that the caller frees; how many."""
    cdef u32* acks = <u32*>malloc(<u64>seg.ack_size + 4)
    cdef int fd
    cdef i64 got = -1
    found[0] = acks
    if acks == NULL:
        return 0
    fd = segment_open(st, b"acks", seg.id, O_RDONLY)
    if fd >= 0:
        got = read_at(fd, <u8*>acks, seg.ack_size, 0)
        c_close(fd)
    if got < 4:
        return 0
    qsort(acks, <u64>got // 4, 4, compare_u32)
    return <u32>(got // 4)


cdef int store_compact(store_t* st, pool_t* pool, seg_t* seg, u32* kept, u32* n_kept,
                       u32* n_records) noexcept nogil:
    """Turn runs of deleted records into fillers. `kept` are the deleted positions that are left,
    `n_records` the records. 0, or -1 with errno: then the rest of the segment is as it was."""
    cdef u32* acks
    cdef u32 n_acks = acks_read(st, seg, &acks)
    cdef u32 pos = SEGMENT_HEADER, run = 0, i = 0, first_kept = 0
    cdef bint is_deleted
    cdef rec_t rec
    cdef int fd = segment_open(st, b"msgs", seg.id, O_RDWR)
    cdef int rc = -1 if fd < 0 else 0
    n_kept[0] = n_records[0] = 0
    while rc == 0 and pos <= seg.size:
        is_deleted = False
        if pos < seg.size:
            if store_read(st, pool, store_window(st), seg, pos, BLOCK_SIZE, &rec) != 1:
                set_errno(EIO)
                rc = -1
                break
            while i < n_acks and acks[i] < pos:
                i += 1
            is_deleted = i < n_acks and acks[i] == pos
        if is_deleted:
            if run == 0:
                run = pos
                first_kept = n_kept[0]
            kept[n_kept[0]] = pos
            n_kept[0] += 1
        elif run:
            if pos - run >= FILLER_LEAST:
                rc = filler_write(fd, run, pos)
                if rc == 0:
                    n_records[0] -= n_kept[0] - first_kept - 1
                    n_kept[0] = first_kept + 1
            run = 0
        if pos == seg.size:
            break
        n_records[0] += 1
        pos += rec.size
    if fd >= 0:
        close_failed(fd)
    free(acks)
    store_forget_window(st)
    return rc

# Whole: where a copy of a segment may end, whose last record would be cut by a size.
#
# Data is written over filling, so a file has had its size before it had all of its records. What
# was written since that size was taken may reach beyond it: then a copy ends before that record.
# Only what is whole in the file itself is believed; else nothing is cut. Called by the door.
# Source: docs/formats.md, docs/backup.md.

cdef enum:
    WHOLE_WINDOW = 262144


cdef i64 whole_end_of(int fd, i64 size) noexcept nogil:
    """The end of the last record that ends within `size` bytes, or of what stands there if that is
    no data; `size` when it cannot be told. -1 with errno."""
    cdef u8* buf = <u8*>malloc(WHOLE_WINDOW)
    cdef u64 cap = WHOLE_WINDOW
    cdef i64 end
    if buf == NULL:
        set_errno(ENOMEM)
        return -1
    end = whole_walk(fd, size, &buf, &cap)
    free(buf)
    return end


cdef i64 whole_walk(int fd, i64 size, u8** buf, u64* cap) noexcept nogil:
    cdef rec_t rec
    cdef u8 pattern[PATTERN]
    cdef u8* grown
    cdef bint is_filled = reserve_pattern(fd, pattern) == 0
    cdef i64 pos = SEGMENT_HEADER, last = SEGMENT_HEADER, at = 0, got = 0
    cdef int rc
    memset(&rec, 0, sizeof(rec))
    if size < SEGMENT_HEADER:
        return size
    while pos < size:
        rc = record_parse(buf[0] + (pos - at), <u64>(at + got - pos), &rec) if pos < at + got else 0
        if rc == 0 and at == pos and got and rec.body == NULL:
            if <u64>got < cap[0] or rec.size <= cap[0]:
                return size                 # the file ends in it, or it makes no sense
            grown = <u8*>realloc(buf[0], rec.size)
            if grown == NULL:
                return size
            buf[0], cap[0] = grown, rec.size
            got = 0
        if rc == 0 and (at != pos or got == 0):
            at = pos
            got = read_at(fd, buf[0], cap[0], at)
            if got <= 0:
                return got if got else size
            continue
        if rc < 0:
            return whole_at_filling(fd, pos, size, pattern if is_filled else NULL)
        if pos + <i64>rec.size > size:
            return pos if whole_reaches(fd, pos + <i64>rec.size) else size
        last = pos
        pos += <i64>rec.size
    if last < pos and is_filled:
        rec.pos = <u32>last
        if rc == 0:
            rec.body = NULL
        if record_is_torn(fd, &rec, pattern):
            return last
    return pos


cdef bint whole_reaches(int fd, i64 end) noexcept nogil:
    """Whether the file has so many bytes."""
    cdef u8 byte
    return read_at(fd, &byte, 1, end - 1) == 1


cdef i64 whole_at_filling(int fd, i64 pos, i64 size, const u8* pattern) noexcept nogil:
    """pos, when only zeros and filling stand from there to `size`; else `size`."""
    cdef u8 zeros[TERMINATOR + PATTERN]
    cdef i64 got, start, i
    if pattern == NULL:
        return size
    start = filling_start(fd, <u32>size, pattern)
    if start < 0:
        return -1
    if start > pos + TERMINATOR + PATTERN:
        return size
    got = read_at(fd, zeros, <u64>min(TERMINATOR + PATTERN, size - pos), pos)
    for i in range(min(got, start - pos)):
        if zeros[i]:
            return size
    return pos

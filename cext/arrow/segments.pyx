# Arrow segments: the records of a segment file become rows.
#
# Reads memory only; whoever calls has read the file, whole or a window of it, and decides what an
# end in the middle of a record means. Nothing is read behind the end of the data, whatever lengths
# the records claim. The layout of a record is record.pxd's.
# Source: docs/formats.md; filling and its pattern: decision 0010.
from libc.stdlib cimport qsort

cdef enum scan_code:            # why a scan returned
    SCAN_MORE = 0               # the data end before the next record does
    SCAN_FULL = 1               # rows enough, or they fill the columns: take them, and go on
    SCAN_END = 2                # a zero timestamp, or the last offset that was wanted
    SCAN_TORN = 3               # the next record was not written whole
    SCAN_CORRUPT = 4            # what stands there is no record

cdef enum:
    FILLER_MS = 1               # time of a record that stands for deleted ones (decision 0014)
    PATTERN = 16
    SECTOR = 512
    PATTERN_SURE = 8            # so many bytes like the pattern are no chance
    RESUME_MOST = 1 << 28       # bytes behind a damage that are looked at

cdef struct scan_t:
    const u8* data
    u64 size
    u64 at                      # in the data, of the next record
    u64 base                    # of the data, in the file
    i64 offset                  # of the next record, or COLUMNS_NONE
    i64 offset_from
    i64 offset_to
    u64 from_ms
    u64 to_ms
    i64 segment                 # or COLUMNS_NONE
    u32* acks                   # rising
    u64 n_acks
    u64 next_ack
    u64 needed                  # SCAN_MORE: bytes from the next record on that are known to lack
    u64 n_records
    bint knows_acks
    bint with_acked
    bint has_pattern
    u8[PATTERN] pattern


cdef int compare_u32(const void* a, const void* b) noexcept nogil:
    cdef u32 x = (<const u32*>a)[0], y = (<const u32*>b)[0]
    return (x > y) - (x < y)


cdef inline bint scan_is_pattern(const scan_t* s, u64 at, u64 n) noexcept nogil:
    """Whether the n bytes at `at` are filling; there are as many."""
    cdef u64 i
    for i in range(at, at + n):
        if s.data[i] != s.pattern[(s.base + i) % PATTERN]:
            return False
    return True


cdef bint scan_is_torn(const scan_t* s, const rec_t* r) noexcept nogil:
    """Whether parts of the record are filling still: a sector that a crash has lost, or in a file
    that is being written, the end of what is written just now."""
    cdef u64 end = s.at + r.size
    cdef u64 sector = s.at + SECTOR - (s.base + s.at) % SECTOR
    while sector < end and sector + PATTERN <= s.size:
        if scan_is_pattern(s, sector, PATTERN):
            return True
        sector += SECTOR
    if end + 8 <= s.size and le64(s.data + end) == 0:
        return scan_is_pattern(s, end - PATTERN_SURE, PATTERN_SURE)
    return False


cdef inline bint scan_is_acked(scan_t* s, u64 position) noexcept nogil:
    while s.next_ack < s.n_acks and s.acks[s.next_ack] < position:
        s.next_ack += 1
    return s.next_ack < s.n_acks and s.acks[s.next_ack] == position


# hot
cdef inline int scan_row(scan_t* s, columns_t* c, const rec_t* r, u64 stamp) noexcept nogil:
    """Make a row of the record if it is wanted. A columns_result or NO_MEMORY."""
    cdef message_t m
    cdef bint is_acked = scan_is_acked(s, s.base + s.at) if s.n_acks else False
    if is_acked and not s.with_acked or stamp < s.from_ms or stamp >= s.to_ms:
        return COLUMNS_ADDED
    if stamp == FILLER_MS and r.names_len == 2:
        return COLUMNS_ADDED
    if s.offset != COLUMNS_NONE and s.offset < s.offset_from:
        return COLUMNS_ADDED
    m.exchange = r.names + 1
    m.exchange_len = r.names[0]
    m.routing_key = m.exchange + m.exchange_len + 1
    m.routing_key_len = r.names[1 + m.exchange_len]
    m.props = r.props
    m.props_len = r.props_len
    m.is_wire = False
    m.body = r.body
    m.body_len = r.body_len
    m.offset = s.offset
    m.timestamp_ms = <i64>stamp
    m.position = <i64>(s.base + s.at)
    m.segment = s.segment
    m.is_acked = is_acked if s.knows_acks else -1
    return columns_put(c, &m)


# hot
cdef int scan_run(scan_t* s, columns_t* c, u64 max_rows, u64 max_bytes) noexcept nogil:
    """Make rows until there is a reason to stop: a scan_code, or a negative columns_result.
    s.at is then the record that was not taken. Cost: 20 ns a record, and its row."""
    cdef rec_t r
    cdef u64 stamp
    cdef int rc
    while True:
        s.needed = 8
        if s.size - s.at < 8:
            return SCAN_MORE
        stamp = le64(s.data + s.at)
        if stamp == 0 or s.offset >= s.offset_to:
            return SCAN_END
        rc = record_parse(s.data + s.at, s.size - s.at, &r)
        if rc <= 0:
            s.needed = r.size
            return SCAN_MORE if rc == 0 else SCAN_CORRUPT
        if s.has_pattern and scan_is_torn(s, &r):
            return SCAN_TORN
        if c.n_rows >= max_rows or c.n_bytes >= max_bytes:
            return SCAN_FULL
        rc = scan_row(s, c, &r, stamp)
        if rc:
            return SCAN_FULL if rc == COLUMNS_FULL else rc
        s.at += r.size
        s.n_records += 1
        if s.offset != COLUMNS_NONE:
            s.offset += 1


cdef int scan_walk(scan_t* s, u64* last) noexcept nogil:
    """Count the records without making rows; `last` is the start of the last one. A scan_code."""
    cdef rec_t r
    cdef int rc
    while True:
        s.needed = 8
        if s.size - s.at < 8:
            return SCAN_MORE
        if le64(s.data + s.at) == 0:
            return SCAN_END
        rc = record_parse(s.data + s.at, s.size - s.at, &r)
        if rc <= 0:
            s.needed = r.size
            return SCAN_MORE if rc == 0 else SCAN_CORRUPT
        last[0] = s.at
        s.at += r.size
        s.n_records += 1


@cython.final
cdef class Scanner:
    """The way through the records of one segment; see `_arrow.pyi`."""

    cdef scan_t s
    cdef Columns columns

    MORE, FULL, END, TORN, CORRUPT = SCAN_MORE, SCAN_FULL, SCAN_END, SCAN_TORN, SCAN_CORRUPT

    def __cinit__(
        self, Columns columns not None, *, segment=None, offset=None, bytes acks=None,
        bint with_acked=False, offsets=None, times_ms=None, bytes pattern not None=b"",
    ):
        self.columns = columns
        self.s.segment = COLUMNS_NONE if segment is None else segment
        self.s.offset = COLUMNS_NONE if offset is None else offset
        self.s.offset_from, self.s.offset_to = offsets or (0, <i64>0x7FFFFFFFFFFFFFFF)
        self.s.from_ms, self.s.to_ms = times_ms or (0, <u64>0xFFFFFFFFFFFFFFFF)
        self.s.with_acked = with_acked
        self.s.has_pattern = len(pattern) == PATTERN
        if self.s.has_pattern:
            memcpy(self.s.pattern, <const u8*>pattern, PATTERN)
        if acks is not None:
            self._sort_acks(acks)

    def __dealloc__(self):
        free(self.s.acks)

    cdef void _sort_acks(self, bytes acks) except *:
        cdef u64 n = <u64>len(acks) // 4, i
        self.s.knows_acks = True
        self.s.acks = <u32*>malloc(n * 4 + 4)
        if self.s.acks == NULL:
            raise MemoryError
        memcpy(self.s.acks, <const u8*>acks, n * 4)
        for i in range(n):
            if self.s.acks[i] == 0:
                break
            self.s.n_acks += 1
        qsort(self.s.acks, self.s.n_acks, 4, compare_u32)

    @property
    def position(self):
        return self.s.base + self.s.at

    @property
    def needed(self):
        return self.s.needed

    @property
    def n_records(self):
        return self.s.n_records

    @property
    def offset(self):
        return None if self.s.offset == COLUMNS_NONE else self.s.offset

    @offset.setter
    def offset(self, i64 value):
        self.s.offset = value

    def scan(
        self, const u8[::1] data not None, u64 position, *, u64 start=0,
        u64 max_rows=MOST_ROWS, u64 max_bytes=LARGEST_DATA,
    ):
        cdef int rc
        if start > <u64>data.shape[0]:
            raise ValueError("the scan starts behind the data")
        self.s.data = &data[0] if data.shape[0] else NULL
        self.s.size = <u64>data.shape[0]
        self.s.at = start
        self.s.base = position - start
        with nogil:
            rc = scan_run(&self.s, &self.columns.c, max_rows, max_bytes)
        if rc < 0:
            columns_said(rc)
        return rc


def walk(const u8[::1] data not None, u64 start=0):
    """Return code, end of the last whole record, its start, and how many there are."""
    cdef scan_t s
    cdef u64 last = start
    cdef int rc
    if start > <u64>data.shape[0]:
        raise ValueError("the walk starts behind the data")
    memset(&s, 0, sizeof(s))
    s.data = &data[0] if data.shape[0] else NULL
    s.size = <u64>data.shape[0]
    s.at = start
    with nogil:
        rc = scan_walk(&s, &last)
    return rc, s.at, last, s.n_records


def resume(
    const u8[::1] data not None, *, u64 position=0, bytes pattern not None=b"", u64 oldest_ms=0,
):
    """Return where records go on behind the damage that data begin with and how many, or None."""
    cdef salvage_t s
    cdef u32 found = 0, at = 0, last = <u32>data.shape[0]
    if <u64>data.shape[0] > RESUME_MOST or len(pattern) not in (0, PATTERN):
        return None
    memset(&s, 0, sizeof(s))
    s.n = last
    s.oldest_ms = OLDEST_MS if oldest_ms < OLDEST_MS else oldest_ms
    s.data = <u8*>malloc(s.n + 1)
    s.starts = <u8*>calloc(1, (s.n >> 3) + 1)
    try:
        if s.data == NULL or s.starts == NULL:
            raise MemoryError
        if s.n:
            memcpy(s.data, &data[0], s.n)
        if pattern:
            while last and s.data[last - 1] == <u8>pattern[(position + last - 1) % PATTERN]:
                last -= 1
            memset(s.data + last, 0, s.n - last)
        with nogil:
            while last and s.data[last - 1] == 0:
                last -= 1
            if last:
                at = salvage_search(&s, last, 0xFFFFFFFF, &found)
        return (at, found) if found else None
    finally:
        free(s.data)
        free(s.starts)

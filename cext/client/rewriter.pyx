# Rewriter: changes properties of messages that go on, in one pass over their bytes.
#
# What is not to be changed is copied as it stands, with the types that its publisher chose. Header
# fields are dropped by name, an array among them gets one more entry, and others are appended.
# A message that has passed too many links, or has been here, goes no further (STOPPED).
# Nothing is allocated for a message. Source: AMQP 0-9-1 specification, section 4.2.6.1.

cdef enum:
    REWRITE_SAME = 0            # as it came
    REWRITE_MADE = 1            # `out` has the new ones
    REWRITE_STOPPED = 2
    N_PROPERTIES = 14
    PROPERTY_HEADERS = 2
    PROPERTY_USER_ID = 11
    FLAG_OF_HEADERS = 0x2000
    FLAG_OF_USER_ID = 0x0010

cdef extern from * nogil:
    """
    static inline int64_t client_wall_s(void) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        return t.tv_sec;
    }
    """
    i64 client_wall_s()


cdef bytes encoded_field(str name, value):
    """A header as it stands in a table. Raises: ValueNotEncodable."""
    cdef buf_t b
    memset(&b, 0, sizeof(b))
    try:
        put_table(&b, {name: value}, 1)
        return buf_bytes(&b)[4:]
    finally:
        buf_free(&b)


cdef bytes encoded_value(value):
    """A value of a table or an array, its type first."""
    cdef buf_t b
    memset(&b, 0, sizeof(b))
    try:
        put_value(&b, value, 2)
        return buf_bytes(&b)
    finally:
        buf_free(&b)


cdef u64 property_size(int which, const u8* p, u64 n) noexcept:
    """Bytes of a property at p; more than n when it is cut."""
    if which == PROPERTY_HEADERS:
        return 4 + <u64>be32(p) if n >= 4 else 4
    if which == 9:
        return 8
    if which == 3 or which == 4:
        return 1
    return 1 + <u64>p[0] if n else 1


cdef inline bint is_same(bytes known, const u8* p, u64 n) noexcept:
    return (
        <u64>PyBytes_GET_SIZE(known) == n and memcmp(PyBytes_AS_STRING(known), p, n) == 0
    )


cdef inline bint is_same_bytes(bytes known, PyObject* other) noexcept:
    return is_same(
        known, <const u8*>PyBytes_AS_STRING(<bytes>other), PyBytes_GET_SIZE(<bytes>other)
    )


cdef i64 offset_in(const u8* p, u64 n) noexcept:
    """The header `x-stream-offset` of encoded properties; -1 when there is none."""
    cdef u64 at = 2, size
    cdef u16 flags
    cdef int i
    if n < 2:
        return -1
    flags = be16(p)
    for i in range(PROPERTY_HEADERS + 1):
        if flags & (0x8000 >> i):
            size = property_size(i, p + at, n - at)
            if size > n - at:
                return -1
            if i == PROPERTY_HEADERS:
                return offset_among(p + at + 4, size - 4)
            at += size
    return -1


cdef i64 offset_among(const u8* p, u64 n) noexcept:
    cdef u64 size
    while n:
        size = entry_size(p, n)
        if size == 0:
            return -1
        if p[0] == 15 and memcmp(p + 1, b"x-stream-offset", 15) == 0:
            if p[16] == c'l' or p[16] == c'L':
                return <i64>be64(p + 17)
            return <i32>be32(p + 17) if p[16] == c'I' else -1
        p += size
        n -= size
    return -1


@cython.final
cdef class Rewriter:
    """What becomes of the properties of messages that go on.

    Args: properties: by name, instead of the message's own; their `headers` are added to its own,
    or replace them by name. drops_user_id: whether that property goes. drops: names of headers that
    go. stamp: name of a header that gets the time, in seconds. array: name of a header that is an
    array and gets one more entry, which is `entry`, with `redelivered` when `tells_redelivered`.
    most: entries that it may have before; `been`: mappings, one of which is in an entry of a
    message that has been here: neither goes on. Raises: ValueNotEncodable.
    """

    cdef list fixed             # bytes by property, None = the message's own
    cdef u16 fixed_flags
    cdef bint drops_user_id
    cdef list drops             # names, as bytes
    cdef bytes added            # fields of the table of headers
    cdef bytes stamp            # a field up to the number
    cdef bytes array            # a name, as bytes
    cdef bytes entry
    cdef bytes entry_again      # of one that was redelivered
    cdef u64 most
    cdef list been              # lists of fields, as bytes
    cdef bint is_quiet          # changes only those that have what goes
    cdef u64 grows              # by so many bytes at most
    cdef bint has_headers       # of the message that was changed last
    cdef buf_t out

    def __cinit__(
        self, *, dict properties=None, bint drops_user_id=False, drops=(), str stamp=None,
        str array=None, dict entry=None, bint tells_redelivered=False, most=None, been=(),
    ):
        cdef dict values = dict(properties or {})
        headers = values.pop("headers", None) or {}
        encode_properties(values)  # refuses unknown names
        self.fixed = [None] * N_PROPERTIES
        for i, name in enumerate(PROPERTY_NAMES):
            if values.get(name) is not None:
                self.fixed[i] = encode_properties({name: values[name]})[2:]
                self.fixed_flags |= <u16>(0x8000 >> i)
        self.drops_user_id = drops_user_id
        self.drops = [utf8_of(name) for name in (*drops, *headers)]
        self.added = b"".join([encoded_field(name, headers[name]) for name in headers])
        if stamp is not None:
            self.drops.append(utf8_of(stamp))
            field = encoded_field(stamp, 1 << 62)
            self.stamp = field[: len(field) - 8]
        if array is not None:
            self.array = utf8_of(array)
            mine = dict(entry or {})
            if tells_redelivered:
                mine["redelivered"] = False
            self.entry = self.entry_again = encoded_value(mine)
            if tells_redelivered:
                self.entry_again = encoded_value({**mine, "redelivered": True})
        self.most = 0xFFFFFFFFFFFFFFFF if most is None else most
        self.been = [[encoded_field(name, each[name]) for name in each] for each in been]
        self.is_quiet = not (self.fixed_flags or self.added or self.stamp or self.array)
        self.grows = 4 + len(self.added) + sum([len(each) for each in self.fixed if each])
        if self.stamp is not None:
            self.grows += len(self.stamp) + 8
        if self.array is not None:
            self.grows += 6 + len(self.array) + len(self.entry)

    def __dealloc__(self):
        buf_free(&self.out)

    def apply(self, bytes raw, bint redelivered=False):
        """Encoded properties as they go on; None: the message goes no further.

        Raises: ProtocolViolation when they are malformed.
        """
        cdef int what = self.change(
            <const u8*>PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw), redelivered
        )
        if what == REWRITE_STOPPED:
            return None
        return buf_bytes(&self.out) if what == REWRITE_MADE else raw

    cdef int change(self, const u8* p, u64 n, bint redelivered) except -1:
        """`apply`: what comes of it is in `out` unless it stays the same."""
        cdef u64 at = 2, size
        cdef u16 flags, made = 0, bit
        cdef int i
        if n < 2 or be16(p) & 3:
            raise ProtocolViolation("properties are cut short, or have unknown flags")
        flags = be16(p)
        if self.is_quiet and not (self.drops_user_id and flags & FLAG_OF_USER_ID):
            if not (self.drops and flags & FLAG_OF_HEADERS):
                return REWRITE_SAME
        self.out.n = 0
        if buf_room(&self.out, n + self.grows):
            raise MemoryError
        self.out.n = 2
        for i in range(N_PROPERTIES):
            bit = <u16>(0x8000 >> i)
            size = 0
            if flags & bit:
                size = property_size(i, p + at, n - at)
                if size > n - at:
                    raise ProtocolViolation("properties are cut short")
            if i == PROPERTY_HEADERS:
                if not self.change_headers(p + at + 4, size - 4 if size else 0, redelivered):
                    return REWRITE_STOPPED
                made |= bit if self.has_headers else 0
            elif self.fixed_flags & bit:
                self.append(<bytes>self.fixed[i])
                made |= bit
            elif flags & bit and not (i == PROPERTY_USER_ID and self.drops_user_id):
                memcpy(self.out.p + self.out.n, p + at, size)
                self.out.n += size
                made |= bit
            at += size
        put_be16(self.out.p, made)
        return REWRITE_MADE

    cdef void append(self, bytes piece) noexcept:
        memcpy(self.out.p + self.out.n, PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))
        self.out.n += PyBytes_GET_SIZE(piece)

    cdef void append_entry(self, bint redelivered) noexcept:
        self.append(self.entry_again if redelivered else self.entry)

    cdef bint change_headers(self, const u8* p, u64 n, bint redelivered) except -1:
        """Write the table; False: the message goes no further."""
        cdef u64 start = self.out.n, size, key
        cdef bint has_array = self.array is None
        cdef u8* length
        self.out.n += 4
        while n:
            size = entry_size(p, n)
            if size == 0:
                raise ProtocolViolation("headers are cut short, or have a value of unknown type")
            key = 1 + <u64>p[0]
            if self.array is not None and is_same(self.array, p + 1, key - 1):
                # What is no array, or comes a second time, is no word of a link.
                if not has_array and p[key] == c'A':
                    has_array = True
                    if self.is_over(p + key + 5, size - key - 5):
                        return False
                    length = self.out.p + self.out.n + key + 1
                    memcpy(self.out.p + self.out.n, p, size)
                    self.out.n += size
                    self.append_entry(redelivered)
                    put_be32(length, <u32>(self.out.p + self.out.n - length - 4))
            elif not self.is_dropped(p + 1, key - 1):
                memcpy(self.out.p + self.out.n, p, size)
                self.out.n += size
            p += size
            n -= size
        if not has_array:
            if self.most == 0:
                return False
            self.append_array(redelivered)
        if self.stamp is not None:
            self.append(self.stamp)
            put_be64(self.out.p + self.out.n, <u64>client_wall_s())
            self.out.n += 8
        self.append(self.added)
        size = self.out.n - start - 4
        self.has_headers = size > 0
        if self.has_headers:
            put_be32(self.out.p + start, <u32>size)
        else:
            self.out.n = start
        return True

    cdef void append_array(self, bint redelivered) noexcept:
        """The array with one entry."""
        cdef u8* p = self.out.p + self.out.n
        cdef u64 n = PyBytes_GET_SIZE(self.array)
        p[0] = <u8>n
        p[1 + n] = c'A'
        memcpy(p + 1, PyBytes_AS_STRING(self.array), n)
        put_be32(p + 2 + n, <u32>PyBytes_GET_SIZE(self.entry_again if redelivered else self.entry))
        self.out.n += 6 + n
        self.append_entry(redelivered)

    cdef bint is_dropped(self, const u8* name, u64 n) noexcept:
        cdef bytes each
        for each in self.drops:
            if is_same(each, name, n):
                return True
        return False

    cdef bint is_over(self, const u8* p, u64 n) except -1:
        """Whether the entries of the array are too many, or one says that it has been here."""
        cdef u64 size, count = 0
        while n:
            size = value_size(p, n)
            if size == 0:
                raise ProtocolViolation("an array in headers is cut short, or of unknown type")
            count += 1
            if count >= self.most or (p[0] == c'F' and self.has_been(p + 5, size - 5)):
                return True
            p += size
            n -= size
        return self.most == 0

    cdef bint has_been(self, const u8* p, u64 n) noexcept:
        """Whether a table has all fields of one of those in `been`."""
        cdef list fields
        for fields in self.been:
            if self.has_all(fields, p, n):
                return True
        return False

    cdef bint has_all(self, list fields, const u8* p, u64 n) noexcept:
        cdef bytes field
        cdef u64 at, size
        for field in fields:
            at = 0
            while at < n:
                size = entry_size(p + at, n - at)
                if size == 0:
                    return False
                if is_same(field, p + at, size):
                    break
                at += size
            if at >= n:
                return False
        return True

# Record: THE layout of a stored message. Inline only; shared with the scanner.
#
#   timestamp   int64   Unix milliseconds, never 0
#   exchange    u8 n, n bytes
#   routing key u8 n, n bytes
#   flags       u16     same bits as AMQP
#   properties  present ones in flag order; the headers table is u32 length + wire bytes,
#               the timestamp int64
#   body size   u64
#   body        bytes
#
# Scalars are little-endian here and big-endian on the wire, sizes are equal: the two forms of the
# properties differ in the flag word, the headers table's length and the timestamp only.
# Source: docs/formats.md. Rule for changing it: the format is LavinMQ's and is not ours
# to change; a new field goes into a new file beside the segment.
from bytes cimport (
    be16, be32, be64, i64, le16, le32, le64, put_be16, put_be32, put_be64, put_le16, put_le32,
    put_le64, top_bit, u8, u32, u64,
)
from libc.string cimport memcpy
from types cimport msg_t, rec_t

cdef enum record_layout:
    SEGMENT_HEADER = 4          # int32 schema version before the first record
    SCHEMA_VERSION = 4
    RECORD_FIXED = 18           # timestamp, flags, body size

cdef extern from *:
    """
    #define NEWEST_MS 17592186044416ull     /* the year 2527: what is above is no timestamp */
    """
    u64 NEWEST_MS

cdef enum property_flag:
    FLAG_HEADERS = 0x2000
    FLAG_DELIVERY_MODE = 0x1000
    FLAG_PRIORITY = 0x0800
    FLAG_CORRELATION_ID = 0x0400
    FLAG_REPLY_TO = 0x0200
    FLAG_EXPIRATION = 0x0100
    FLAG_MESSAGE_ID = 0x0080
    FLAG_TIMESTAMP = 0x0040
    FLAG_USER_ID = 0x0010

cdef struct props_t:            # what a walk over properties finds; offsets are 0 when absent
    u32 len
    u32 headers_at
    u32 headers_len
    u32 stamp_at
    u32 reply_to_at             # of the length byte
    u32 expiration_at           # of the length byte
    u32 user_id_at              # of the length byte
    u32 priority_at


cdef inline int props_walk_each(const u8* p, u64 avail, u32 flags, bint is_wire,
                                props_t* out) noexcept nogil:
    """props_walk for what is not plain."""
    cdef u32 at = 2, bit, n
    if flags & 3:
        return -1
    while flags:
        bit = top_bit(flags)
        flags ^= bit
        if bit == FLAG_HEADERS:
            if at + 4 > avail:
                return 0
            n = be32(p + at) if is_wire else le32(p + at)
            out.headers_at = at
            out.headers_len = n
            if n > avail - at - 4:
                return 0
            at += 4 + n
        elif bit == FLAG_DELIVERY_MODE:
            at += 1
        elif bit == FLAG_PRIORITY:
            out.priority_at = at
            at += 1
        elif bit == FLAG_TIMESTAMP:
            out.stamp_at = at
            at += 8
        else:
            if at >= avail:
                return 0
            if bit == FLAG_REPLY_TO:
                out.reply_to_at = at
            elif bit == FLAG_EXPIRATION:
                out.expiration_at = at
            elif bit == FLAG_USER_ID:
                out.user_id_at = at
            at += 1 + p[at]
        if at > avail:
            return 0
    out.len = at
    return 1


cdef inline int props_walk(const u8* p, u64 avail, bint is_wire, props_t* out) noexcept nogil:
    """Find the extent of the properties at p.

    Returns 1 when complete, 0 when they run past avail, -1 for illegal flags.
    Cost: 2 ns without properties, about 1 ns for each one present."""
    cdef u32 flags
    out.headers_at = out.headers_len = out.stamp_at = out.expiration_at = out.user_id_at = 0
    out.reply_to_at = out.priority_at = 0
    if avail < 2:
        return 0
    flags = be16(p) if is_wire else le16(p)
    if flags & ~<u32>FLAG_DELIVERY_MODE == 0:
        out.len = 2 + (flags != 0)
        return out.len <= avail
    return props_walk_each(p, avail, flags, is_wire, out)


cdef inline u32 props_place(const u8* props, u32 flag) noexcept nogil:
    """Where a property is, or belongs when it is absent, in valid ones in wire order."""
    cdef u32 flags = be16(props), at = 2, bit = 0x8000
    while bit > flag:
        if flags & bit:
            if bit == FLAG_HEADERS:
                at += 4 + be32(props + at)
            elif bit == FLAG_DELIVERY_MODE or bit == FLAG_PRIORITY:
                at += 1
            elif bit == FLAG_TIMESTAMP:
                at += 8
            else:
                at += 1 + props[at]
        bit >>= 1
    return at


cdef inline void msg_note_props(msg_t* m, const u8* props, const props_t* found) noexcept nogil:
    """Give m the properties that a walk has found. CC and BCC are not looked for."""
    m.props = props
    m.props_len = found.len
    m.headers_at = found.headers_at
    m.headers_len = found.headers_len
    m.stamp_at = found.stamp_at
    m.reply_to_at = found.reply_to_at
    m.expiration_at = found.expiration_at
    m.priority_at = found.priority_at
    m.is_special = found.expiration_at != 0
    m.cc_at = m.bcc_at = 0


cdef inline bint msg_note_plain(msg_t* m, const u8* props, u32 len) noexcept nogil:
    """Give m its properties when they are all of len bytes: none, or the delivery mode alone."""
    if (len != 2 or be16(props)) and (len != 3 or be16(props) != FLAG_DELIVERY_MODE):
        return False
    m.props = props
    m.props_len = len
    m.headers_at = m.headers_len = m.stamp_at = m.reply_to_at = m.expiration_at = 0
    m.priority_at = m.cc_at = m.bcc_at = 0
    m.is_special = False
    return True


cdef inline int record_parse(const u8* p, u64 avail, rec_t* r) noexcept nogil:
    """Slice the record at p; see record_parse_any. Straight for a whole record without properties
    but the delivery mode."""
    cdef u64 at, body_len
    cdef u32 flags, n
    if avail < 20 or le64(p) - 1 >= NEWEST_MS:
        return record_parse_any(p, avail, r)
    at = 9 + <u64>p[8]
    if at >= avail:
        return record_parse_any(p, avail, r)
    at += 1 + <u64>p[at]
    if at + 11 > avail:
        return record_parse_any(p, avail, r)
    flags = le16(p + at)
    if flags & ~<u32>FLAG_DELIVERY_MODE:
        return record_parse_any(p, avail, r)
    n = 2 + (flags != 0)
    if at + n + 8 > avail:
        return record_parse_any(p, avail, r)
    body_len = le64(p + at + n)
    if body_len > avail - at - n - 8:
        return record_parse_any(p, avail, r)
    r.names = p + 8
    r.names_len = <u32>at - 8
    r.props = p + at
    r.props_len = n
    r.headers_at = r.headers_len = r.stamp_at = r.expiration_at = 0
    at += n + 8
    r.body = p + at
    r.body_len = body_len
    r.size = <u32>(at + body_len)
    return 1


cdef inline int record_parse_any(const u8* p, u64 avail, rec_t* r) noexcept nogil:
    """Slice the record at p.

    Returns 1 when whole; 0 when it runs past avail: r.size is then the least size known to be
    needed, and r.body is NULL unless that is all and everything but the body is sliced; -1 when no
    record is there: timestamp 0 or out of reason, illegal property flags or an impossible size."""
    cdef u32 at, n
    cdef u64 size
    cdef int rc
    cdef props_t props
    r.size = 32
    r.body = NULL
    if avail < 20:
        if avail >= 8 and le64(p) - 1 >= NEWEST_MS:
            return -1
        return 0
    if le64(p) - 1 >= NEWEST_MS:
        return -1
    n = 1 + p[8]
    if 8 + n >= avail:
        r.size = 600
        return 0
    n += 1 + p[8 + n]
    at = 8 + n
    r.names = p + 8
    r.names_len = n
    if at + 10 > avail:
        r.size = at + 64
        return 0
    rc = props_walk(p + at, avail - at, False, &props)
    if rc < 0:
        return -1
    if rc == 0:
        if props.headers_len > 0x7FFFFFFF:
            return -1
        r.size = at + 4096 + props.headers_len
        return 0
    r.props = p + at
    r.props_len = props.len
    r.headers_at = props.headers_at
    r.headers_len = props.headers_len
    r.stamp_at = props.stamp_at
    r.expiration_at = props.expiration_at
    at += props.len
    if at + 8 > avail:
        r.size = at + 8
        return 0
    r.body_len = le64(p + at)
    at += 8
    if r.body_len >> 32:
        return -1
    size = at + r.body_len
    if size >> 32:
        return -1
    r.size = <u32>size
    r.body = p + at
    return size <= avail


cdef inline void record_write(u8* p, const msg_t* m, i64 timestamp_ms) noexcept nogil:
    """Write the record head of m, everything up to the body, at p.
    The caller made room for m.size."""
    put_le64(p, <u64>timestamp_ms)
    memcpy(p + 8, m.names, m.names_len)
    p += 8 + m.names_len
    put_le16(p, be16(m.props))
    if m.props_len == 3:
        p[2] = m.props[2]
    elif m.props_len > 3:
        memcpy(p + 2, m.props + 2, m.props_len - 2)
        if m.headers_at:
            put_le32(p + m.headers_at, m.headers_len)
        if m.stamp_at:
            put_le64(p + m.stamp_at, be64(m.props + m.stamp_at))
    put_le64(p + m.props_len, m.body_len)


cdef inline void props_to_wire(u8* p, const rec_t* r) noexcept nogil:
    """Write r's properties at p in wire order."""
    put_be16(p, le16(r.props))
    if r.props_len == 3:
        p[2] = r.props[2]
    elif r.props_len > 3:
        memcpy(p + 2, r.props + 2, r.props_len - 2)
        if r.headers_at:
            put_be32(p + r.headers_at, r.headers_len)
        if r.stamp_at:
            put_be64(p + r.stamp_at, le64(r.props + r.stamp_at))

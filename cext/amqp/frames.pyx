# Frames: their layout, and stored records as content frames.
#
# Source: AMQP 0-9-1 specification, section 4.2.

cdef enum frame_type:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 0xCE
    FRAME_OVERHEAD = 8
    # Frames of a delivery, besides what varies: head, method and name of the tag are 12 bytes.
    DELIVERY_BYTES = 12 + 10 + 12 + 2 * FRAME_OVERHEAD

cdef enum hot_method:           # class << 16 | method
    BASIC_PUBLISH = 0x3C0028
    BASIC_RETURN = 0x3C0032
    BASIC_DELIVER = 0x3C003C
    BASIC_GET_OK = 0x3C0047
    BASIC_ACK = 0x3C0050
    BASIC_REJECT = 0x3C005A
    BASIC_NACK = 0x3C0078
    BASIC_CLASS = 60


# ---- frames --------------------------------------------------------------------------------------

# hot
cdef inline u8* frame_head(u8* p, u8 frame_type, u16 channel, u32 size) noexcept nogil:
    p[0] = frame_type
    put_be16(p + 1, channel)
    put_be32(p + 3, size)
    return p + 7


# hot
cdef inline u8* content_write(u8* p, u16 channel, const rec_t* r, u32 chunk) noexcept nogil:
    """Header frame and body frames of a stored record at p; returns the end. A far body is left
    to a rest."""
    cdef u64 left = r.body_len if r.body != NULL else 0
    cdef const u8* body = r.body
    cdef u32 n = r.props_len
    props_to_wire(p + 19, r)
    if r.bcc_len:
        n = props_cut(p + 19, n, r.headers_at, r.bcc_at, r.bcc_len)
    if r.extra != NULL:
        n = props_add_header(p + 19, n, r.extra, r.extra_len)
    p = frame_head(p, FRAME_HEADER, channel, 12 + n)
    put_be32(p, BASIC_CLASS << 16)
    put_be64(p + 4, r.body_len)
    p += 12 + n
    p[0] = FRAME_END
    p += 1
    while left:
        n = chunk if left > chunk else <u32>left
        p = frame_head(p, FRAME_BODY, channel, n)
        memcpy(p, body, n)
        p[n] = FRAME_END
        p += n + 1
        body += n
        left -= n
    return p


# hot
cdef inline u64 content_size(const rec_t* r, u32 chunk) noexcept nogil:
    """Bytes that content_write will write, or a few more."""
    cdef u64 body_len = r.body_len if r.body != NULL else 0
    cdef u64 frames = 1 if body_len <= chunk else (body_len + chunk - 1) / chunk
    cdef u64 extra = 4 + r.extra_len if r.extra != NULL else 0
    return FRAME_OVERHEAD + 12 + r.props_len + extra + frames * FRAME_OVERHEAD + body_len


# hot
cdef inline bint header_fits(const rec_t* r, u32 chunk) noexcept nogil:
    """Whether the header frame of a record is not larger than the client takes."""
    return 12 + r.props_len - r.bcc_len + (4 + r.extra_len if r.extra != NULL else 0) <= chunk

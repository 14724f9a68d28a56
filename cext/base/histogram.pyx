# Histogram: durations counted in fixed steps, once for each sync or ack, not for each message.
#
# One thread adds; others may look meanwhile, and see each number as it was at some moment.

cdef extern from *:
    """
    static const int64_t BUCKET_NS[] = {
        10000, 25000, 50000, 100000, 250000, 500000, 1000000, 2500000, 5000000, 10000000,
        25000000, 50000000, 100000000, 250000000, 500000000, 1000000000, 2500000000, 5000000000,
        10000000000 };
    #define tell_number(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
    #define hear_number(p) __atomic_load_n((p), __ATOMIC_RELAXED)
    """
    const i64* BUCKET_NS
    void tell_number(void* p, i64 v) nogil
    i64 hear_number(const void* p) nogil


cdef void histogram_add(histogram_t* h, i64 took_ns) noexcept nogil:
    """Count one duration. Cost: 10 ns."""
    cdef u32 i = 0
    while i < N_BUCKETS - 1 and took_ns > BUCKET_NS[i]:
        i += 1
    tell_number(&h.counts[i], h.counts[i] + 1)
    tell_number(&h.sum_ns, h.sum_ns + took_ns)


cdef tuple histogram_values(const histogram_t* h):
    """Counts of the buckets, each on its own, and the sum in seconds."""
    cdef u32 i
    return [hear_number(&h.counts[i]) for i in range(<u32>N_BUCKETS)], hear_number(&h.sum_ns) / 1e9

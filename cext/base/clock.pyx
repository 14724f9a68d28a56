# Clock: the time that only goes forward.
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec


cdef i64 clock_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <i64>t.tv_sec * 1000000000 + t.tv_nsec

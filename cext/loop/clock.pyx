# Clock of a loop: the one that it goes by between two reads of a socket.
from posix.time cimport CLOCK_REALTIME


cdef i64 clock_unix_ms() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_REALTIME, &t)
    return <i64>t.tv_sec * 1000 + t.tv_nsec // 1000000


cdef void loop_clock(loop_t* loop) noexcept nogil:
    """Read the clocks, once per read of a socket."""
    loop.now_ms = clock_unix_ms() + loop.clock_offset_ms
    loop.now_ns = clock_ns()
    loop.now_ds = <u32>((loop.now_ns - loop.began_ns) // 100000000)

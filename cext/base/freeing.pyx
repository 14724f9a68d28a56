# Freeing: large blocks of memory go back to the kernel in portions.
#
# A message of 128 MiB is 32 768 pages, and the kernel takes 0.1 ms for those of each MiB: in one go
# that would hold up everybody. So the pages go first, some in each turn, and then the block, which
# costs nothing any more. Called by who lets go of them.

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void* p, size_t n, int advice)
    enum:
        MADV_DONTNEED

cdef enum:
    PAGE_BYTES = 4096
    FREE_PIECE = 1048576        # bytes that the kernel takes back at once
    FREE_AT_ONCE = 4194304      # up to which nobody notices

cdef struct freeing_t:          # a block on its way
    job_t job                   # must stay first
    u8* p
    u64 size
    u64 at                      # all before has gone
    u64 counted                 # of the loop's `large_bytes`


cdef bint freeing_step(loop_t* loop, job_t* job) noexcept nogil:
    """Give back some. False when that was all."""
    cdef freeing_t* f = <freeing_t*>job
    cdef u64 page
    while f.at + FREE_PIECE < f.size:
        page = (<u64>f.p + f.at + PAGE_BYTES - 1) & ~<u64>(PAGE_BYTES - 1)
        madvise(<void*>page, FREE_PIECE - PAGE_BYTES, MADV_DONTNEED)
        f.at += FREE_PIECE
        if loop_look(loop):
            return True
    loop.large_bytes -= f.counted
    free(f.p)
    free(f)
    return False


cdef void loop_free(loop_t* loop, u8* p, u64 size, u64 counted) noexcept nogil:
    """Free a block; `counted` bytes of it are part of the loop's `large_bytes` until that is
    done."""
    cdef freeing_t* f = NULL
    if size > FREE_AT_ONCE:
        f = <freeing_t*>calloc(1, sizeof(freeing_t))
    if f == NULL:
        loop.large_bytes -= counted
        free(p)
        return
    f.job.step = freeing_step
    f.p = p
    f.size = size
    f.counted = counted
    loop_add_job(loop, &f.job)

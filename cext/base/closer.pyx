# Closer: closes files whose blocks the kernel takes long to give back; a thread waits for it.
#
# The name of such a file goes at once. What it holds, on the disk and in memory, goes when its last
# descriptor is closed: half a millisecond for 8 MiB, and many times that while the file system is
# busy. One thread of the process does that for each module that includes this; it is there from the
# first file on. Whatever is missing for it (a thread, a descriptor), the caller waits itself.
# Called by files.pyx and ahead.pyx, and by kept.pyx of the module of clusters.

cdef extern from "<fcntl.h>" nogil:
    int O_NOFOLLOW

cdef extern from "<unistd.h>" nogil:
    int getpid()
    int pipe2(int* fds, int flags)
    ssize_t closer_read "read"(int fd, void* buf, size_t n)
    ssize_t closer_write "write"(int fd, const void* buf, size_t n)

cdef extern from "pythread.h" nogil:
    unsigned long PyThread_start_new_thread(void (*f)(void*) noexcept nogil, void* arg)

cdef extern from *:
    """
    #define closer_load(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
    #define closer_store(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
    #define closer_add(p, v) __atomic_add_fetch((p), (v), __ATOMIC_SEQ_CST)
    #define closer_swap(p, old, v) \\
        __atomic_compare_exchange_n((p), (old), (v), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
    """
    int closer_load(int* p) nogil
    void closer_store(int* p, int v) nogil
    int closer_add(int* p, int v) nogil
    bint closer_swap(int* p, int* old, int v) nogil

cdef enum:
    CLOSER_STARTS = -1
    CLOSER_FILES = 64           # that wait for the thread; the pipe has room for them

cdef int closer_pid = 0         # the process that has the thread: a fork of it has none
cdef int closer_pipe[2]         # of descriptors
cdef int closer_waiting = 0


cdef void closer_work(void* unused) noexcept nogil:
    """The thread: close what comes."""
    cdef int fd, from_fd = closer_pipe[0]
    cdef ssize_t got
    while True:
        got = closer_read(from_fd, &fd, sizeof(int))
        if got == sizeof(int):
            c_close(fd)
            closer_add(&closer_waiting, -1)
        elif got == 0 or errno != EINTR:
            return


cdef bint closer_begin() noexcept nogil:
    """Have the thread. False when there is none now."""
    cdef int pid = getpid(), had = closer_load(&closer_pid)
    if had == pid:
        return True
    if had == CLOSER_STARTS or not closer_swap(&closer_pid, &had, CLOSER_STARTS):
        return False
    closer_store(&closer_waiting, 0)
    if pipe2(closer_pipe, O_CLOEXEC):
        closer_store(&closer_pid, 0)
        return False
    if PyThread_start_new_thread(closer_work, NULL) == <unsigned long>-1:
        c_close(closer_pipe[0])
        c_close(closer_pipe[1])
        closer_store(&closer_pid, 0)
        return False
    closer_store(&closer_pid, pid)
    return True


cdef void close_behind(int fd) noexcept nogil:
    """Close a descriptor in the thread, or here if that cannot be."""
    if not closer_begin():
        c_close(fd)
        return
    if (closer_add(&closer_waiting, 1) > CLOSER_FILES
            or closer_write(closer_pipe[1], &fd, sizeof(int)) != sizeof(int)):
        closer_add(&closer_waiting, -1)
        c_close(fd)

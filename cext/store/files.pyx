# Files: every change of a file in the data directory, and one note of each to who observes them.
#
# Nothing else in cext/ writes, cuts, makes, renames or removes a file (tests/unit/test_files.py
# looks). A change is noted once it has been made, also one that failed half-way; so notes of one
# file, and of names that depend on each other, come in the order in which they may be made again
# elsewhere (decision 0066). While nobody observes, a note is a test of one pointer. Python's files
# (lavinmq/files/changes.py) end in the same notes. Who keeps sums of files hears of those that take
# something back (base/touches.pyx): what is appended, or written over filling, leaves sums right.
# Called by all that keep something in files. Source: docs/formats.md.
from libc.stdio cimport rename as c_rename
from posix.stat cimport fstat, mkdir as c_mkdir, struct_stat as stat_t
from posix.unistd cimport F_OK, access, ftruncate as c_ftruncate, pwrite, unlink as c_unlink

cdef extern from "<fcntl.h>" nogil:
    int c_fallocate "fallocate"(int fd, int mode, long offset, long len)
    enum:
        FALLOC_FL_KEEP_SIZE
        FALLOC_FL_PUNCH_HOLE

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    ssize_t pwritev(int fd, const iovec* parts, int n, i64 at)

cdef extern from *:
    """
    #define next_position(p) __atomic_add_fetch((p), 1, __ATOMIC_SEQ_CST)
    #define observer_link(p, o) __atomic_store_n((p), (o), __ATOMIC_RELEASE)
    #define observer_linked(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    """
    u64 next_position(u64* p) nogil
    # Who finds an observer in another thread finds in it what it was given before.
    void observer_link(observer_t** p, observer_t* o) nogil
    observer_t* observer_linked(observer_t** p) nogil

cdef enum:
    PATH_MAX_BYTES = 4096
    TOUCH_SEED = 0x5ca1ab1e


# ---- notes ---------------------------------------------------------------------------------------

cdef void change_note(loop_t* loop, u8 kind, const char* path, const char* target, int fd,
                      const u8* data, i64 start, i64 end) noexcept nogil:
    """Tell who observes of a change that has been made; errno stays. From any thread.

    `data`: what the file holds from start to end; NULL: whoever wants it reads it."""
    cdef observer_t* o = observer_linked(&loop.observer)
    cdef const char* to = NULL
    cdef int error = errno
    if o == NULL or strncmp(path, o.root, o.root_len) or path[o.root_len] != c"/":
        return
    if target != NULL:
        to = target + o.root_len + 1
    while o != NULL:                    # they all observe the same directory
        o.note(o.owner, next_position(&o.position), kind, path + o.root_len + 1, to, fd, data,
               start, end)
        o = observer_linked(&o.next)
    set_errno(error)


cdef void segment_note(const store_t* st, const char* name, u32 id, u8 kind, int fd,
                       const u8* data, i64 start, i64 end) noexcept nogil:
    """The same of a file of a segment, whose path nobody has put together."""
    cdef char path[PATH_MAX_BYTES]
    cdef int error = errno
    segment_path(st, name, id, path)
    set_errno(error)
    change_note(st.loop, kind, path, NULL, fd, data, start, end)


cdef void touch_often(touches_t* t, const char* path) noexcept nogil:
    """Note a change of a file that may be written over anywhere, and often: it is noted once until
    somebody looks. Who looks forgets first and reads then, so nothing is missed."""
    cdef size_t n
    cdef u64 hash
    if t.fd < 0:
        return
    n = strlen(path)
    hash = hash_bytes(<const u8*>path, n, TOUCH_SEED)
    if t.seen[hash % TOUCH_SLOTS] == hash:
        return
    touch(t, CHANGE_PATCH, path, NULL, 0, TOUCH_ALL)
    t.seen[hash % TOUCH_SLOTS] = hash


cdef void touches_forget(touches_t* t) noexcept nogil:
    """Somebody is about to look."""
    memset(t.seen, 0, sizeof(t.seen))


cdef void file_touched(loop_t* loop, u8 kind, const char* path, const char* target, i64 start,
                       i64 end) noexcept nogil:
    """Note for who keeps sums of files that a change takes something back. From any thread."""
    cdef const char* to = NULL
    cdef int error = errno
    if loop == NULL or loop.touches.fd < 0 or strlen(path) <= loop.touched_root_len:
        return
    if target != NULL:
        to = target + loop.touched_root_len + 1
    touch(&loop.touches, kind, path + loop.touched_root_len + 1, to, start, end)
    sums_touched(loop.sums, kind, path + loop.touched_root_len + 1, to, start, end)
    set_errno(error)


cdef void file_touched_often(loop_t* loop, const char* path) noexcept nogil:
    """The same of a file that may be written over at each turn of the loop."""
    if loop.touches.fd >= 0 and strlen(path) > loop.touched_root_len:
        touch_often(&loop.touches, path + loop.touched_root_len + 1)


cdef void segment_touched(const store_t* st, const char* name, u32 id, u8 kind, i64 start,
                          i64 end) noexcept nogil:
    """The same of a file of a segment, whose path nobody has put together."""
    cdef char path[PATH_MAX_BYTES]
    cdef int error = errno
    if st.loop.touches.fd < 0:
        return
    segment_path(st, name, id, path)
    set_errno(error)
    file_touched(st.loop, kind, path, NULL, start, end)


cdef i64 cut_from(const loop_t* loop, int fd, i64 size) noexcept nogil:
    """The size of a file that is longer than it is about to be, if somebody wants to know; or 0."""
    cdef stat_t found
    if loop == NULL or loop.touches.fd < 0:
        return 0
    if fstat(fd, &found):
        return TOUCH_ALL
    return found.st_size if found.st_size > size else 0


cdef inline bint is_observed(const loop_t* loop) noexcept nogil:
    return loop != NULL and loop.observer != NULL


# ---- names ---------------------------------------------------------------------------------------

cdef bint is_kept_out(loop_t* loop) noexcept nogil:
    """Whether the files are another's to change; errno says so then."""
    if loop == NULL or not loop.is_reading:
        return False
    loop.n_kept_out += 1
    set_errno(EROFS)
    return True


cdef void segment_path(const store_t* st, const char* name, u32 id, char* path) noexcept nogil:
    snprintf(path, PATH_MAX_BYTES, b"%s/%s/%s.%010u", st.dirname, st.basename, name, id)


cdef void store_path(const store_t* st, char* path) noexcept nogil:
    """The queue's directory."""
    snprintf(path, PATH_MAX_BYTES, b"%s/%s", st.dirname, st.basename)


cdef int file_open(loop_t* loop, const char* path, int flags) noexcept nogil:
    """Open a file; what is no regular one never blocks. -1 with errno.

    To write it takes O_RDWR: who observes reads what was written by the same descriptor."""
    cdef bint is_new
    cdef int fd
    if flags & (O_RDWR | O_CREAT | O_TRUNC) and is_kept_out(loop):
        return -1
    flags |= O_CLOEXEC | O_NONBLOCK
    if not is_observed(loop):
        fd = c_open(path, flags, 0o640)
        if flags & O_TRUNC:
            file_touched(loop, CHANGE_TRUNCATE, path, NULL, TOUCH_ALL, 0)
        return fd
    is_new = flags & O_CREAT and access(path, F_OK) != 0
    fd = c_open(path, flags, 0o640)
    if flags & O_TRUNC:
        file_touched(loop, CHANGE_TRUNCATE, path, NULL, TOUCH_ALL, 0)
    if fd >= 0 and is_new:
        change_note(loop, CHANGE_MAKE, path, NULL, fd, NULL, 0, 0)
    elif fd >= 0 and flags & O_TRUNC:
        change_note(loop, CHANGE_TRUNCATE, path, NULL, fd, NULL, 0, 0)
    return fd


cdef int file_rename(loop_t* loop, const char* path, const char* to) noexcept nogil:
    """Give a file or directory another name, in the place of a file that has it. 0, or -1."""
    if is_kept_out(loop) or c_rename(path, to):
        return -1
    file_touched(loop, CHANGE_RENAME, path, to, 0, 0)
    if is_observed(loop):
        change_note(loop, CHANGE_RENAME, path, to, -1, NULL, 0, 0)
    return 0


cdef int file_unlink(loop_t* loop, const char* path) noexcept nogil:
    """Remove the name of a file. 0, or -1 with errno."""
    if is_kept_out(loop) or c_unlink(path):
        return -1
    file_touched(loop, CHANGE_REMOVE, path, NULL, 0, 0)
    if is_observed(loop):
        change_note(loop, CHANGE_REMOVE, path, NULL, -1, NULL, 0, 0)
    return 0


cdef int file_remove(loop_t* loop, const char* path) noexcept nogil:
    """Remove a file, which may be large; it does not matter when there is none. 0, or -1: its name
    is still there."""
    cdef int fd = c_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW)
    cdef int rc = -1 if file_unlink(loop, path) and errno != ENOENT else 0
    if fd >= 0:
        close_behind(fd)
    return rc


cdef int directory_make(loop_t* loop, const char* path) noexcept nogil:
    """Make a directory. 0, or -1 with errno."""
    if is_kept_out(loop) or c_mkdir(path, 0o750):
        return -1
    if is_observed(loop):
        change_note(loop, CHANGE_MAKE_DIRECTORY, path, NULL, -1, NULL, 0, 0)
    return 0


# ---- contents ------------------------------------------------------------------------------------

cdef int write_at(int fd, const u8* p, u64 n, i64 at) noexcept nogil:
    """Write n bytes at file offset `at`. Returns 0, or -1 with errno set."""
    cdef ssize_t k
    while n:
        k = pwrite(fd, p, n, at)
        if k <= 0:
            if k == 0:
                set_errno(ENOSPC)
            elif errno == EINTR:
                continue
            return -1
        p += k
        at += k
        n -= <u64>k
    return 0


cdef int file_write(loop_t* loop, const char* path, u8 kind, int fd, const u8* p, u64 n,
                    i64 at) noexcept nogil:
    """Write n bytes at file offset `at`, CHANGE_APPEND behind all that were ever there or
    CHANGE_PATCH. Returns 0, or -1 with errno."""
    cdef int rc = write_at(fd, p, n, at)
    if kind != CHANGE_APPEND and loop != NULL:
        file_touched_often(loop, path)
    if is_observed(loop):
        change_note(loop, kind, path, NULL, fd, p if rc == 0 else NULL, at, at + <i64>n)
    return rc


cdef int file_cut(loop_t* loop, const char* path, int fd, i64 size) noexcept nogil:
    """Have a file end there. 0, or -1 with errno."""
    cdef i64 was = cut_from(loop, fd, size)
    if c_ftruncate(fd, size):
        return -1
    if was:
        file_touched(loop, CHANGE_TRUNCATE, path, NULL, was, size)
    if is_observed(loop):
        change_note(loop, CHANGE_TRUNCATE, path, NULL, fd, NULL, 0, size)
    return 0


# hot
cdef inline int segment_write(store_t* st, const char* name, u32 id, u8 kind, int fd, const u8* p,
                              u64 n, i64 at) noexcept nogil:
    """file_write to a file of segment `id`."""
    cdef int rc = write_at(fd, p, n, at)
    if st.loop.observer != NULL:
        segment_note(st, name, id, kind, fd, p if rc == 0 else NULL, at, at + <i64>n)
    return rc


cdef int segment_write_two(store_t* st, u32 id, int fd, const u8* p, u32 n, const u8* rest,
                           u32 n_rest, i64 at) noexcept nogil:
    """Write n bytes over others in messages of segment `id`, and n_rest behind them, in rising
    order. Returns 0, or -1 with errno."""
    cdef iovec parts[2]
    cdef ssize_t k
    cdef int rc = 0
    parts[0].iov_base = <void*>p
    parts[0].iov_len = n
    parts[1].iov_base = <void*>rest
    parts[1].iov_len = n_rest
    k = pwritev(fd, parts, 2, at)
    if k < 0:
        if errno != EINTR:
            return -1
        k = 0
    if k < <ssize_t>n:
        rc = write_at(fd, p + k, n - <u64>k, at + k)
    if rc == 0 and k != <ssize_t>n + n_rest:
        rc = write_at(fd, rest, n_rest, at + <i64>n)
    if st.loop.observer != NULL:
        segment_note(st, b"msgs", id, CHANGE_PATCH, fd, NULL, at, at + <i64>n + n_rest)
    return rc


cdef int segment_resize(store_t* st, const char* name, u32 id, int fd, i64 size) noexcept nogil:
    """file_cut of a file of segment `id`."""
    cdef i64 was = cut_from(st.loop, fd, size)
    if c_ftruncate(fd, size):
        return -1
    if was:
        segment_touched(st, name, id, CHANGE_TRUNCATE, was, size)
    if st.loop.observer != NULL:
        segment_note(st, name, id, CHANGE_TRUNCATE, fd, NULL, 0, size)
    return 0


cdef int hole_make(int fd, i64 start, i64 end) noexcept nogil:
    """Give bytes of a file back to the disk; its size stays. 0, or -1 with errno."""
    return c_fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, end - start)


cdef int segment_punch(store_t* st, u32 id, int fd, i64 start, i64 end) noexcept nogil:
    """Make a hole in the messages of segment `id`, whose size stays. 0, or -1 with errno."""
    if hole_make(fd, start, end):
        return -1
    segment_touched(st, b"msgs", id, CHANGE_HOLE, start, end)
    if st.loop.observer != NULL:
        segment_note(st, b"msgs", id, CHANGE_HOLE, fd, NULL, start, end)
    return 0


# ---- the same for code that raises OSError -------------------------------------------------------

cdef int checked(int rc, str path) except -1:
    """What a call returned, unless it failed and errno says why."""
    cdef int error = errno
    if rc < 0:
        raise OSError(error, os.strerror(error), path)
    return rc


cdef int open_file(loop_t* loop, str path, int flags) except -1:
    raw = os.fsencode(path)
    return checked(file_open(loop, raw, flags), path)


cdef int write_file(loop_t* loop, str path, u8 kind, int fd, bytes data, i64 at) except -1:
    raw = os.fsencode(path)
    return checked(file_write(loop, raw, kind, fd, <const u8*>PyBytes_AS_STRING(data),
                              <u64>len(data), at), path)


cdef int cut_file(loop_t* loop, str path, int fd, i64 size) except -1:
    raw = os.fsencode(path)
    return checked(file_cut(loop, raw, fd, size), path)


cdef int rename_file(loop_t* loop, str path, str to) except -1:
    raw, raw_to = os.fsencode(path), os.fsencode(to)
    return checked(file_rename(loop, raw, raw_to), path)


cdef int unlink_file(loop_t* loop, str path) except -1:
    raw = os.fsencode(path)
    return checked(file_unlink(loop, raw), path)


cdef int remove_directory(loop_t* loop, str path) except -1:
    """Remove an empty one."""
    raw = os.fsencode(path)
    if is_kept_out(loop):
        checked(-1, path)
    os.rmdir(path)
    if is_observed(loop):
        change_note(loop, CHANGE_REMOVE_DIRECTORY, raw, NULL, -1, NULL, 0, 0)
    return 0


def raise_error(error):
    """What os.walk is to do with a directory that it cannot list: else it passes over it."""
    raise error


def raise_unless_missing(error):
    """The same where one that is missing is no error."""
    if not isinstance(error, FileNotFoundError):
        raise error


cdef int remove_tree(loop_t* loop, str path) except -1:
    """Remove a directory with all that is in it; one that is missing is no error."""
    for directory, directories, files in os.walk(path, topdown=False, onerror=raise_unless_missing):
        for name in files:
            unlink_file(loop, f"{directory}/{name}")
        for name in directories:
            if os.path.islink(f"{directory}/{name}"):
                unlink_file(loop, f"{directory}/{name}")
        remove_directory(loop, directory)
    return 0

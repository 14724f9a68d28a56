# Apply: makes the changes of the leader's files again, below a follower's data directory.
#
# Paths come from another machine: they lead nowhere but below the root, and not to what is the
# node's own. Files stay open while they are written; a sync covers all that was changed since the
# one before. Called by follow.pyx, without the GIL. Source: docs/clustering.md.
from libc.stdio cimport snprintf
from posix.fcntl cimport O_CREAT, O_NONBLOCK, O_RDWR, O_TRUNC

cdef extern from "<fcntl.h>" nogil:
    int c_openat "openat"(int dir_fd, const char* path, int flags, int mode)
    int c_punch "fallocate"(int fd, int mode, i64 offset, i64 n)
    enum:
        AT_REMOVEDIR
        FALLOC_FL_KEEP_SIZE
        FALLOC_FL_PUNCH_HOLE

cdef extern from "<stdio.h>" nogil:
    int c_renameat "renameat"(int from_fd, const char* path, int to_fd, const char* to)

cdef extern from "<sys/stat.h>" nogil:
    int c_mkdirat "mkdirat"(int dir_fd, const char* path, int mode)

cdef extern from "<unistd.h>" nogil:
    int c_unlinkat "unlinkat"(int dir_fd, const char* path, int flags)
    ssize_t c_pwrite "pwrite"(int fd, const void* p, size_t n, i64 at)
    int c_fdatasync "fdatasync"(int fd)
    int c_syncfs "syncfs"(int fd)

cdef enum:
    APPLY_FILES = 128           # that are kept open
    APPLY_WHY = 256
    APPLY_FEW = 16              # files that are synced one by one

cdef struct applied_file_t:
    char path[ENTRY_PATH]
    u64 used                    # when it was written last: a count
    int fd                      # -1: there is none here
    flag_t is_dirty

cdef struct apply_t:
    int root                    # descriptor of the data directory
    u64 n_used
    u64 lenient_until           # position: what was changed before may have been copied already
    applied_file_t* files
    u64 unsynced                # bytes
    flag_t is_whole_dirty       # names were changed, or files that are not open any more
    flag_t has_left_dirty       # the latter
    flag_t is_dirty
    flag_t is_full              # the last change had no room; the files are as before it, or nearly
    touches_t touches           # for who keeps sums of the files
    char why[APPLY_WHY]


cdef bint is_below(const char* path) noexcept nogil:
    """Whether a path leads to somewhere below the directory that it begins in, and not to what is
    of a node alone: names at the top that begin with a dot, and what tells of its last stop."""
    cdef const char* p = path
    cdef size_t n
    if path[0] == 0 or path[0] == c"." or path[0] == c"/":
        return False
    if strcmp(path, b"clean_stop") == 0 or strcmp(path, b"schema_version") == 0:
        return False
    while p[0]:
        n = 0
        while p[n] and p[n] != c"/":
            n += 1
        if n == 0 or (n == 1 and p[0] == c".") or (n == 2 and p[0] == c"." and p[1] == c"."):
            return False
        p += n
        if p[0] == c"/":
            p += 1
            if p[0] == 0:
                return False
    return True


cdef extern from "<string.h>" nogil:
    int strcmp(const char* a, const char* b)


cdef int apply_close(apply_t* a, applied_file_t* file) noexcept nogil:
    """Close a file that is kept open."""
    if file.fd >= 0:
        a.is_whole_dirty |= file.is_dirty
        a.has_left_dirty |= file.is_dirty
        c_close(file.fd)
    file.fd = -1
    file.is_dirty = False
    return 0


cdef void apply_forget(apply_t* a, const char* path) noexcept nogil:
    """Close what has a name that is about to change, be it of a file or of a directory."""
    cdef size_t n = strlen(path)
    cdef int i
    for i in range(APPLY_FILES):
        if a.files[i].fd >= 0 and strncmp(a.files[i].path, path, n) == 0 and (
                a.files[i].path[n] == 0 or a.files[i].path[n] == c"/"):
            apply_close(a, &a.files[i])


cdef applied_file_t* apply_file(apply_t* a, const char* path, int flags) noexcept nogil:
    """The file at a path, open; NULL with errno."""
    cdef applied_file_t* oldest = &a.files[0]
    cdef applied_file_t* file
    cdef int i
    a.n_used += 1
    for i in range(APPLY_FILES):
        file = &a.files[i]
        if file.fd >= 0 and strcmp(file.path, path) == 0 and not flags:
            file.used = a.n_used
            return file
        if file.fd < 0 and oldest.fd >= 0 or (
                (file.fd < 0) == (oldest.fd < 0) and file.used < oldest.used):
            oldest = file
    if flags:
        apply_forget(a, path)
    apply_close(a, oldest)
    oldest.fd = c_openat(a.root, path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | flags, 0o640)
    if oldest.fd < 0:
        return NULL
    memcpy(oldest.path, path, strlen(path) + 1)
    oldest.used = a.n_used
    return oldest


cdef int apply_write(int fd, const u8* p, u64 n, i64 at) noexcept nogil:
    cdef ssize_t k
    while n:
        k = c_pwrite(fd, p, n, at)
        if k < 0 and errno == EINTR:
            continue
        if k <= 0:
            return -1
        p += k
        at += k
        n -= <u64>k
    return 0


cdef int apply_take_back(int fd, i64 start) noexcept nogil:
    """Have a file end where an append began that has failed: another leader may append something
    else there, or nothing. 0, or -1; errno stays in any case."""
    cdef int error = errno
    cdef int rc = c_resize(fd, start)
    set_errno(error)
    return rc


cdef int apply_content(apply_t* a, u8 kind, const char* path, i64 start, i64 end, const u8* data,
                       u64 n) noexcept nogil:
    """Change what is in a file. 0, or -1 with errno."""
    cdef applied_file_t* file = apply_file(
        a, path, O_CREAT | O_TRUNC if kind == CHANGE_MAKE else 0)
    cdef int rc = 0
    if file == NULL:
        return -1
    if kind == CHANGE_MAKE:
        a.is_whole_dirty = True
    elif kind == CHANGE_TRUNCATE:
        rc = c_resize(file.fd, end)
    elif kind == CHANGE_HOLE:
        rc = c_punch(file.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, end - start)
    else:
        rc = apply_write(file.fd, data, n, start)
        if rc and kind == CHANGE_APPEND:
            apply_take_back(file.fd, start)
    file.is_dirty = True
    a.unsynced += n
    return rc


cdef int apply_sync_file(int fd) noexcept nogil:
    """fdatasync, again when a signal has cut it short: some file systems let one. 0, or -1."""
    cdef int rc = c_fdatasync(fd)
    while rc and errno == EINTR:
        rc = c_fdatasync(fd)
    return rc


cdef int apply_secure(apply_t* a, const char* path) noexcept nogil:
    """Have what a file holds on disk before it takes another one's name, as the leader had: else a
    loss of power could leave neither. 0, or -1 with errno."""
    cdef int i
    for i in range(APPLY_FILES):
        if a.files[i].fd >= 0 and a.files[i].is_dirty and strcmp(a.files[i].path, path) == 0:
            return apply_sync_file(a.files[i].fd)
    return apply_sync(a) if a.has_left_dirty else 0


cdef int apply_name(apply_t* a, u8 kind, const char* path, const char* target) noexcept nogil:
    """Change a name. 0, or -1 with errno."""
    if kind == CHANGE_RENAME and apply_secure(a, path):
        return -1
    a.is_whole_dirty = True
    if kind == CHANGE_MAKE_DIRECTORY:
        return c_mkdirat(a.root, path, 0o750)
    apply_forget(a, path)
    if kind == CHANGE_REMOVE:
        return c_unlinkat(a.root, path, 0)
    if kind == CHANGE_REMOVE_DIRECTORY:
        return c_unlinkat(a.root, path, AT_REMOVEDIR)
    apply_forget(a, target)
    return c_renameat(a.root, path, a.root, target)


cdef int apply_entry(apply_t* a, const u8* p, u64 position) noexcept nogil:
    """Make one change again. 0, or -1: `why` says what went wrong."""
    cdef char path[ENTRY_PATH]
    cdef char target[ENTRY_PATH]
    cdef u64 size = le32(p), n_path = le16(p + 6), n_target = le16(p + 8)
    cdef u8 kind = p[4]
    cdef i64 start = <i64>le64(p + 16), end = <i64>le64(p + 24)
    cdef u64 n
    cdef int rc
    path[0] = 0
    if n_path >= ENTRY_PATH or n_target >= ENTRY_PATH or size < ENTRY_HEAD + n_path + n_target:
        return apply_nonsense(a, path, position)
    n = size - ENTRY_HEAD - n_path - n_target
    memcpy(path, p + ENTRY_HEAD, n_path)
    memcpy(target, p + ENTRY_HEAD + n_path, n_target)
    path[n_path] = target[n_target] = 0
    if strlen(path) != n_path or not is_below(path) or start < 0 or end < start:
        return apply_nonsense(a, path, position)
    if (kind == CHANGE_APPEND or kind == CHANGE_PATCH) != (n != 0) and end != start:
        return apply_nonsense(a, path, position)
    if n and <u64>(end - start) != n:
        return apply_nonsense(a, path, position)
    a.is_dirty = True
    if kind == CHANGE_RENAME:
        if strlen(target) != n_target or not is_below(target):
            return apply_nonsense(a, target, position)
        rc = apply_name(a, kind, path, target)
    elif kind >= CHANGE_REMOVE and kind <= CHANGE_REMOVE_DIRECTORY:
        rc = apply_name(a, kind, path, NULL)
    elif kind >= CHANGE_MAKE and kind <= CHANGE_HOLE:
        rc = apply_content(a, kind, path, start, end, p + ENTRY_HEAD + n_path + n_target, n)
    else:
        return apply_nonsense(a, path, position)
    if kind >= CHANGE_PATCH and kind <= CHANGE_REMOVE:
        touch(&a.touches, kind, path, target if kind == CHANGE_RENAME else NULL,
              <i64>TOUCH_ALL if kind == CHANGE_TRUNCATE else start, end)
    # What was changed while the files were copied may have been copied with its change.
    if rc and position < a.lenient_until and (
            errno == ENOENT or errno == EEXIST or errno == ENOTEMPTY):
        rc = 0
    if rc:
        a.is_full = errno == ENOSPC or errno == EDQUOT
        snprintf(a.why, APPLY_WHY, b"%.160s: %s", path, strerror(errno))
    return rc


cdef extern from "<errno.h>" nogil:
    enum:
        EEXIST
        ENOTEMPTY

cdef extern from "<string.h>" nogil:
    char* strerror(int error)


cdef int apply_nonsense(apply_t* a, const char* path, u64 position) noexcept nogil:
    snprintf(a.why, APPLY_WHY, b"the change at position %llu makes no sense: %.160s",
             <unsigned long long>position, path)
    return -1


cdef int apply_sync(apply_t* a) noexcept nogil:
    """Have all that was changed on disk. 0, or -1 with errno."""
    cdef int i, n = 0
    cdef int rc = 0
    if not a.is_dirty:
        return 0
    for i in range(APPLY_FILES):
        n += a.files[i].fd >= 0 and a.files[i].is_dirty
    if a.is_whole_dirty or n > APPLY_FEW:
        rc = c_syncfs(a.root)
        while rc and errno == EINTR:
            rc = c_syncfs(a.root)
    for i in range(APPLY_FILES):
        if a.files[i].fd >= 0 and a.files[i].is_dirty:
            if rc == 0 and not (a.is_whole_dirty or n > APPLY_FEW):
                rc = apply_sync_file(a.files[i].fd)
            a.files[i].is_dirty = False
    if rc == 0:
        a.is_dirty = a.is_whole_dirty = a.has_left_dirty = False
        a.unsynced = 0
    return rc

# Touches: notes of the changes that take something back, one behind the other in a file.
#
# Checksums of a file's beginning stay right when it grows. So whoever keeps them has to hear of
# what is cut, made a hole, written over, renamed or removed, and of nothing else: that is rare. A
# note is one write behind the others, so it is there after a kill of the process, which no memory
# is. While nobody wants them a touch is a test of one descriptor.
# Called by who changes files; read by lavinmq/integrity. Source: docs/integrity.md.
from posix.unistd cimport write as c_write

cdef enum:
    # As in a journal: kind:u8 n:u16 n_target:u16 start:i64 end:i64. Of a cut, start says how long
    # the file was; TOUCH_ALL: nobody knows.
    TOUCH_HEAD = 21
    TOUCH_PATH = 4096


cdef u64 note_put(u8* p, u8 kind, const char* path, size_t n, const char* target, size_t n_target,
                  i64 start, i64 end) noexcept nogil:
    """Write a note, which has room; the number of its bytes. Journals have the same."""
    p[0] = kind
    put_le16(p + 1, <u16>n)
    put_le16(p + 3, <u16>n_target)
    put_le64(p + 5, <u64>start)
    put_le64(p + 13, <u64>end)
    memcpy(p + TOUCH_HEAD, path, n)
    if n_target:
        memcpy(p + TOUCH_HEAD + n, target, n_target)
    return TOUCH_HEAD + n + n_target


cdef void touch(touches_t* t, u8 kind, const char* path, const char* target, i64 start,
                i64 end) noexcept nogil:
    """Note a change that has been made; errno stays. Paths are below the data directory; target may
    be NULL. From any thread."""
    cdef u8 note[TOUCH_HEAD + 2 * TOUCH_PATH]
    cdef size_t n, n_target
    cdef int error = errno
    if t.fd < 0:
        return
    n = strlen(path)
    n_target = strlen(target) if target != NULL else 0
    if n >= TOUCH_PATH or n_target >= TOUCH_PATH:
        t.is_incomplete = True
        return
    n = note_put(note, kind, path, n, target, n_target, start, end)
    if c_write(t.fd, note, n) != <ssize_t>n:
        t.is_incomplete = True
    set_errno(error)

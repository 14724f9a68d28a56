# Listing: the names in a directory, each with its kind, by as few calls of the kernel as can be.
#
# A start looks at very many directories of queues, most of which hold nothing but a file with the
# queue's name: of that one the size is asked for with the same look, and no other. Nothing here
# needs the interpreter, so threads can look ahead of who loads the queues.
# Called by found.pyx and the door.
import stat as stat_

cdef extern from *:
    """
    #include <fcntl.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    #define list_entries(fd, p, n) syscall(SYS_getdents64, (fd), (p), (n))
    """
    long list_entries(int fd, void* p, size_t n) nogil
    int c_openat "openat"(int dir_fd, const char* path, int flags, ...) nogil
    int c_fstatat "fstatat"(int dir_fd, const char* path, stat_t* found, int flags) nogil
    enum:
        AT_FDCWD

cdef extern from "<dirent.h>" nogil:
    enum:
        DT_UNKNOWN
        DT_DIR
        DT_REG
        DT_LNK

cdef enum:
    LIST_BYTES = 32768          # of a directory that are asked for at once
    LIST_HEAD = 19              # of what the kernel tells of an entry; its name follows
    LIST_SIZE_AT = 16
    LIST_KIND_AT = 18

cdef struct listed_t:           # a directory
    u8* others                  # { kind:u8 name 0 } of all entries but the file with the name
    u64 n, room                 # bytes of them
    i64 name_size               # of the file with the queue's name, or minus errno
    u8 name_kind
    flag_t has_name
    int error                   # it could not be listed


cdef bint listed_take(listed_t* to, const u8* found, i64 n) noexcept nogil:
    """Keep what the kernel has told of some entries; False out of memory."""
    cdef u8* grown
    cdef const char* name
    cdef i64 at = 0
    cdef u64 size
    while at < n:
        name = <const char*>found + at + LIST_HEAD
        size = strlen(name)
        if same_name(name, b".queue"):
            to.has_name = True
            to.name_kind = found[at + LIST_KIND_AT]
        elif not same_name(name, b".") and not same_name(name, b".."):
            if to.n + size + 2 > to.room:
                to.room = to.n + <u64>(n - at)      # all that follows takes more there
                grown = <u8*>realloc(to.others, to.room)
                if grown == NULL:
                    return False
                to.others = grown
            to.others[to.n] = found[at + LIST_KIND_AT]
            memcpy(to.others + to.n + 1, name, size + 1)
            to.n += size + 2
        at += le16(found + at + LIST_SIZE_AT)
    return True


cdef inline bint same_name(const char* a, const char* b) noexcept nogil:
    return strlen(a) == strlen(b) and memcmp(a, b, strlen(b)) == 0


cdef void list_directory(int root, const char* path, listed_t* to) noexcept nogil:
    """List the directory at a path below another one."""
    cdef u8 found[LIST_BYTES]
    cdef stat_t name
    cdef i64 got = 0
    cdef int fd = c_openat(root, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK)
    memset(to, 0, sizeof(listed_t))
    if fd < 0:
        to.error = errno
        return
    while True:
        got = list_entries(fd, found, LIST_BYTES)
        if got <= 0:
            break
        if not listed_take(to, found, got):
            set_errno(ENOMEM)
            got = -1
            break
    if got < 0:
        to.error = errno
    elif to.has_name:
        to.name_size = name.st_size if c_fstatat(fd, b".queue", &name, 0) == 0 else -errno
    c_close(fd)


cdef void listed_free(listed_t* listed) noexcept nogil:
    free(listed.others)
    listed.others = NULL


cdef class Entry:
    """A name in a directory, as `os.DirEntry` as far as a queue needs it."""
    cdef readonly str name
    cdef str directory
    cdef u8 kind
    cdef i64 n

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.name}"

    def is_file(self) -> bool:
        """Whether it leads to a regular file. Raises OSError."""
        if self.kind != DT_UNKNOWN and self.kind != DT_LNK:
            return self.kind == DT_REG
        try:
            return stat_.S_ISREG(os.stat(self.path).st_mode)
        except FileNotFoundError:
            return False

    def is_dir(self) -> bool:
        """Whether it leads to a directory. Raises OSError."""
        if self.kind != DT_UNKNOWN and self.kind != DT_LNK:
            return self.kind == DT_DIR
        try:
            return stat_.S_ISDIR(os.stat(self.path).st_mode)
        except FileNotFoundError:
            return False

    @property
    def size(self) -> int:
        """Bytes of what it leads to. Raises OSError."""
        if self.n == -1:
            return os.stat(self.path).st_size
        if self.n < 0:
            raise OSError(<int>-self.n, os.strerror(<int>-self.n), self.path)
        return self.n


cdef Entry entry_of(str directory, str name, u8 kind):
    cdef Entry entry = Entry.__new__(Entry)
    entry.directory, entry.name, entry.kind = directory, name, kind
    entry.n = -1
    return entry


cdef dict entries_listed(const listed_t* listed, str directory):
    """The entries by name, None when there is no such directory. Raises OSError."""
    cdef dict entries = {}
    cdef const char* name
    cdef Entry entry
    cdef u64 at = 0
    if listed.error == ENOENT:
        return None
    if listed.error:
        raise OSError(listed.error, os.strerror(listed.error), directory)
    if listed.has_name:
        entry = entries[".queue"] = entry_of(directory, ".queue", listed.name_kind)
        # What has gone between two looks is asked for by who wants to know.
        entry.n = listed.name_size if listed.name_size != -ENOENT else -1
    while at < listed.n:
        name = <const char*>listed.others + at + 1
        text = PyUnicode_DecodeFSDefault(name)
        entries[text] = entry_of(directory, text, listed.others[at])
        at += strlen(name) + 2
    return entries


cdef extern from "Python.h":
    str PyUnicode_DecodeFSDefault(const char* text)
    bytes PyUnicode_EncodeFSDefault(str text)

# Found: what files a queue has in its directory, as one look tells, and which belong to nothing.
#
# A start looks at very many directories, most of them with next to nothing in them: each is listed
# once, and nobody asks for a file that is not in the list. Called by load.pyx, stream_load.pyx and
# the door. Source: docs/formats.md.
cdef enum:
    READ_BYTES = 1 << 20


def entries_in(str path not None) -> object:
    """The entries of a directory by name, None when there is no such directory. Raises OSError."""
    cdef bytes raw = PyUnicode_EncodeFSDefault(path)
    cdef const char* place = PyBytes_AS_STRING(raw)
    cdef listed_t listed
    with nogil:
        list_directory(AT_FDCWD, place, &listed)
    try:
        return entries_listed(&listed, path)
    finally:
        listed_free(&listed)


cdef dict entries_of(const store_t* st):
    """Those of the directory of a store, which may be missing."""
    return entries_in(store_directory(st)) or {}


cdef list find_segments(store_t* st, dict entries, list notes):
    """(id, size) of the segments among the entries of a directory, by rising id. The window has the
    descriptor of the last one then.

    Removes what holds nothing: segments of zeros or without a header, and, once it is on disk that
    they have none, acks and metas without a segment. Raises ValueError for what cannot be read as a
    segment; nothing is removed then."""
    cdef u32 size
    if len(entries) == 1 and ".queue" in entries:
        return []
    ids = {"msgs": [], "acks": [], "meta": []}
    leftovers = []
    for name, entry in entries.items():
        kind, _, number = name.partition(".")
        if name.startswith(("tmp.acks.", "tmp.msgs.")):
            leftovers.append(name)
        elif kind in ids and len(number) == 10 and number.isascii() and number.isdigit():
            ids[kind].append(int(number))
            if not entry.is_file():
                raise ValueError(f"{entry.path} is not a regular file")
    found, empty = [], []
    for id in sorted(ids["msgs"]):
        if id >= 0xFFFFFFFF:
            raise ValueError(f"{store_directory(st)}/msgs.{id:010d} has an impossible number")
        size = segment_size_of(st, id)
        if size:
            found.append((id, size))
        else:
            empty.append(f"msgs.{id:010d}")
    known = {id for id, _ in found}
    stray = [f"{kind}.{id:010d}" for kind in ("acks", "meta") for id in ids[kind]
             if id not in known]
    if stray:
        sync_directory(store_directory(st))
    for name in leftovers + stray:
        if remove_file(st.loop, f"{store_directory(st)}/{name}"):
            notes.append(f"{store_directory(st)}/{name} belongs to no segment and was removed")
        del entries[name]
    if empty:
        store_drop_window(st, &st.loop.pool)
    for name in empty:
        unlink_file(st.loop, f"{store_directory(st)}/{name}")
        notes.append(f"{store_directory(st)}/{name} held nothing and was removed")
        del entries[name]
    return found


cdef u32 segment_size_of(store_t* st, u32 id) except? 0:
    """Bytes of a segment file; 0 when it holds nothing. Raises ValueError when it is not one."""
    cdef window_t* w = store_window(st)
    cdef stat_t found
    cdef u8 head[SEGMENT_HEADER + 8]
    cdef i64 got
    if w == NULL:
        raise MemoryError()
    if window_file(w, st, id) < 0 or fstat(w.fd, &found):
        raise os_error(st, "msgs", id)
    if found.st_size > 0xFFFFFFFF:
        raise ValueError(f"{store_directory(st)}/msgs.{id:010d} is larger than 4 GiB")
    got = read_at(w.fd, head, sizeof(head), 0)
    if got < 0:
        raise os_error(st, "msgs", id)
    if got < SEGMENT_HEADER:
        return 0
    if le32(head) == SCHEMA_VERSION:
        return <u32>found.st_size
    if not is_zero(head, got):
        raise ValueError(f"{store_directory(st)}/msgs.{id:010d} has schema version {le32(head)}, "
                         f"expected {SCHEMA_VERSION}")
    return <u32>found.st_size if has_data(w.fd) else 0


cdef inline bint is_zero(const u8* p, i64 n) noexcept nogil:
    cdef i64 i
    for i in range(n):
        if p[i]:
            return False
    return True


cdef bint has_data(int fd) except -1:
    """Whether there is anything but zeros in a file: then its beginning was lost, not all of it."""
    at = 0
    while block := os.pread(fd, READ_BYTES, at):
        if block.count(0) != len(block):
            return True
        at += len(block)
    return False


cdef i64 read_meta(store_t* st, u32 id, u8* facts, u64 n) except -1:
    """Read up to n bytes of meta.N. Returns how many there were, 0 when it is missing."""
    cdef int fd = segment_open(st, b"meta", id, O_RDONLY)
    cdef i64 got
    if fd < 0:
        if errno == ENOENT:
            return 0
        raise os_error(st, "meta", id)
    got = read_at(fd, facts, n, 0)
    close_failed(fd)
    if got < 0:
        raise os_error(st, "meta", id)
    return got


cdef str kept_name(str path):
    """Under which name a damaged file is kept: the first one that is free."""
    kept = f"{path}.damaged"
    for number in range(1, MAX_KEPT):
        if not os.path.lexists(kept):
            break
        kept = f"{path}.damaged.{number}"
    return kept


cdef keep_tail(loop_t* loop, str path, u32 position, u32 size):
    """Move the junk at the end of a segment to `<path>.damaged`, at the same offset: a sparse file,
    so that positions agree. Raises OSError; the segment is then as it was."""
    kept = kept_name(path)
    cdef int to = open_file(loop, kept, O_RDWR | O_CREAT | O_TRUNC)
    cdef int fd = -1
    try:
        fd = open_file(loop, path, O_RDWR)
        for at in range(position, size, READ_BYTES):
            block = os.pread(fd, min(READ_BYTES, size - at), at)
            if block.count(0) != len(block):
                write_file(loop, kept, CHANGE_APPEND, to, block, at)
        os.fsync(to)
        sync_directory(os.path.dirname(path))
        cut_file(loop, path, fd, position)
    finally:
        c_close(to)
        if fd >= 0:
            c_close(fd)


cdef rewrite_acks(loop_t* loop, str path, bytes positions):
    """Replace an ack file, by way of the name the original uses for it. The messages that it does
    not name any more must be on disk, or must be gone for good."""
    directory, _, name = path.rpartition("/")
    temporary = f"{directory}/tmp.{name}"
    cdef int fd = open_file(loop, temporary, O_RDWR | O_CREAT | O_TRUNC)
    try:
        write_file(loop, temporary, CHANGE_APPEND, fd, positions, 0)
        os.fsync(fd)
    finally:
        c_close(fd)
    rename_file(loop, temporary, path)
    sync_directory(directory)


cdef bint is_directory(str path) except -1:
    """Whether there is a directory. Raises OSError when the disk does not say: what is there would
    be written over, if it were taken for missing."""
    try:
        return stat_.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


cdef bint remove_file(loop_t* loop, str path) except -1:
    """Remove what is no directory; whether it was there. Raises OSError."""
    try:
        unlink_file(loop, path)
    except (FileNotFoundError, IsADirectoryError):
        return False
    return True


cdef sync_file(str path):
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())


cdef sync_directory(str path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


cdef bint drop_meta(const store_t* st, u32 id) except -1:
    """The newest segment was finished once, before those behind it were lost: it is written to
    again, and what its meta file says will not be true. Whether there was one."""
    return remove_file(st.loop, f"{store_directory(st)}/meta.{id:010d}")

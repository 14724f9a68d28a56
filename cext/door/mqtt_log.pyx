# MQTT log: what the classes of retained messages and of sessions have in common: opening their
# files at the start. Raises OSError, ValueError, MemoryError.
import stat as stat_kinds

cdef enum:
    MLOG_GAPS = 16              # damages of a file that are told one by one


cdef list mlog_numbers(mlog_t* log):
    """Numbers of the files that are there, rising."""
    directory = os.fsdecode(log.directory)
    prefix = os.fsdecode(log.name) + "."
    numbers = []
    for name in os.listdir(directory):
        digits = name.removeprefix(prefix)
        if name != digits and len(digits) == 10 and digits.isdecimal() and digits.isascii():
            if 0 < int(digits) < 1 << 32:
                numbers.append(int(digits))
    return sorted(numbers)


cdef str mlog_name(mlog_t* log, u32 number):
    cdef char path[PATH_MAX_BYTES]
    mlog_path(log, number, path)
    return os.fsdecode(path)


cdef bytearray mlog_content(str path):
    """All of a file, which must be a regular one of less than 2 GiB."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as file:
        found = os.fstat(fd)
        if not stat_kinds.S_ISREG(found.st_mode) or found.st_size > MLOG_MOST:
            raise ValueError(f"{path} is not a regular file of less than 2 GiB")
        content = bytearray(found.st_size)
        view = memoryview(content)
        at = 0
        while at < len(content):
            n = file.readinto(view[at:])
            if not n:
                break
            at += n
        view.release()
        del content[at:]
    return content


cdef str mlog_set_aside(mlog_t* log, str path):
    """A file whose header is damaged is for humans; what it says is not known."""
    name, n = f"{path}.damaged", 0
    while os.path.lexists(name):
        n += 1
        name = f"{path}.damaged.{n}"
    rename_file(log.loop, path, name)
    return f"{path} has no header: renamed to {name}"


cdef list mlog_load(mlog_t* log, mlog_take_t take):
    """Read all files. Returns lines for the log. A last file that does not end in a whole entry is
    cut behind it."""
    cdef mlog_gap_t gaps[MLOG_GAPS]
    cdef u32 n_gaps = 0, version = 0, i
    cdef bytearray content
    cdef const u8* p
    cdef u64 n
    cdef int fd
    lines = []
    numbers = mlog_numbers(log)
    newest = max(numbers, default=0)
    contents = {}
    # Each file has the salt: one whose header is damaged is read with that of another.
    for number in numbers:
        path = mlog_name(log, number)
        content = mlog_content(path)
        p = <const u8*>content
        if not mlog_read_header(log, p, <u64>len(content), &version):
            version = 0
        elif version != MLOG_VERSION:
            raise ValueError(f"{path} is of version {version}, which this release does not know")
        contents[number] = (path, version != 0, content if len(numbers) == 1 else None)
        log.next_number = number + 1
    known = any(is_whole for _, is_whole, _ in contents.values())
    for number, (path, is_whole, content) in contents.items():
        if content is None:
            content = mlog_content(path)
        p = <const u8*>content
        n = <u64>len(content)
        if n <= MLOG_HEADER or (not is_whole and not known):
            # A kill has left it without entries, or a loss of power without its beginning.
            if any(content) and not is_whole:
                lines.append(mlog_set_aside(log, path))
            else:
                unlink_file(log.loop, path)
            continue
        if not is_whole:
            lines.append(f"{path} has a damaged header: it is read as its neighbours are")
        if mlog_add_file(log, number, <u32>n) or mlog_scan(
                log, number, p, n, take, gaps, &n_gaps, MLOG_GAPS):
            raise MemoryError()
        for i in range(n_gaps):
            is_tail = gaps[i].end == n
            if is_tail and number == newest:
                lines.append(f"{path} is cut at byte {gaps[i].start}: {n - gaps[i].start} bytes "
                             "behind are no whole entry")
                fd = open_file(log.loop, path, O_RDWR)
                try:
                    cut_file(log.loop, path, fd, <i64>gaps[i].start)
                finally:
                    c_close(fd)
                mlog_last(log).size = <u32>gaps[i].start
            else:
                lines.append(f"{path} is damaged: bytes {gaps[i].start} to {gaps[i].end} are no "
                             "entry")
                mlog_last(log).stale += gaps[i].end - gaps[i].start
                mlog_last(log).is_damaged = True
    if log.n_files:
        mlog_last(log).size = (mlog_last(log).size + 7) & ~<u32>7
    else:
        memcpy(&log.salt, PyBytes_AS_STRING(os.urandom(8)), 8)
    return lines


cdef mlog_drop_below(mlog_t* log):
    """Remove the files that do not count any more: what has taken their place is on disk."""
    while log.n_files > 1 and log.files[0].number < log.floor:
        mlog_drop_first(log)


cdef bint mlog_sync(mlog_t* log, Loop loop, callback) except -1:
    """Call back once all that is written is on disk. False when there is no descriptor for that,
    which the log tells: nobody is called."""
    if mlog_hand_over_names(log):
        mlog_tell(log, errno)
        return False
    mlog_want_sync(log)
    if log.fd >= 0:
        loop.sync_file(log.fd, callback)
    else:                               # nothing was written since the start, which has synced all
        loop.after_sync(callback)
    return True


cdef bint mlog_supersede(mlog_t* log, Loop loop, u32 floor, callback) except -1:
    """What counts of the files below a number is on disk elsewhere: say that they do not count, and
    call back once that is on disk, too. False when it cannot be written: they stay."""
    if mlog_append_floor(log, floor) or mlog_flush(log):
        return False
    return mlog_sync(log, loop, callback)

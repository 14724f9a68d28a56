# Changes: the door for who observes the files of a data directory, and for Python's own changes of
# them. What a note is stands in types.pxd; who gives them, in files.pyx.


def observe(Loop loop, str root, size_t note, size_t owner=0) -> None:
    """Have each change of a file below `root` noted. See the stub."""
    loop.observed_root = os.fsencode(root)
    loop.observer.note = <observe_t>note
    loop.observer.owner = <void*>owner
    loop.observer.root = PyBytes_AS_STRING(loop.observed_root)
    loop.observer.root_len = <size_t>PyBytes_GET_SIZE(loop.observed_root)
    loop.t.observer = &loop.observer if note else NULL


def note_change(Loop loop, int kind, str path, str target, int fd, i64 start, i64 end) -> None:
    """Note a change that Python has made. See the stub."""
    cdef const char* to = NULL
    cdef const char* raw
    if loop.t.observer == NULL:
        return
    name = os.fsencode(path)
    raw = name
    if target:
        new = os.fsencode(target)
        to = new
    with nogil:     # another thread may have this one wait, in the middle of a note
        change_note(&loop.t, <u8>kind, raw, to, fd, start, end)


CHANGE_KINDS = {
    "MAKE": CHANGE_MAKE, "APPEND": CHANGE_APPEND, "PATCH": CHANGE_PATCH,
    "TRUNCATE": CHANGE_TRUNCATE, "HOLE": CHANGE_HOLE, "RENAME": CHANGE_RENAME,
    "REMOVE": CHANGE_REMOVE, "MAKE_DIRECTORY": CHANGE_MAKE_DIRECTORY,
    "REMOVE_DIRECTORY": CHANGE_REMOVE_DIRECTORY,
}

# Changes: the door for who observes the files of a data directory, and for Python's own changes of
# them. What a note is stands in types.pxd; who gives them, in files.pyx.


cdef enum:
    OBSERVER_OTHER = JOURNALS   # in Loop.observers, behind those of journals
    OBSERVER_COPIES


cdef void observe_by(Loop loop, int which, root, size_t note, size_t owner):
    """Have somebody told, in the place of who was before; note 0: nobody."""
    cdef observer_t* o = &loop.observers[which]
    if loop.observed_root != root:      # a thread may be in a note for who observed before
        loop.observed_root = root
    if note:                            # else one may still be on its way to who was told
        o.note = <observe_t>note
        o.owner = <void*>owner
    o.root = PyBytes_AS_STRING(loop.observed_root)
    o.root_len = <size_t>PyBytes_GET_SIZE(loop.observed_root)
    loop.is_observed[which] = note != 0
    link_observers(loop)


cdef void link_observers(Loop loop):
    """Have those told that want to be. Other threads may be telling meanwhile: who is with one that
    wants no more goes on from there."""
    cdef observer_t* following = NULL
    cdef int i
    for i in range(OBSERVERS - 1, -1, -1):
        observer_link(&loop.observers[i].next, following)
        if loop.is_observed[i]:
            following = &loop.observers[i]
    observer_link(&loop.t.observer, following)


def observe(Loop loop, str root, size_t note, size_t owner=0) -> None:
    """Have each change of a file below `root` noted. See the stub."""
    observe_by(loop, OBSERVER_OTHER, os.fsencode(root), note, owner)


def observe_copies(Loop loop, str root, size_t note, size_t copies) -> None:
    """The same for copies that acknowledgements wait for. See the stub."""
    observe_by(loop, OBSERVER_COPIES, os.fsencode(root), note, copies)
    loop.t.copies = <copies_t*>copies


def note_change(Loop loop, int kind, str path, str target, int fd, i64 start, i64 end) -> None:
    """Note a change that Python has made. See the stub."""
    cdef const char* to = NULL
    cdef const char* raw
    cdef bint takes = kind not in (CHANGE_MAKE, CHANGE_APPEND, CHANGE_MAKE_DIRECTORY,
                                   CHANGE_REMOVE_DIRECTORY) and loop.t.touches.fd >= 0
    if loop.t.observer == NULL and not takes:
        return
    name = os.fsencode(path)
    raw = name
    if target:
        new = os.fsencode(target)
        to = new
    with nogil:     # another thread may have this one wait, in the middle of a note
        if takes:       # of a file that was cut nobody says how long it was
            file_touched(&loop.t, <u8>kind, raw, to,
                         <i64>TOUCH_ALL if kind == CHANGE_TRUNCATE else start, end)
        change_note(&loop.t, <u8>kind, raw, to, fd, NULL, start, end)


def touch_files(Loop loop, str root, int fd) -> None:
    """Have changes noted that take something back. See the stub."""
    loop.t.touched_root_len = len(os.fsencode(root))
    touches_forget(&loop.t.touches)
    loop.t.touches.is_incomplete = False
    loop.t.touches.fd = fd
    if fd < 0:                  # changes go unnoticed from now on
        sums_clear(loop.t.sums)


def look_at_touches(Loop loop) -> bool:
    """Somebody is about to read what was noted. See the stub."""
    touches_forget(&loop.t.touches)
    return not loop.t.touches.is_incomplete


def watch_sums(Loop loop, str path) -> None:
    """Somebody is about to read a file of messages. See the stub."""
    name = os.fsencode(path)
    cdef const char* raw = name
    with nogil:
        sums_watch(loop.t.sums, raw)


def know_sums(Loop loop, str path, u32 covered, bytes sums, unknown) -> bool:
    """Have what is read of a file of messages compared. See the stub."""
    cdef summed_t* file
    cdef u32 block
    cdef bint is_taken
    name = os.fsencode(path)
    if <u64>len(sums) != (<u64>covered + SUM_BLOCK - 1) // SUM_BLOCK * 4:
        raise ValueError("as many sums as blocks are needed")
    file = summed_new(name, covered, <const u8*>PyBytes_AS_STRING(sums))
    if file == NULL:
        return False
    for number in unknown:
        if 0 <= number < file.n_blocks:
            block = number
            file.states[block] = SUM_UNKNOWN
    with nogil:
        is_taken = sums_know(loop.t.sums, file)
    return is_taken


def forget_sums(Loop loop, str path) -> None:
    """Have a file not compared any more. See the stub."""
    name = os.fsencode(path)
    cdef u64 key = sum_key(name)
    with nogil:
        sums_forget(loop.t.sums, key)


def take_spoiled(Loop loop) -> list:
    """Files of which something else was read than was written. See the stub."""
    cdef char* paths[SUM_SPOILED]
    cdef sums_t* s = loop.t.sums
    cdef u32 i, n
    with nogil:
        pthread_mutex_lock(&s.lock)
        n = s.n_spoiled
        memcpy(paths, s.spoiled, n * sizeof(char*))
        s.n_spoiled = 0
        pthread_mutex_unlock(&s.lock)
    found = []
    for i in range(n):
        found.append(os.fsdecode(<bytes>paths[i]))
        free(paths[i])
    return found


def await_peers(Loop loop, bint has_peers) -> None:
    """Whether other nodes have what is spoiled here. See the stub."""
    loop.t.sums.has_peers = has_peers


def make_hole(int fd, i64 start, i64 end) -> None:
    """Give bytes of a file back to the disk. See the stub."""
    if hole_make(fd, start, end):
        raise OSError(errno, os.strerror(errno))


CHANGE_KINDS = {
    "MAKE": CHANGE_MAKE, "APPEND": CHANGE_APPEND, "PATCH": CHANGE_PATCH,
    "TRUNCATE": CHANGE_TRUNCATE, "HOLE": CHANGE_HOLE, "RENAME": CHANGE_RENAME,
    "REMOVE": CHANGE_REMOVE, "MAKE_DIRECTORY": CHANGE_MAKE_DIRECTORY,
    "REMOVE_DIRECTORY": CHANGE_REMOVE_DIRECTORY,
}


cdef class Journal:
    """Keeps notes of all changes below a root, from now on until it is closed. See the stub."""
    cdef Loop loop
    cdef journal_t* j
    cdef int which

    def __cinit__(self, Loop loop, str root, u64 most):
        cdef int i = 0
        while i < JOURNALS and loop.is_observed[i]:
            i += 1
        if i == JOURNALS:
            raise RuntimeError("the files are being copied too often already")
        if loop.journals[i] == NULL:    # it stays: a thread may be in a note when one is closed
            loop.journals[i] = <journal_t*>calloc(1, sizeof(journal_t))
            if loop.journals[i] == NULL:
                raise MemoryError
            pthread_mutex_init(&loop.journals[i].lock, NULL)
        self.loop, self.j, self.which = loop, loop.journals[i], i
        self.take()
        self.j.most = most
        self.j.is_overrun = False
        observe_by(loop, i, os.fsencode(root), <size_t>&journal_note, <size_t>self.j)

    def take(self) -> bytes:
        """All notes that there are. See the stub."""
        cdef u8* p
        cdef u64 n
        with nogil:     # a thread in a note may have this one wait
            pthread_mutex_lock(&self.j.lock)
            p, n = self.j.p, self.j.n
            self.j.p = NULL
            self.j.n = self.j.cap = self.j.last = 0
            pthread_mutex_unlock(&self.j.lock)
        try:
            return PyBytes_FromStringAndSize(<char*>p, <Py_ssize_t>n) if n else b""
        finally:
            free(p)

    @property
    def is_overrun(self) -> bool:
        """Whether there were more notes than it may hold: some are missing."""
        return self.j.is_overrun

    def close(self) -> None:
        """Note nothing more."""
        if self.loop is not None:
            self.loop.is_observed[self.which] = False
            link_observers(self.loop)
            self.take()
        self.loop = None


def whole_end(int fd, i64 size) -> int:
    """Where a copy of a segment of so many bytes ends. See the stub."""
    cdef i64 end
    with nogil:
        end = whole_end_of(fd, size)
    if end < 0:
        raise OSError(errno, os.strerror(errno))
    return end

# Listing: what is in the directories of many queues, looked up by threads ahead of who loads them.
#
# Directories are taken in the order in which they are wanted, a few at a time, by whoever comes
# next: threads, which need no interpreter for it, and who wants one that nobody has looked at yet.
cdef extern from *:
    """
    #define told_tell(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    #define told_hear(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define next_take(p, n) __atomic_fetch_add((p), (n), __ATOMIC_RELAXED)
    """
    void told_tell(u8* p, u8 v) nogil
    bint told_hear(u8* p) nogil
    u64 next_take(u64* p, u64 n) nogil

cdef extern from "<unistd.h>" nogil:
    int c_usleep "usleep"(unsigned int us)

cdef enum:
    LISTING_STEP = 16           # directories that are taken at once
    LISTING_NAP_US = 20
    LISTING_NAME = 40           # SHA-1, in hex
    LISTING_SEEN = 1
    LISTING_TOLD = 2


cdef class Listing:
    """The entries of directories in another one, which have names as those of queues have.

    Args: `directory` they are in; `names` in the order in which they will be wanted.
    Raises: OSError when it cannot be opened."""
    cdef listed_t* found
    cdef u8* told               # of each directory: LISTING_SEEN, LISTING_TOLD, or neither yet
    cdef u64 n, next
    cdef bytes names
    cdef const char* name       # each of them ends in a zero
    cdef str directory
    cdef int root
    cdef bint is_over

    def __cinit__(self, str directory, list names):
        self.root = -1
        self.n = len(names)
        self.directory = directory
        for name in names:
            if len(name) != LISTING_NAME:
                raise ValueError(f"{name!r} is no name of a queue's directory")
        self.names = b"".join([name.encode("ascii") + b"\0" for name in names])
        self.name = PyBytes_AS_STRING(self.names)
        self.found = <listed_t*>calloc(self.n + 1, sizeof(listed_t))
        self.told = <u8*>calloc(self.n + 1, 1)
        if self.found == NULL or self.told == NULL:
            raise MemoryError()
        self.root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __dealloc__(self):
        cdef u64 i
        if self.found != NULL:          # else it has not come to its directory
            if self.root >= 0:
                c_close(self.root)
            for i in range(self.n):
                listed_free(&self.found[i])
        free(self.found)
        free(self.told)

    def work(self) -> None:
        """Look at what nobody has looked at yet, until all is or `stop` was called. In a thread."""
        with nogil:
            while listing_step(self):
                pass

    def stop(self) -> None:
        """No more is wanted: threads end soon."""
        self.is_over = True
        next_take(&self.next, self.n)

    def entries(self, u64 at) -> object:
        """The entries of a directory by name, which are told once; None when it is not there.
        Raises OSError."""
        cdef u64 i = at * (LISTING_NAME + 1)
        # A list that lacks files would lose messages: what is gone is no empty one.
        if at >= self.n or self.is_over or self.told[at] == LISTING_TOLD:
            raise IndexError("nobody looks at that")
        if not told_hear(&self.told[at]):
            with nogil:
                while not told_hear(&self.told[at]):
                    if not listing_step(self):
                        c_usleep(LISTING_NAP_US)    # another thread is about to
        self.told[at] = LISTING_TOLD
        name = self.names[i:i + LISTING_NAME].decode()
        try:
            return entries_listed(&self.found[at], f"{self.directory}/{name}")
        finally:
            listed_free(&self.found[at])


cdef bint listing_step(Listing listing) noexcept nogil:
    """Look at the next few directories. False when there are none left."""
    cdef u64 i = next_take(&listing.next, LISTING_STEP)
    cdef u64 end = min(i + LISTING_STEP, listing.n)
    if i >= listing.n:
        return False
    while i < end:
        list_directory(listing.root, listing.name + i * (LISTING_NAME + 1), &listing.found[i])
        told_tell(&listing.told[i], LISTING_SEEN)
        i += 1
    return True

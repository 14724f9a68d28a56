# Matcher: the class through which tests and tools bind and route; the broker never makes one.

cdef extern from *:
    """
    #include <time.h>
    static inline uint64_t matcher_cpu_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    """
    u64 matcher_cpu_ns() noexcept nogil

cdef struct matcher_dest_t:
    dest_t dest
    i64 number


cdef bytes properties_of(bytes headers):
    """Properties in wire order with this content of a headers table, or with none."""
    if headers is None:
        return b"\0\0"
    return (<int>FLAG_HEADERS).to_bytes(2, "big") + len(headers).to_bytes(4, "big") + headers


cdef bint match_always(void* pauser, u32 work) noexcept nogil:
    """A turn that is over whenever somebody asks."""
    return True


cdef inline int matcher_route(match_t* m, const u8* key, u32 n, const u8* props, u32 headers_at,
                              targets_t* out) noexcept nogil:
    """match_route, or filters_route."""
    if m.kind == MATCH_FILTERS:
        return filters_route(m, key, n, out)
    return match_route(m, key, n, props, headers_at, out)


cdef class Matcher:
    """A match_t with integers for destinations. For tests and tools; the broker never makes one.

    Args: *kind*, a match_kind; *seed* of the hash tables, and of what is random.
    """
    cdef match_t* match
    cdef targets_t targets
    cdef reached_t reached
    cdef readonly int pauses    # of the last routing
    cdef dict addresses

    def __cinit__(self, int kind, u64 seed):
        if match_kind_name(kind) == NULL:
            raise ValueError(f"unknown kind {kind}")
        self.addresses = {}
        self.match = match_new(kind, seed)
        if self.match == NULL:
            raise MemoryError

    def __dealloc__(self):
        match_free(self.match)
        targets_free(&self.targets)
        reached_free(&self.reached)
        for address in (self.addresses or {}).values():
            free(<void*><size_t>address)

    cdef dest_t* dest(self, i64 number) except NULL:
        cdef matcher_dest_t* dest
        if number not in self.addresses:
            dest = <matcher_dest_t*>calloc(1, sizeof(matcher_dest_t))
            if dest == NULL:
                raise MemoryError
            dest.number = number
            self.addresses[number] = <size_t>dest
        return <dest_t*><size_t>self.addresses[number]

    def __len__(self):
        return self.match.count

    def weight(self):
        """Number of table entries and wildcards at the root: 0 when nothing is left behind."""
        cdef match_t* m = self.match
        return (m.keys.n + m.nodes.n + m.bindings.n + m.pairs.n + m.every.n + m.bare.n
                + (m.root.star != NULL) + (m.root.hash != NULL)
                + (m.hasher.n_slots + m.hasher.n_points if m.hasher != NULL else 0))

    def n_slots(self):
        """Slots of its tables: literal keys, nodes of topics, bindings, pairs of headers."""
        cdef match_t* m = self.match
        return m.keys.n_slots, m.nodes.n_slots, m.bindings.n_slots, m.pairs.n_slots

    def set_default_any(self, bint is_any):
        """Meaning of a headers binding without x-match."""
        match_set_default_any(self.match, is_any)

    def set_hash(self, bint is_jump, bytes header=None, u32 property=0):
        """Algorithm of consistent hashing, and the header or the property to hash on."""
        if self.match.hasher == NULL:
            raise ValueError("not a matcher that hashes")
        hash_set_up(self.match, is_jump, header, property)

    cdef subscription_t subscription(self, i64 number, u8 qos):
        cdef subscription_t s
        memset(&s, 0, sizeof(subscription_t))
        s.dest.kind = DEST_SUBSCRIPTION
        s.queue = self.dest(number)
        s.qos = qos
        return s

    def bind(self, bytes key not None, bytes args not None, i64 dest):
        """The match_result of match_bind. Of filters, *args* is the QoS."""
        cdef subscription_t s
        if self.match.kind == MATCH_FILTERS:
            s = self.subscription(dest, args[0] if args else 0)
            return match_bind(self.match, key, len(key), NULL, 0, &s.dest)
        return match_bind(self.match, key, len(key), args, len(args), self.dest(dest))

    def unbind(self, bytes key not None, bytes args not None, i64 dest):
        """1 removed, 0 there was none, -4 for a weight that is no number."""
        cdef subscription_t s
        if self.match.kind == MATCH_FILTERS:
            s = self.subscription(dest, 0)
            return match_unbind(self.match, key, len(key), NULL, 0, &s.dest)
        return match_unbind(self.match, key, len(key), args, len(args), self.dest(dest))

    def route(self, bytes key not None, bytes headers=None, bytes properties=None,
              list others=None):
        """Destinations of one message, each once, in the order they were found.

        With keys of *others*, it is stopped whenever that is possible, and one of those messages
        is routed before it goes on."""
        cdef props_t found
        cdef targets_t between
        cdef u32 n = 0
        if properties is None:
            properties = properties_of(headers)
        if (props_walk(properties, len(properties), True, &found) != 1
                or found.len != <u32>len(properties)):
            raise ValueError("malformed properties")
        memset(&between, 0, sizeof(targets_t))
        between.look = MATCH_LOOK
        self.targets.look = 0 if others else MATCH_LOOK
        self.targets.pause = NULL
        if others:
            self.targets.pause = match_always
        targets_begin(&self.targets, &self.reached)
        rc = matcher_route(self.match, key, len(key), properties, found.headers_at,
                           &self.targets)
        while rc == MATCH_TIRED:
            other = others[n % len(others)]
            n += 1
            targets_begin(&between, &self.reached)
            matcher_route(self.match, other, len(other), NULL, 0, &between)
            targets_resume(&self.targets, &self.reached)
            rc = matcher_route(self.match, key, len(key), properties, found.headers_at,
                               &self.targets)
        targets_free(&between)
        self.pauses = n
        if rc == MATCH_BAD_HEADER:
            raise ValueError("the header to hash on is no string")
        if rc < 0:
            raise MemoryError
        return [self.number(self.targets.items[i]) for i in range(self.targets.n)]

    cdef object number(self, dest_t* dest):
        """That of a destination; of a subscription, (number, QoS)."""
        cdef subscription_t* s
        if dest.kind != DEST_SUBSCRIPTION:
            return (<matcher_dest_t*>dest).number
        s = <subscription_t*>dest
        return (<matcher_dest_t*>s.queue).number, s.qos

    def bench(self, list keys not None, u64 n, bytes headers=None):
        """Nanoseconds of processor time per routing; *n* routings take the *keys* in turn."""
        cdef bytes properties = properties_of(headers)
        cdef const u8* props = properties
        cdef u32 headers_at = 0 if headers is None else 2
        cdef size_t n_keys = len(keys), at = 0
        cdef u64 _i, start, spent
        cdef bytes item
        self.targets.look = MATCH_LOOK
        self.targets.pause = NULL
        cdef const u8** key = <const u8**>malloc((n_keys + 1) * sizeof(u8*))
        cdef u32* size = <u32*>malloc((n_keys + 1) * sizeof(u32))
        try:
            if key == NULL or size == NULL:
                raise MemoryError
            if n_keys == 0 or n == 0:
                raise ValueError("nothing to route")
            for at in range(n_keys):
                item = keys[at]
                key[at] = item
                size[at] = len(item)
            at = 0
            with nogil:
                start = matcher_cpu_ns()
                for _i in range(n):
                    targets_begin(&self.targets, &self.reached)
                    matcher_route(self.match, key[at], size[at], props, headers_at,
                                  &self.targets)
                    at = at + 1 if at + 1 < n_keys else 0
                spent = matcher_cpu_ns() - start
            return <double>spent / n
        finally:
            free(key)
            free(size)

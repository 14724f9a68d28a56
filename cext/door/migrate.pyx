# Migrate: the messages of an old priority queue, in one store, move to a store for each level.
#
# The new stores are made in `migrating`, which becomes `migrated` once all is on disk; then the old
# files go and the new ones take their place. A crash anywhere leaves the one or the other whole:
# the next start begins anew, or goes on. A disk that does not say what is there stops it: the queue
# is closed, and what it has stays. Called by the door. Source: docs/formats.md, levels.
_OF_STORE = re.compile(r"(msgs|acks|meta)\.\d{10}")


cdef bint is_older(dict entries) except -1:
    """Whether a priority queue has messages in one store, or their move has not come to its end."""
    for name, entry in entries.items():
        if _OF_STORE.fullmatch(name) or (name == "migrated" and entry.is_dir()):
            return True
    return False


cdef list migrate_levels(Queue queue):
    """Bring the directory of a priority queue up to date that `is_older`; returns lines for the
    log.

    Raises OSError, or ValueError when there are messages in both layouts: nothing has changed."""
    directory = os.fsdecode(queue.q.levels.dirname)
    migrating, migrated = f"{directory}/migrating", f"{directory}/migrated"
    notes, damaged = [], set()
    if not is_directory(migrated):
        for level in level_directories(directory):
            if files_of_store(level):
                raise ValueError(f"{directory} and {level} both hold messages")
        remove_tree(queue.q.loop, migrating)
        n, gaps = copy_to_levels(queue, directory, migrating)
        sync_tree(migrating)
        rename_file(queue.q.loop, migrating, migrated)
        sync_directory(directory)
        notes.append(f"{n} messages of an older layout were moved to a store for each priority")
        for path, position, end in gaps:
            damaged.add(path)
            notes.append(f"{path} is damaged at byte {position}: {end - position} bytes cannot be"
                         " read; it is kept under a name that ends in .damaged")
    for path in files_of_store(directory):
        if path in damaged:
            rename_file(queue.q.loop, path, kept_name(path))
        else:
            unlink_file(queue.q.loop, path)
    for level in level_directories(migrated):
        to = f"{directory}/{os.path.basename(level)}"
        remove_tree(queue.q.loop, to)
        rename_file(queue.q.loop, level, to)
    sync_directory(directory)
    remove_directory(queue.q.loop, migrated)
    return notes


cdef dict queue_entries(Queue queue, dict entries, list notes):
    """The entries of a queue's directory, which is up to date then. Args: `entries`, if somebody
    has looked."""
    cdef queue_t* q = queue.q
    if entries is None:
        entries = entries_in(queue_directory(q)) or {}
    if q.levels != NULL and is_older(entries):
        notes += migrate_levels(queue)
        entries = entries_in(queue_directory(q)) or {}
    return entries


cdef list files_of_store(str directory):
    """The segments of a store, and what belongs to them."""
    return [entry.path for entry in os.scandir(directory)
            if _OF_STORE.fullmatch(entry.name)] if is_directory(directory) else []


cdef list level_directories(str directory):
    return sorted(entry.path for entry in os.scandir(directory)
                  if re.fullmatch(r"prio\.\d{3}", entry.name))


cdef tuple copy_to_levels(Queue queue, str directory, str target):
    """Write the messages of the store in `directory` to stores for each level in `target`; returns
    how many, and the damages met on the way. Raises OSError, or ValueError when not all can be."""
    cdef queue_t* q = queue.q
    cdef Queue old = Queue(queue.loop, directory, q.store.segment_size, True)
    cdef Queue new = Queue(queue.loop, target, q.store.segment_size, True,
                           max_priority=<int>q.levels.n - 1)
    cdef u64 n = 0
    cdef int rc
    old.load()
    try:
        while True:
            rc = copy_to_level(old.q, new.q)
            if rc < 0:
                raise ValueError(f"{directory}: its messages cannot all be moved to levels now")
            if rc == 0:
                break
            n += 1
        gaps = old.take_damage()
        new.close()
    finally:
        old.delete()
        new.delete()
    return n, gaps


cdef int copy_to_level(queue_t* old, queue_t* new) noexcept nogil:
    """Move the next message, as old as it is. 1, 0 when there is none, or -1."""
    cdef loop_t* loop = old.loop
    cdef i64 now_ms = loop.now_ms
    cdef store_t* st
    cdef rec_t rec
    cdef msg_t m
    cdef u8* props
    cdef int rc
    rc = queue_peek(old, &rec)
    while rc == PEEK_LATER:         # at the start nobody else waits
        rc = queue_peek(old, &rec)
    if rc != 1:
        return -1 if rc < 0 or old.store.error else 0
    props = loop_scratch(loop, <u64>rec.size + 16)
    if props == NULL:
        return -1
    props_to_wire(props, &rec)
    memset(&m, 0, sizeof(msg_t))
    if not props_find(props, rec.props_len, &m):
        return -1
    m.names = rec.names
    m.names_len = rec.names_len
    m.body = rec.body
    if record_has_far_body(&rec):
        m.body = props + rec.props_len
        if store_copy_body(old.store, &rec, props + rec.props_len, rec.body_len):
            return -1
    m.body_len = rec.body_len
    m.size = rec.size
    st = queue_level_for(new, &m)
    loop.now_ms = <i64>le64(rec.names - 8)
    rc = -1 if st == NULL else queue_append_to(new, st, &m)
    loop.now_ms = now_ms
    store_take(old.store, &rec)
    old.ready -= 1
    return -1 if rc or new.is_stuck or new.is_closed else 1


cdef sync_tree(str path):
    """Have a directory and all below it on disk. Raises OSError."""
    for directory, _, files in os.walk(path, onerror=raise_error):
        for name in files:
            sync_file(f"{directory}/{name}")
        sync_directory(directory)

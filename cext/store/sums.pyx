# Sums: those of the segments of a broker, in memory, so that what is read of them can be compared.
#
# Who keeps sums of files (lavinmq/integrity) gives them here for files of messages; whoever changes
# one says so here in the same call (files.pyx), so what differs is never the broker's own change.
# Sums of a file are refused when it was changed since somebody has begun to make them. A file costs
# 80 bytes, and 5 for each of its blocks. Any thread; one lock, for as long as it takes to compare
# what is read at once. Called by files.pyx and proof.pyx; the door.
# Source: docs/integrity.md.

from libc.string cimport strchr, strcmp

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_init(pthread_mutex_t* lock, const void* attributes)
    int pthread_mutex_lock(pthread_mutex_t* lock)
    int pthread_mutex_unlock(pthread_mutex_t* lock)
    int pthread_mutex_destroy(pthread_mutex_t* lock)

cdef enum:
    SUM_BLOCK = 65536           # bytes that have a sum; the last ones of a file may be fewer
    SUM_FIRST = 256             # buckets
    SUM_PORTION = 256           # files of a directory that has gone, under one lock

cdef enum sum_state:            # of a block
    SUM_KNOWN = 0
    SUM_UNKNOWN = 1             # the broker has changed it since
    SUM_BAD = 2                 # something else was read than was written


cdef sums_t* sums_new() noexcept nogil:
    """Nothing is known; NULL out of memory."""
    cdef sums_t* s = <sums_t*>calloc(1, sizeof(sums_t))
    if s == NULL:
        return NULL
    s.n_buckets = SUM_FIRST
    s.files = <summed_t**>calloc(SUM_FIRST, sizeof(summed_t*))
    s.trees = <sum_tree_t**>calloc(SUM_FIRST, sizeof(sum_tree_t*))
    if s.files == NULL or s.trees == NULL:
        free(s.files)
        free(s.trees)
        free(s)
        return NULL
    pthread_mutex_init(&s.lock, NULL)
    return s


cdef void sums_clear(sums_t* s) noexcept nogil:
    """Nothing is known any more."""
    cdef summed_t* file
    cdef sum_tree_t* tree
    cdef u32 i
    pthread_mutex_lock(&s.lock)
    s.watched[0], s.is_touched, s.n_files = 0, True, 0
    for i in range(s.n_buckets):
        while s.files[i] != NULL:
            file = s.files[i]
            s.files[i] = file.next
            free(file)
        while s.trees[i] != NULL:
            tree = s.trees[i]
            s.trees[i] = tree.next
            free(tree)
    pthread_mutex_unlock(&s.lock)


cdef void sums_free(sums_t* s) noexcept nogil:
    """Nobody reads or changes files any more."""
    cdef u32 i
    if s == NULL:
        return
    sums_clear(s)
    for i in range(s.n_spoiled):
        free(s.spoiled[i])
    free(s.files)
    free(s.trees)
    pthread_mutex_destroy(&s.lock)
    free(s)


# ---- keys ----------------------------------------------------------------------------------------

cdef inline u64 sum_key(const char* path) noexcept nogil:
    return hash_bytes(<const u8*>path, strlen(path), TOUCH_SEED)


cdef u64 sum_key_above(const char* path, u32 n_parts) noexcept nogil:
    """The key of the first parts of a path: the directory of a virtual host, or of a queue."""
    cdef size_t n = 0
    while path[n]:
        if path[n] == c"/":
            n_parts -= 1
            if n_parts == 0:
                break
        n += 1
    return hash_bytes(<const u8*>path, n, TOUCH_SEED)


cdef bint is_tree(const char* path) noexcept nogil:
    """Whether a path may be that of a directory of the broker's that gets another name: of a
    virtual host, a queue, or in the latter."""
    cdef const char* name = path
    cdef u32 n_slashes = 0
    while path[0]:
        if path[0] == c"/":
            n_slashes += 1
            name = path + 1
        path += 1
    return (n_slashes < 2 or strncmp(name, b"prio.", 5) == 0 or strncmp(name, b"migrat", 6) == 0)


# ---- the table, under the lock -------------------------------------------------------------------

cdef summed_t* sums_find(const sums_t* s, u64 key) noexcept nogil:
    cdef summed_t* file = s.files[key & (s.n_buckets - 1)]
    while file != NULL and file.key != key:
        file = file.next
    return file


cdef sum_tree_t* sums_tree(const sums_t* s, u64 key) noexcept nogil:
    cdef sum_tree_t* tree = s.trees[key & (s.n_buckets - 1)]
    while tree != NULL and tree.key != key:
        tree = tree.next
    return tree


cdef void sums_drop_tree(sums_t* s, sum_tree_t* tree) noexcept nogil:
    cdef sum_tree_t** at = &s.trees[tree.key & (s.n_buckets - 1)]
    while at[0] != tree:
        at = &at[0].next
    at[0] = tree.next
    free(tree)


cdef void sums_drop(sums_t* s, summed_t* file) noexcept nogil:
    """Nothing is known of a file any more."""
    cdef summed_t** at = &s.files[file.key & (s.n_buckets - 1)]
    while at[0] != file:
        at = &at[0].next
    at[0] = file.next
    if file.tree_next != NULL:
        file.tree_next.tree_before = file.tree_before
    if file.tree_before != NULL:
        file.tree_before.tree_next = file.tree_next
    else:
        file.tree.files = file.tree_next
    if file.tree.files == NULL:
        sums_drop_tree(s, file.tree)
    s.n_files -= 1
    free(file)


cdef void sums_grow(sums_t* s) noexcept nogil:
    """Twice as many buckets; without memory for that it goes on with those that there are."""
    cdef u32 n = s.n_buckets * 2, i
    cdef summed_t** files = <summed_t**>calloc(n, sizeof(summed_t*))
    cdef sum_tree_t** trees = <sum_tree_t**>calloc(n, sizeof(sum_tree_t*))
    cdef summed_t* file
    cdef sum_tree_t* tree
    if files == NULL or trees == NULL:
        free(files)
        free(trees)
        return
    for i in range(s.n_buckets):
        while s.files[i] != NULL:
            file = s.files[i]
            s.files[i] = file.next
            file.next = files[file.key & (n - 1)]
            files[file.key & (n - 1)] = file
        while s.trees[i] != NULL:
            tree = s.trees[i]
            s.trees[i] = tree.next
            tree.next = trees[tree.key & (n - 1)]
            trees[tree.key & (n - 1)] = tree
    free(s.files)
    free(s.trees)
    s.files = files
    s.trees = trees
    s.n_buckets = n


cdef bint sums_put(sums_t* s, summed_t* file, u64 tree_key, u64 vhost) noexcept nogil:
    """Take a file in, in the place of what was known of it. False out of memory."""
    cdef summed_t* before = sums_find(s, file.key)
    cdef sum_tree_t* tree
    if before != NULL:
        sums_drop(s, before)
    if s.n_files >= s.n_buckets:
        sums_grow(s)
    tree = sums_tree(s, tree_key)
    if tree == NULL:
        tree = <sum_tree_t*>calloc(1, sizeof(sum_tree_t))
        if tree == NULL:
            return False
        tree.key, tree.vhost = tree_key, vhost
        tree.next = s.trees[tree_key & (s.n_buckets - 1)]
        s.trees[tree_key & (s.n_buckets - 1)] = tree
    file.tree = tree
    file.tree_before = NULL
    file.tree_next = tree.files
    if tree.files != NULL:
        tree.files.tree_before = file
    tree.files = file
    file.next = s.files[file.key & (s.n_buckets - 1)]
    s.files[file.key & (s.n_buckets - 1)] = file
    s.n_files += 1
    return True


# ---- changes -------------------------------------------------------------------------------------

cdef void sums_watch(sums_t* s, const char* path) noexcept nogil:
    """Somebody is about to read a file, to say what its sums are."""
    pthread_mutex_lock(&s.lock)
    s.watched[0] = sum_key(path)
    s.watched[1], s.watched[2] = sum_key_above(path, 2), sum_key_above(path, 1)
    s.is_touched = False
    pthread_mutex_unlock(&s.lock)


cdef inline void sums_notice(sums_t* s, u64 key) noexcept nogil:
    s.is_touched |= key == s.watched[0] or key == s.watched[1] or key == s.watched[2]


cdef void summed_change(summed_t* file, u8 kind, i64 start, i64 end) noexcept nogil:
    """Bytes of it were changed, or it was cut."""
    cdef u32 i, first, last
    if kind == CHANGE_TRUNCATE:
        if end >= file.covered:
            return
        start, end = end, file.covered
        file.covered = <u32>start
        file.n_blocks = <u32>((start + SUM_BLOCK - 1) // SUM_BLOCK)
        if start % SUM_BLOCK:
            file.states[file.n_blocks - 1] = SUM_UNKNOWN
        return
    end = end if end < file.covered else file.covered
    if start >= end:
        return
    first, last = <u32>(start // SUM_BLOCK), <u32>((end - 1) // SUM_BLOCK)
    for i in range(first, last + 1):
        file.states[i] = SUM_UNKNOWN


cdef void sums_drop_some(sums_t* s, sum_tree_t* tree) noexcept nogil:
    """Forget some of the files of a directory that has gone, and let others have the lock."""
    cdef int _i
    cdef bint is_last
    for _i in range(SUM_PORTION):
        is_last = tree.files.tree_next == NULL
        sums_drop(s, tree.files)                # the last one with its tree
        if is_last:
            break
    pthread_mutex_unlock(&s.lock)
    pthread_mutex_lock(&s.lock)


cdef void sums_gone(sums_t* s, u64 key) noexcept nogil:
    """The directory of a queue has another name: nobody reads what is in it."""
    cdef sum_tree_t* tree = sums_tree(s, key)
    while tree != NULL:
        sums_drop_some(s, tree)
        tree = sums_tree(s, key)


cdef void sums_gone_with(sums_t* s, u64 vhost) noexcept nogil:
    """The same of all queues of a virtual host."""
    cdef sum_tree_t* tree
    cdef u32 i = 0
    while i < s.n_buckets:                      # when they grow, none goes to an earlier one
        tree = s.trees[i]
        while tree != NULL and tree.vhost != vhost:
            tree = tree.next
        if tree != NULL:
            sums_drop_some(s, tree)
        else:
            i += 1


cdef void sums_change(sums_t* s, u8 kind, const char* path, i64 start, i64 end) noexcept nogil:
    cdef summed_t* file
    cdef u64 key = sum_key(path)
    sums_notice(s, key)
    if kind == CHANGE_RENAME and is_tree(path):
        if strchr(path, c"/") == NULL:
            sums_gone_with(s, key)
        else:
            key = sum_key_above(path, 2)
            sums_notice(s, key)
            sums_gone(s, key)
        return
    file = sums_find(s, key)
    if file == NULL:
        return
    if kind == CHANGE_TRUNCATE or kind == CHANGE_HOLE or kind == CHANGE_PATCH:
        summed_change(file, kind, start, end)
    else:
        sums_drop(s, file)


cdef void sums_touched(sums_t* s, u8 kind, const char* path, const char* target, i64 start,
                       i64 end) noexcept nogil:
    """A change that takes something back has been made; paths are below the data directory."""
    pthread_mutex_lock(&s.lock)
    sums_change(s, kind, path, start, end)
    if target != NULL:
        sums_change(s, kind, target, start, end)
    pthread_mutex_unlock(&s.lock)


# ---- what is known -------------------------------------------------------------------------------

cdef summed_t* summed_new(const char* path, u32 covered, const u8* sums) noexcept nogil:
    """Sums of a file, 4 bytes for each block; NULL out of memory."""
    cdef u32 n = <u32>((<u64>covered + SUM_BLOCK - 1) // SUM_BLOCK), i
    cdef summed_t* file = <summed_t*>calloc(1, sizeof(summed_t) + <size_t>n * 5)
    if file == NULL:
        return NULL
    file.key = sum_key(path)
    file.covered, file.n_blocks = covered, n
    file.states = <u8*>&file.sums[n]
    for i in range(n):
        file.sums[i] = le32(sums + 4 * i)
    return file


cdef bint sums_know(sums_t* s, summed_t* file) noexcept nogil:
    """Take in the file that is watched. False: it was changed meanwhile, or there is no memory; it
    is freed then."""
    cdef bint is_taken
    pthread_mutex_lock(&s.lock)
    is_taken = (s.watched[0] == file.key and not s.is_touched
                and sums_put(s, file, s.watched[1], s.watched[2]))
    pthread_mutex_unlock(&s.lock)
    if not is_taken:
        free(file)
    return is_taken


cdef void sums_forget(sums_t* s, u64 key) noexcept nogil:
    """A file was replaced, or is taken as it is."""
    cdef summed_t* file
    pthread_mutex_lock(&s.lock)
    sums_notice(s, key)
    file = sums_find(s, key)
    if file != NULL:
        sums_drop(s, file)
    pthread_mutex_unlock(&s.lock)


# ---- comparing -----------------------------------------------------------------------------------

cdef u32 sums_covered(sums_t* s, u64 key) noexcept nogil:
    """Bytes from the beginning of a file that there are sums of."""
    cdef summed_t* file
    cdef u32 covered
    pthread_mutex_lock(&s.lock)
    file = sums_find(s, key)
    covered = file.covered if file != NULL else 0
    pthread_mutex_unlock(&s.lock)
    return covered


cdef bint sums_has_bad(sums_t* s, u64 key, u64 start, u64 end) noexcept nogil:
    """Whether a block of those bytes was found to be bad."""
    cdef summed_t* file
    cdef u64 i, last = (end + SUM_BLOCK - 1) // SUM_BLOCK
    cdef bint has = False
    pthread_mutex_lock(&s.lock)
    file = sums_find(s, key)
    if file != NULL:
        for i in range(start // SUM_BLOCK, last if last < file.n_blocks else file.n_blocks):
            has |= file.states[i] == SUM_BAD
    pthread_mutex_unlock(&s.lock)
    return has


cdef u64 sums_compare(sums_t* s, u64 key, const u8* p, u64 at, u64 n, u8* bad,
                      bint* is_news) noexcept nogil:
    """Compare n bytes of a file from `at` on, where a block begins, up to where one ends, or the
    file. How many of them, from the first on, are what was written, or not known. `bad`: a bit for
    each block; NULL: the first bad one ends it. `is_news`: one was not known to be bad.

    Cost: 0.06 ns per byte."""
    cdef summed_t* file
    cdef u64 done = 0, block, have, good = n
    pthread_mutex_lock(&s.lock)
    file = sums_find(s, key)
    while done < n and file != NULL:
        block = (at + done) // SUM_BLOCK
        if block >= file.n_blocks:
            break
        have = file.covered - block * SUM_BLOCK
        have = have if have < SUM_BLOCK else SUM_BLOCK
        if file.states[block] == SUM_KNOWN and (
                have > n - done or crc32(0, p + done, have) != file.sums[block]):
            file.states[block] = SUM_BAD
            s.n_bad += 1
            is_news[0] = True
        if file.states[block] == SUM_BAD:
            good = done if done < good else good
            if bad == NULL:
                break
            bad[done // SUM_BLOCK // 8] |= <u8>(1 << (done // SUM_BLOCK % 8))
        done += SUM_BLOCK
    pthread_mutex_unlock(&s.lock)
    return good


cdef bint sums_has_changed(sums_t* s, u64 key, u64 block) noexcept nogil:
    """Whether the broker has changed a block since its sum was made."""
    cdef summed_t* file
    cdef bint has
    pthread_mutex_lock(&s.lock)
    file = sums_find(s, key)
    has = file != NULL and (block >= file.n_blocks or file.states[block] == SUM_UNKNOWN)
    pthread_mutex_unlock(&s.lock)
    return has


cdef void sums_spoil(sums_t* s, u64 key, u64 block) noexcept nogil:
    """A block was found to be bad by who had a copy of its sum."""
    cdef summed_t* file
    pthread_mutex_lock(&s.lock)
    file = sums_find(s, key)
    if file != NULL and block < file.n_blocks and file.states[block] == SUM_KNOWN:
        file.states[block] = SUM_BAD
        s.n_bad += 1
    pthread_mutex_unlock(&s.lock)


cdef void sums_report(sums_t* s, const char* path) noexcept nogil:
    """Have who keeps the sums look at a file. What is too much is found by the next pass."""
    cdef size_t n = strlen(path) + 1
    cdef char* copy
    cdef u32 i
    pthread_mutex_lock(&s.lock)
    for i in range(s.n_spoiled):
        if strcmp(s.spoiled[i], path) == 0:
            n = 0
    copy = <char*>malloc(n) if n and s.n_spoiled < SUM_SPOILED else NULL
    if copy != NULL:
        memcpy(copy, path, n)
        s.spoiled[s.n_spoiled] = copy
        s.n_spoiled += 1
    pthread_mutex_unlock(&s.lock)

# Log loop: what the loop has to do with logs of MQTT: those with something staged are written in
# each tick, those that somebody waits for are synced, and while one finds no room everybody waits.
#
# Called by log.pyx and the tick. Decisions 0009 and 0086.


cdef void loop_refuse_waiting(loop_t* loop) noexcept nogil:
    """Nobody who waits for the disk is told that all is safe."""
    cdef u32 i
    for i in range(loop.n_confirms):
        if loop.confirms[i].needs_sync:
            loop.confirms[i].is_refused = True


cdef void mlog_set_full(mlog_t* log, bint is_full) noexcept nogil:
    """Whether what is staged finds no room: publishers are held and confirms withheld meanwhile."""
    cdef loop_t* loop = log.loop
    if log.is_full == is_full:
        return
    log.is_full = is_full
    if is_full:
        loop.n_full_logs += 1
    else:
        loop.n_full_logs -= 1
    loop_look_held(loop)
    loop.is_news = True
    if not is_full:
        mlog_want_sync(log)         # who waits on account of it is in no batch yet


cdef void loop_flush_logs(loop_t* loop) noexcept nogil:
    """Write what was staged in this tick: before anybody is told of it."""
    cdef mlog_t* log
    while loop.dirty_logs != NULL:
        log = loop.dirty_logs
        loop.dirty_logs = log.dirty_next
        log.is_dirty = False
        mlog_flush(log)
        if log.after != NULL:
            log.after(log)


cdef void loop_gather_logs(loop_t* loop) noexcept nogil:
    """The next sync covers the logs that were asked for. One that gets no descriptor stays on the
    list, and nobody who waits is told that all is safe."""
    cdef mlog_t* log = loop.sync_logs
    cdef mlog_t* following
    loop.sync_logs = NULL
    while log != NULL:
        following = log.sync_next
        log.is_sync_wanted = False
        if mlog_hand_over(log):
            mlog_tell(log, errno if errno else EMFILE)
            mlog_want_sync(log)
            loop_refuse_waiting(loop)
        log = following

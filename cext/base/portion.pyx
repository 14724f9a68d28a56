# Portion: how much the loop does in one iteration before it looks who else has something for it.
#
# Whatever a peer can make long is charged in units of about 10 ns. After LOOK_UNITS of them the
# clock is read, and when PORTION_NS are over all that is long stops and goes on in the next turn of
# the loop (Loop.turn): links with what is left of their frames, jobs with their next step. The
# portion belongs to the iteration and not to each link, so that many cannot make it long together.
# What a queue is given makes work for the tick, which is never cut short: what the tick will take
# is owed, and counts as if it had been done (loop_settle_tick). What making a file takes depends on
# what the file system looks through: 20 us or a millisecond. It is learned, too, and owed when the
# tick has one to make.
# Called by everything that a peer can make long.

cdef enum:
    LEARN_QUEUES = 32           # of a tick from which one learns
    TOUCH_FIRST_NS = 2000       # a first guess
    TOUCH_MAX_NS = 50000        # that is a bad disk, and not this queue
    MAKE_FIRST_NS = 200000      # a first guess, for a file that is made
    MAKE_MAX_NS = 2000000       # that would be more than a portion
    MAKES_NS = 1000000          # what the files of one tick may take, unless one alone takes longer


# ---- the clock -----------------------------------------------------------------------------------

cdef void loop_begin_portion(loop_t* loop, i64 ns) noexcept nogil:
    """So much time from now on."""
    loop.look_ns = clock_ns()
    loop.portion_ends_ns = loop.look_ns + ns
    loop.work = 0
    loop.is_spent = loop.is_working = False


cdef bint loop_look(loop_t* loop) noexcept nogil:
    """Look at the clock: whether the portion is over. Once over it stays over. Cost: 25 ns."""
    loop.is_working = True
    if not loop.is_spent:
        loop.look_ns = clock_ns()
        loop.is_spent = (loop.portion_units != 0
                         or loop.look_ns + loop.owed_ns + loop.make_owed_ns >= loop.portion_ends_ns)
    loop.work = loop.look_units if loop.is_spent else 0
    return loop.is_spent


# hot
cdef inline bint loop_spent(loop_t* loop, u32 units) noexcept nogil:
    """Charge so many units of about 10 ns, 2^31 at most; whether the portion is over: 1 ns."""
    loop.work += units
    return loop.work >= loop.look_units and loop_look(loop)


cdef inline bint loop_is_past(const loop_t* loop, i64 ends_ns) noexcept nogil:
    """Whether the time is over that somebody has given himself; in tests it always is."""
    return loop.portion_units != 0 or clock_ns() > ends_ns


cdef void loop_settle_tick(loop_t* loop, i64 began_ns, u32 n, i64 made_ns) noexcept nogil:
    """A tick that looked at n queues is over: learn what one takes, without the files that were
    made; before it those had taken made_ns."""
    cdef i64 took_ns
    if n < LEARN_QUEUES:
        return
    took_ns = (clock_ns() - began_ns - (loop.made_ns - made_ns)) // n
    took_ns = took_ns if took_ns < TOUCH_MAX_NS else TOUCH_MAX_NS
    took_ns -= loop.touch_ns
    loop.touch_ns += took_ns // 2 if took_ns > 0 else took_ns // 16     # bad news counts at once
    loop.touch_units = <u32>(loop.touch_ns // 10)


cdef void loop_owe_file(loop_t* loop) noexcept nogil:
    """The tick is going to make a file: that belongs to the portion of whoever is the cause."""
    loop.make_owed_ns += loop.make_ns
    loop.work += <u32>(loop.make_ns // 10)


cdef bint loop_makes_enough(const loop_t* loop) noexcept nogil:
    """Whether the next tick has files enough to make: another one is to wait for a later turn."""
    return loop.make_owed_ns != 0 and loop.make_owed_ns + loop.make_ns > MAKES_NS


cdef void loop_made_file(loop_t* loop, i64 began_ns) noexcept nogil:
    """A file was made: charge it, and learn what one takes. Bad news count at once, for the next
    ones are likely to be slow as well."""
    cdef i64 took_ns = clock_ns() - began_ns
    cdef i64 change_ns = (took_ns if took_ns < MAKE_MAX_NS else MAKE_MAX_NS) - loop.make_ns
    loop.made_ns += took_ns
    loop.work += <u32>((loop.make_ns + change_ns) // 10)
    loop.make_ns += change_ns // 2 if change_ns > 0 else change_ns // 16


cdef void loop_grant(loop_t* loop) noexcept nogil:
    """Whoever is next gets something in any case, so that all get on: little if all is spent."""
    if loop.is_spent or clock_ns() >= loop.portion_ends_ns:
        loop_begin_portion(loop, GRANT_NS)
        loop.is_working = True


# ---- work that is no link's ----------------------------------------------------------------------

cdef void loop_add_job(loop_t* loop, job_t* job) noexcept nogil:
    """Have a step of the job made in each turn until one says that it was the last. The job stays
    the caller's; it is not on the list while its step runs, and not any more after the last."""
    job.next = NULL
    if loop.jobs == NULL:
        loop.jobs = job
    else:
        loop.last_job.next = job
    loop.last_job = job


cdef void loop_drop_job(loop_t* loop, job_t* job) noexcept nogil:
    """Take a job off the list, if it is there."""
    cdef job_t* before = NULL
    cdef job_t* each = loop.jobs
    while each != NULL and each != job:
        before = each
        each = each.next
    if each == NULL:
        return
    if before == NULL:
        loop.jobs = job.next
    else:
        before.next = job.next
    if loop.last_job == job:
        loop.last_job = before


cdef void loop_step_job(loop_t* loop) noexcept nogil:
    """Make a step of the first job, if there is one."""
    cdef job_t* job = loop.jobs
    if job == NULL:
        return
    loop.jobs = job.next
    if job.step(loop, job):
        loop_add_job(loop, job)


cdef void loop_run_jobs(loop_t* loop) noexcept nogil:
    """Make steps of the jobs in turn until the portion is over, one at least."""
    while loop.jobs != NULL:
        loop_step_job(loop)
        if loop_spent(loop, 100):
            break

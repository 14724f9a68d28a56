# Loop: the class that owns loop_t, runs one turn in each iteration and the sync worker.
#
# Runs on any asyncio loop that has call_soon, add_reader and add_writer (uvloop, asyncio). The
# worker thread waits on an event descriptor and only ever calls fdatasync, syncfs and close,
# without the GIL.
# Longer than 500 lines: a class of Cython stands in one file.
import os
import re
import threading
from collections import deque

from posix.stat cimport fstat, struct_stat

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int initval, int flags)
    enum:
        EFD_CLOEXEC
        EFD_NONBLOCK

cdef extern from "<sys/timerfd.h>" nogil:
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec* value, itimerspec* old)
    enum:
        TFD_CLOEXEC
        TFD_NONBLOCK
        TFD_TIMER_ABSTIME

cdef extern from "<unistd.h>" nogil:
    ssize_t c_read "read"(int fd, void* buf, size_t n)
    ssize_t c_write "write"(int fd, const void* buf, size_t n)

cdef extern from "<malloc.h>" nogil:
    int malloc_trim(size_t keep)
    int mallopt(int what, int value)
    enum:
        M_MMAP_THRESHOLD

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int c_poll "poll"(pollfd* fds, unsigned long n, int timeout_ms)
    enum:
        POLLIN

cdef enum:
    WORK_STOP = 1 << 20
    MOST_WAITING_FILES = 64     # of finished segments before they are synced unasked
    MAPPED_BYTES = 131072
    HUNG_UP = 0x2000            # POLLRDHUP
    COUNT_AT = 18               # of the number in the header x-delivery-count
    DUE_PAUSE_MS = 5            # between two looks for expired messages
    FILE_SYNC_NS = 300000       # first guesses, see sync_files
    WHOLE_SYNC_NS = 1000000

_PARKED_PAUSE_S = 0.5           # before what could not be moved is tried again
_TURN_PAUSE_S = 0.002            # before what is left of that goes on: others come first
_INDEX_PAUSE_S = 0.001          # between two segments looked through after a start, at least

# syncfs(2): before Linux 5.8 it did not report errors of writing back.
_SYNCFS_REPORTS_ERRORS = tuple(
    map(int, re.match(r"(\d+)\.(\d+)", os.uname().release).groups())) >= (5, 8)


def map_large_blocks() -> None:
    """Have the C library map memory blocks of 128 KiB and more one by one, for this whole process.

    Left alone it learns to cut them from the heap, where small things that live longer keep what
    they leave from being given back: under mixed load a broker grew by a MiB every two minutes."""
    mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def sync_file_system(str path) -> None:
    """Have all that was written to the file system of a directory on disk. Raises OSError."""
    cdef int fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    cdef int error = 0
    with nogil:
        if sync_all(fd):
            error = errno
    c_close(fd)
    if error:
        raise OSError(error, os.strerror(error), path)


cdef inline void event_add(int fd, u64 n) noexcept nogil:
    """Wake whoever waits for the counter of an eventfd."""
    while c_write(fd, &n, 8) < 0 and errno == EINTR:
        pass


cdef inline void event_take(int fd) noexcept nogil:
    """Set the counter of an eventfd back to 0."""
    cdef u64 n
    while c_read(fd, &n, 8) < 0 and errno == EINTR:
        pass


cdef class _Commit:
    """Somebody who waits for a sync, and wants to be told when too few copies are there for it."""
    cdef object done
    cdef readonly object refused

    def __init__(self, done, refused):
        self.done = done
        self.refused = refused

    def __call__(self):
        self.done()


cdef class Loop:
    """Owner of the message path's shared state: input, block pool, tick lists, confirm batches.

    Args: `events`, the running asyncio loop; `data_dir`, an existing directory whose file system is
    synced; `sync`, whether confirms wait for the disk; `on_fatal(path: str, error: int)`, called
    once when a sync failed: nothing is confirmed from then on and the broker must stop;
    `on_news()`, called when a store has lost records, could not be read or written, or can be
    again.
    """
    cdef loop_t t
    cdef observer_t observers[OBSERVERS]    # of changes of files; whom of them there is
    cdef bint is_observed[OBSERVERS]
    cdef bytes observed_root
    cdef u64 awaited            # position that copies have to have for the sync that is over here
    cdef bint is_awaited        # it is over here, and waits for them
    cdef i64 sync_began_ns
    cdef object copied          # (position, callback) of what else waits for copies
    cdef int copied_fd          # readable when they may have it
    cdef journal_t* journals[JOURNALS]  # of changes of files, NULL = nobody has asked for it yet
    cdef readonly u32 n_compactions
    cdef readonly object events
    cdef object on_fatal
    cdef object on_news
    cdef object worker
    cdef list waiting           # callbacks of the next sync
    cdef set waiting_files      # (device, inode) of what they wait for
    cdef list commits           # callbacks of the next sync that finds everything written
    cdef list running           # callbacks of the sync in flight
    cdef list returned          # callbacks of the last orphan
    cdef set links
    cdef set locals             # channels without a connection that may hold deliveries
    cdef dict dirnames          # directories that hold those of queues
    cdef list crowd             # links whose publishes wait for consumers
    cdef list held              # links whose publishes wait for the disk
    cdef bint is_looking        # one that was looked at has more to be looked at, at once
    cdef list turns             # links that are to be heard in the next turn
    cdef list late_turns        # and those that kept the loop busy the last time
    cdef object answers         # callbacks whose sync is over
    cdef object leaving         # links whose peers say no more, and that are heard last
    cdef object ended           # links whose peers have gone
    cdef bint is_jobs_turn      # jobs come before those links in the next turn
    cdef object crowd_timer
    cdef object patient_timer
    cdef object retry_timer
    cdef object parked_timer
    cdef object due_timer
    cdef object index_timer
    cdef i64 due_timer_ms       # when it goes off, 0 = it is not set
    cdef bint is_scheduled
    cdef bint is_found_synced   # what was there at the start is on disk
    cdef bint is_over           # a write failed, or it was stopped: no confirm leaves any more
    cdef int submit_fd
    cdef int done_fd
    cdef int linger_fd          # a timer: the event loop's own count milliseconds
    cdef i64 linger_set_ns      # when it goes off
    cdef i64 trimmed_ns         # when memory was given back last
    cdef int worker_error

    def __cinit__(self):
        memset(&self.t, 0, sizeof(loop_t))
        self.t.dir_fd = self.submit_fd = self.done_fd = self.linger_fd = self.copied_fd = -1
        self.t.watch.fd = -1
        self.t.input = <u8*>malloc(BLOCK_SIZE)
        if self.t.input == NULL:
            raise MemoryError()
        self.t.began_ns = clock_ns()
        self.t.nowhere.loop = &self.t
        self.t.nowhere.wire.fd = -1
        self.t.nowhere.state = LINK_CLOSED
        self.t.look_units = LOOK_UNITS
        self.t.as_amqp = record_as_amqp
        self.t.touch_ns = TOUCH_FIRST_NS
        self.t.touch_units = TOUCH_FIRST_NS // 10
        self.t.make_ns = MAKE_FIRST_NS
        self.t.keep_files = KEEP_FILES
        self.t.match_look = self.t.buried.look = MATCH_LOOK
        self.t.max_copies = 1024

    def __init__(self, events, data_dir, bint sync, on_fatal, on_news):
        self.events = events
        self.on_fatal = on_fatal
        self.on_news = on_news
        self.waiting = []
        self.waiting_files = set()
        self.commits = []
        self.running = []
        self.returned = []
        self.links = set()
        self.locals = set()
        self.dirnames = {}
        self.crowd = []
        self.held = []
        self.turns = []
        self.late_turns = []
        self.answers = deque()
        self.leaving = deque()
        self.ended = deque()
        self.copied = deque()
        self.t.max_large = <u64>-1
        self.t.dedup_budget.most = MAX_DEDUP_BYTES
        self.t.history_budget.most = MAX_HISTORIES_BYTES
        self.t.sync = sync
        self.t.count_header = <u8*>malloc(COUNT_AT + 4)
        if self.t.count_header == NULL:
            raise MemoryError()
        put_be32(put_name(self.t.count_header, b"x-delivery-count", c'I'), 0)
        loop_clock(&self.t)
        self.t.touches.fd = -1
        self.t.sums = sums_new()
        if self.t.sums == NULL:
            raise MemoryError()
        self.t.file_ns = FILE_SYNC_NS
        self.t.whole_ns = WHOLE_SYNC_NS
        if _SYNCFS_REPORTS_ERRORS:
            self.t.dir_fd = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.linger_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
        if self.linger_fd < 0:
            raise OSError(errno, f"timer: {os.strerror(errno)}")
        events.add_reader(self.linger_fd, self.on_lingered)
        error = watch_open(&self.t.watch)
        if error:
            raise OSError(error, f"epoll: {os.strerror(error)}")
        events.add_reader(self.t.watch.fd, self.on_found)
        closer_begin()              # now, so that descriptors do not seem to leak later
        loop_clock(&self.t)

    def __dealloc__(self):
        cdef queue_t* held
        cdef job_t* job
        cdef u32 i
        self.t.observer = NULL      # the broker has ended
        self.t.touches.fd = -1
        for i in range(<u32>JOURNALS):
            if self.journals[i] != NULL:
                pthread_mutex_destroy(&self.journals[i].lock)
                free(self.journals[i].p)
                free(self.journals[i])
        loop_drop_hauls(&self.t)
        while self.t.jobs != NULL:
            job = self.t.jobs
            loop_drop_job(&self.t, job)
            if job.step(&self.t, job):
                loop_add_job(&self.t, job)
        self.close_descriptors()
        for i in range(self.t.pool.n):
            free(self.t.pool.free_blocks[i])
        vacants_free(&self.t)
        free(self.t.input)
        free(self.t.count_header)
        free(self.t.scratch.p)
        free(self.t.carry.p)
        targets_free(&self.t.buried)
        reached_free(&self.t.reached)
        free(self.t.dues)
        free(self.t.takers)
        while self.t.owing != NULL:
            queue_forget_owed(self.t.owing.queue)
        while self.t.held != NULL:
            held = self.t.held
            self.t.held = held.moves.held_next
            queue_forget_moves(held)
            queue_unref(held)
        while self.t.parked != NULL:
            held = self.t.parked
            self.t.parked = held.moves.parked_next
            queue_forget_moves(held)
            queue_unref(held)
        while self.t.unindexed != NULL:
            held = self.t.unindexed
            self.t.unindexed = held.index_next
            queue_unref(held)
        while self.t.over_consumers != NULL:
            consumer_unref(self.next_over())
        while self.t.over != NULL or self.t.over_rest != NULL:
            if self.t.over == NULL:
                self.t.over, self.t.over_rest = self.t.over_rest, NULL
            held = self.t.over
            self.t.over = held.over_next
            queue_unref(held)
        free(self.t.confirms)
        free(self.t.batch)
        for i in range(self.t.n_patient):
            consumer_unref(self.t.patient[i])
        free(self.t.patient)
        free(self.t.sync_queues)
        free(self.t.sync_fds)
        free(self.t.run_fds)
        sums_free(self.t.sums)

    cdef void close_descriptors(self):
        cdef u32 i
        for i in range(self.t.n_sync_fds):
            c_close(self.t.sync_fds[i])
        for i in range(self.t.n_run_fds):
            c_close(self.t.run_fds[i])
        self.t.n_sync_fds = self.t.n_run_fds = 0
        for fd in (self.t.dir_fd, self.submit_fd, self.done_fd, self.linger_fd, self.t.watch.fd,
                   self.copied_fd):
            if fd >= 0:
                c_close(fd)
        self.t.watch.fd = self.t.dir_fd = self.submit_fd = self.done_fd = self.linger_fd = -1
        self.copied_fd = -1

    @property
    def sync(self) -> bool:
        """Whether confirms and definitions wait for the disk."""
        return self.t.sync

    @sync.setter
    def sync(self, bint value) -> None:
        self.t.sync = value

    @property
    def is_low(self) -> bool:
        """Whether the file system is short of space, so that publishers are held."""
        return self.t.is_low

    @is_low.setter
    def is_low(self, bint value) -> None:
        self.t.is_low = value
        loop_look_held(&self.t)
        self.release_held()

    @property
    def n_snapshots(self) -> int:
        """How many snapshots hold files. See the stub."""
        return self.t.n_snapshots

    @n_snapshots.setter
    def n_snapshots(self, u8 value) -> None:
        self.t.n_snapshots = value

    @property
    def is_reading(self) -> bool:
        """Whether files are another's to change. See the stub."""
        return self.t.is_reading

    @is_reading.setter
    def is_reading(self, bint value) -> None:
        self.t.is_reading = value
        loop_clock(&self.t)         # nobody may have had a turn for long

    @property
    def n_kept_out(self) -> int:
        """How many changes of files were refused for that."""
        return self.t.n_kept_out

    @property
    def is_stamping(self) -> bool:
        """Whether a publish without a timestamp gets the time at which it came."""
        return self.t.is_stamping

    @is_stamping.setter
    def is_stamping(self, bint value) -> None:
        self.t.is_stamping = value

    @property
    def is_held(self) -> bool:
        """Whether publishers are held: the file system is low, or had no room for a queue."""
        return self.t.is_held

    @property
    def breaks(self) -> int:
        """Queues closed since start because they could not be written."""
        return self.t.n_breaks

    @property
    def large_bytes(self) -> int:
        """Memory in messages too large for the pooled blocks: being received, being sent, in
        transactions."""
        return self.t.large_bytes

    @property
    def sync_age(self) -> float:
        """For how long the disk has been working on a sync. See the stub."""
        if not self.t.is_syncing or self.is_awaited:
            return 0.0
        return (clock_ns() - self.sync_began_ns) / 1e9

    def sync_times(self) -> tuple:
        """How long syncs took: see histogram_values."""
        return histogram_values(&self.t.sync_times)

    def confirm_times(self) -> tuple:
        """From reading the oldest publish that an ack covers to writing that ack."""
        return histogram_values(&self.t.confirm_times)

    @property
    def clock_offset_ms(self) -> int:
        """Milliseconds added to the clock: tests let time pass with it."""
        return self.t.clock_offset_ms

    @clock_offset_ms.setter
    def clock_offset_ms(self, i64 value) -> None:
        self.t.clock_offset_ms = value
        loop_clock(&self.t)

    @property
    def overdue_interval_s(self) -> float:
        """Seconds between two looks at a connection for deliveries held for longer than allowed."""
        return self.t.overdue_pause_ns / 1e9

    @overdue_interval_s.setter
    def overdue_interval_s(self, double value) -> None:
        self.t.overdue_pause_ns = <i64>(value * 1e9)

    @property
    def overdue_looks(self) -> int:
        """How often a connection was looked at for that since start."""
        return self.t.n_overdue_looks

    @property
    def watch_changes(self) -> int:
        """How often the kernel was told to look for something else since start."""
        return self.t.watch.n_changes

    @property
    def portion_units(self) -> int:
        """Units of work, of about 10 ns, after which a portion is over; 0: it ends by the clock.
        Tests have work stopped with it, as often as can be."""
        return self.t.portion_units

    @portion_units.setter
    def portion_units(self, u32 value) -> None:
        self.t.portion_units = value
        self.t.look_units = value if value else LOOK_UNITS
        self.t.match_look = value if value else MATCH_LOOK

    def sync_one_by_one(self) -> None:
        """Never sync a whole file system in the place of files: it may not be the only one."""
        if self.t.dir_fd >= 0:
            c_close(self.t.dir_fd)
            self.t.dir_fd = -1

    def set_max_files(self, u64 n) -> None:
        """Bound the descriptors that stores keep: with more stores than that allows each one opens
        its files when it needs them."""
        self.t.keep_files = <u32>min(n // FILES_OF_A_STORE, KEEP_FILES)

    def set_max_large(self, u64 n) -> None:
        """Bound `large_bytes`: above it a message that needs more is refused or waits."""
        self.t.max_large = n

    def set_max_copies(self, u32 n) -> None:
        """Bound the keys in CC and BCC of one message; one with more is refused."""
        self.t.max_copies = n

    @property
    def dedup_bytes(self) -> int:
        """Memory of all caches of keys."""
        return self.t.dedup_budget.used

    def set_max_dedup(self, u64 n) -> None:
        """Bound `dedup_bytes`; 128 keys each are granted above it."""
        self.t.dedup_budget.most = n

    @property
    def history_bytes(self) -> int:
        """Memory of all messages that exchanges keep."""
        return self.t.history_budget.used

    def set_max_history(self, u64 n) -> None:
        """Bound `history_bytes`."""
        self.t.history_budget.most = n

    def local_channels(self) -> list:
        """Channels without a connection that hold deliveries, or did."""
        return list(self.locals)

    # ---- the turn

    cdef void kick(self):
        """Have a turn at the end of this iteration when there is something to do in it."""
        cdef bint is_due
        if self.is_scheduled or self.is_over:
            return
        if self.t.n_patient and self.patient_timer is None:
            self.patient_timer = self.events.call_later(0.001, self.wake_patient)
        if self.t.n_dues and (self.due_timer_ms == 0
                              or (self.t.dues[0].due_ms < self.due_timer_ms - DUE_PAUSE_MS
                                  and self.due_timer_ms > self.t.now_ms + DUE_PAUSE_MS)):
            self.set_due_timer()
        if self.t.unindexed != NULL and self.index_timer is None:
            self.index_timer = self.events.call_later(_INDEX_PAUSE_S, self.index)
        if self.t.parked != NULL and self.parked_timer is None:
            self.parked_timer = self.events.call_later(_PARKED_PAUSE_S, self.try_parked)
        is_due = (self.t.tick_queues != NULL or self.t.flush_links != NULL
                  or self.t.flush_rest != NULL or self.t.is_news
                  or self.t.is_confirm_new or self.t.over != NULL or self.t.over_rest != NULL
                  or self.t.is_working or self.t.jobs != NULL or self.t.is_expiring
                  or self.t.blocked_links != NULL or self.t.dirty_logs != NULL)
        if not is_due and not self.t.is_syncing:
            is_due = bool(self.waiting) or (self.t.held != NULL and self.t.stuck == NULL)
            if self.t.stuck == NULL:
                is_due = is_due or bool(self.commits) or (
                    self.t.n_confirms != 0 and self.t.linger_until_ns == 0
                    and self.t.n_full_logs == 0)
        if (is_due or self.turns or self.late_turns or self.answers or self.leaving
                or self.ended):
            self.is_scheduled = True
            self.events.call_soon(self.turn)

    def turn(self) -> None:
        """Begin a portion: hear the links that wait for it, have the tick, and go on with what
        takes long. Called by the event loop."""
        if self.is_over:
            return
        loop_clock(&self.t)
        loop_begin_portion(&self.t, PORTION_NS)
        try:
            self.hear_links()
            loop_grant(&self.t)
            self.tick()
            self.is_jobs_turn = not self.is_jobs_turn
            if self.is_jobs_turn:
                self.run_jobs()
                self.hear_late_link()
            else:
                self.hear_late_link()
                self.run_jobs()
            if self.answers:
                self.answer()
            if self.leaving or self.ended:
                self.let_go_links()
        finally:
            self.is_scheduled = False
            self.kick()

    def on_found(self) -> None:
        """Sockets of wires have something: tell them. Called by the event loop."""
        cdef watch_t* watch = &self.t.watch
        cdef epoll_event* event
        cdef Wire wire              # which may be closed by what it hears
        cdef Py_ssize_t asks = 1 + len(self.links) // FOUND_EVENTS
        cdef bint has_more = True
        cdef i64 until_ns = 0
        # Those that wait for their turn are found again and again: no more than once in here. When
        # the portion is over all that come are put in a line, for a while: somebody who asks for
        # little may be behind thousands that end.
        while has_more:
            asks -= 1
            has_more = watch_ask(watch) and asks > 0
            event = watch_next(watch)
            while event != NULL:
                wire = <Wire>event.data.ptr
                wire.on_event(event.events)
                event = watch_next(watch)
            if has_more and self.t.is_spent:
                if until_ns == 0:
                    until_ns = clock_ns() + FOUND_NS
                has_more = not self.t.portion_units and clock_ns() < until_ns

    cdef void hear_links(self):
        """Hear those that wait, as far as the portion goes."""
        cdef list turns = self.turns
        cdef Py_ssize_t i
        self.turns = []
        for i in range(len(turns)):
            if self.t.is_spent:
                self.turns = turns[i:] + self.turns
                break
            (<Wire>turns[i]).take_turn()

    cdef void hear_late_link(self):
        """Hear the first of those that kept the loop busy, and others while the portion lasts."""
        cdef list turns = self.late_turns
        cdef Py_ssize_t i
        if not turns:
            return
        loop_grant(&self.t)
        self.late_turns = []
        for i in range(len(turns)):
            if self.t.is_spent:
                self.late_turns = turns[i:] + self.late_turns
                break
            (<Wire>turns[i]).take_turn()

    cdef void let_go_links(self):
        """Hear those whose peers say no more while the portion lasts, and let go of those that have
        gone, one at least: thousands may go at once."""
        loop_grant(&self.t)
        while self.leaving:
            (<Wire>self.leaving.popleft()).take_turn()
            if loop_look(&self.t):
                break
        while self.ended:
            (<Wire>self.ended.popleft()).let_go()
            if loop_look(&self.t):
                break

    cdef void run_jobs(self):
        """Go on with what is no link's."""
        if self.t.is_expiring:
            loop_grant(&self.t)
            with nogil:
                loop_expire(&self.t)
        if self.t.over_rest != NULL:
            loop_grant(&self.t)
            with nogil:
                loop_enforce_rest(&self.t)
        if self.t.jobs != NULL:
            loop_grant(&self.t)
            with nogil:
                loop_run_jobs(&self.t)
        if self.returned and self.t.n_orphans == 0:
            self.answers.extend(self.returned)      # thousands may wait for the same
            self.returned = []

    cdef inline void open_portion(self):
        """Work begins: in the portion of this iteration, or in a new one when the last is long
        over. Whatever has worked since then has a turn scheduled."""
        if not self.is_scheduled and self.t.now_ns >= self.t.portion_ends_ns:
            loop_begin_portion(&self.t, PORTION_NS)

    def tick(self) -> None:
        """Deliver, store, confirm and send what has gathered. Part of each turn, or to settle."""
        cdef link_t* l
        if self.is_over:
            return
        with nogil:
            loop_tick(&self.t)
        if self.t.copies != NULL:
            self.look_behind()
        if not self.t.is_syncing and (
                self.t.n_batch or self.waiting or self.t.n_sync_fds > MOST_WAITING_FILES or (
                    (self.commits or self.t.held != NULL) and self.t.stuck == NULL)):
            self.start_sync()
        if self.t.linger_until_ns > self.linger_set_ns:
            self.set_linger()
        while self.t.blocked_links != NULL:
            l = self.t.blocked_links
            self.t.blocked_links = l.blocked_next
            (<Wire>l.owner).watch_output()
        if self.t.over_consumers != NULL:
            self.tell_over()
        if self.t.is_news:
            self.t.is_news = False
            self.on_news()
            self.release_held()
        if self.t.stuck != NULL and self.retry_timer is None:
            self.retry_timer = self.events.call_later(0.5, self.retry)
        if self.t.is_release_due and self.crowd:
            self.release_crowd()
        self.t.n_reads = 0
        self.kick()

    cdef consumer_t* next_over(self):
        """Take the first off the list of consumers that are over; its reference is the caller's."""
        cdef consumer_t* k = self.t.over_consumers
        self.t.over_consumers = k.reader.over_next
        k.reader.is_over = False
        return k

    cdef void tell_over(self):
        """Tell sessions of consumers that have had all they asked for: behind the deliveries."""
        cdef consumer_t* k
        while self.t.over_consumers != NULL:
            k = self.next_over()
            if not k.is_cancelled:
                (<Wire>k.chan.link.owner).tell_over(k)
            consumer_unref(k)

    cdef void set_due_timer(self):
        """Have expired messages looked for when the first of them can be there."""
        cdef i64 wait_ms
        loop_clock(&self.t)
        wait_ms = self.t.dues[0].due_ms - self.t.now_ms
        if self.due_timer is not None:
            self.due_timer.cancel()
        wait_ms = DUE_PAUSE_MS if wait_ms < DUE_PAUSE_MS else wait_ms
        wait_ms = 3600000 if wait_ms > 3600000 else wait_ms
        self.due_timer_ms = self.t.now_ms + wait_ms
        self.due_timer = self.events.call_later(wait_ms / 1000.0, self.expire)

    def expire(self) -> None:
        """Expire what is due, in the next turn. Called by the event loop."""
        self.due_timer = None
        self.due_timer_ms = 0
        self.t.is_expiring = True
        self.kick()

    def index(self) -> None:
        """Look for deadlines in what was there at the start, for a tenth of the time.
        Called by the event loop."""
        cdef i64 began_ns = clock_ns()
        self.index_timer = None
        if self.is_over:
            return
        with nogil:
            loop_index(&self.t)
        if self.t.unindexed != NULL:
            pause_s = max(_INDEX_PAUSE_S, (clock_ns() - began_ns) * 9e-9)
            self.index_timer = self.events.call_later(pause_s, self.index)
        self.kick()

    def retry(self) -> None:
        """Try once more to write the queues that found no room. Called by the event loop."""
        cdef queue_t* q = self.t.stuck
        self.retry_timer = None
        while q != NULL:
            queue_touch(q)
            q = q.stuck_next
        self.kick()

    def try_parked(self) -> None:
        """Send on what could not be moved before. Called by the event loop."""
        cdef bint is_whole
        self.parked_timer = None
        if self.is_over:
            return
        loop_clock(&self.t)
        with nogil:
            is_whole = loop_try_parked(&self.t)
        if not is_whole:
            self.parked_timer = self.events.call_later(_TURN_PAUSE_S, self.try_parked)
        self.kick()

    cdef void hold(self, Wire link):
        """A publish waits until the disk has room; `release_held` lets the link go on."""
        self.held.append(link)

    def release_held(self) -> None:
        """Let publishers go on when there is room again."""
        cdef list held = self.held
        if self.t.is_held or not held:
            return
        self.held = []
        for link in held:
            (<Wire>link).release_hold()

    cdef void hold_crowd(self, Wire link):
        """Do not read from a publisher until its queue has drained, five milliseconds at most."""
        self.crowd.append(link)
        if self.crowd_timer is None:
            self.crowd_timer = self.events.call_later(0.005, self.release_crowd)

    cdef void end_turn(self, Wire link):
        """Hear the others before this link, which has much for us to do, or came too late."""
        if not link.is_in_turns:
            link.is_in_turns = True
            is_late = self.t.look_ns < link.t.late_until_ns
            (self.late_turns if is_late else self.turns).append(link)
        self.kick()

    cdef void hear_last(self, Wire link):
        """Hear all others before this link, whose peer says no more."""
        if not link.is_in_turns:
            link.is_in_turns = True
            self.leaving.append(link)
        self.kick()

    cdef void end_link(self, Wire link):
        """Let go of this link, whose peer has gone, behind what others ask for."""
        self.ended.append(link)
        self.kick()

    def wake_patient(self) -> None:
        """Use credit that came in small amounts."""
        self.patient_timer = None
        loop_wake_patient(&self.t)
        self.kick()

    def release_crowd(self) -> None:
        """Let publishers go on: a crowd has gone, or they have waited long enough."""
        cdef list crowd = self.crowd
        self.t.is_release_due = False
        if self.crowd_timer is not None:
            self.crowd_timer.cancel()
            self.crowd_timer = None
        if self.t.is_behind and not self.is_over:
            self.crowd_timer = self.events.call_later(0.005, self.release_crowd)
            return
        self.crowd = []
        for link in crowd:
            (<Wire>link).go(STOP_CROWD)

    cdef void report(self, object error):
        """Somebody who was told something has raised: the event loop says so. Others go on."""
        self.events.call_exception_handler({"message": "a callback has raised", "exception": error})

    cdef void fail(self, str path, int error):
        if not self.is_over:
            self.is_over = True
            self.on_fatal(path, error)

    # ---- syncing

    cdef int sync_found(self) except -1:
        """Have all that was found at the start on disk. Raises OSError."""
        if self.is_found_synced or not self.t.sync:
            return 0
        if self.t.dir_fd < 0:
            os.sync()
        elif sync_all(self.t.dir_fd):
            raise OSError(errno, os.strerror(errno))
        self.is_found_synced = True
        return 0

    def sync_file(self, int fd, callback) -> None:
        """Call `callback()` on the loop once what was written to fd so far is on disk.

        The descriptor is duplicated; a file that cannot be synced is fatal (see on_fatal)."""
        cdef struct_stat found
        if self.t.sync:
            if fstat(fd, &found):
                raise OSError(errno, os.strerror(errno))
            file = (found.st_dev, found.st_ino)
            if file not in self.waiting_files:
                if loop_sync_too(&self.t, fd):
                    self.fail(f"descriptor {fd}", errno)
                    return
                self.waiting_files.add(file)
        self.waiting.append(callback)
        self.kick()

    def after_sync(self, callback, refused=None) -> None:
        """Call `callback()` on the loop once what was published to durable queues with a wish for
        a sync (a commit) is on disk; or `refused()`. See the stub."""
        if refused is None:
            self.commits.append(callback)
        elif self.t.is_below:
            self.answers.append(refused)
        else:
            self.commits.append(_Commit(callback, refused))
        self.kick()

    def when_returned(self, callback) -> None:
        """Call `callback()` when no delivery of a channel that has gone is on its way back to its
        queue: at once, or later on the loop."""
        if self.t.n_orphans == 0:
            callback()
        else:
            self.returned.append(callback)

    cdef void set_linger(self):
        """Have a tick when a sync has waited long enough for more publishes."""
        cdef itimerspec value
        self.linger_set_ns = self.t.linger_until_ns
        memset(&value, 0, sizeof(itimerspec))
        value.it_value.tv_sec = self.linger_set_ns // 1000000000
        value.it_value.tv_nsec = self.linger_set_ns % 1000000000
        timerfd_settime(self.linger_fd, TFD_TIMER_ABSTIME, &value, NULL)

    def on_lingered(self) -> None:
        """A sync has waited long enough. Called by the event loop."""
        cdef u64 value
        if c_read(self.linger_fd, &value, 8) == 8 and self.t.linger_until_ns:
            self.tick()

    cdef void swap_files(self):
        """What has gathered is synced next: the worker is idle."""
        cdef int* fds = self.t.run_fds
        self.t.run_fds = self.t.sync_fds
        self.t.sync_fds = fds
        self.t.n_run_fds = self.t.n_sync_fds
        self.t.n_sync_fds = 0
        self.t.is_run_whole = self.t.is_whole_wanted
        self.t.is_whole_wanted = False
        self.t.is_run_large = self.t.is_large_wanted
        self.t.is_large_wanted = False
        self.t.cap_sync_fds, self.t.cap_run_fds = self.t.cap_run_fds, self.t.cap_sync_fds

    cdef void start_sync(self):
        if self.t.stuck == NULL:
            loop_gather_files(&self.t)
        if self.t.copies != NULL:
            self.awaited = self.t.copies.mark(self.t.copies)
        if self.t.stuck == NULL:                # else a queue has got no descriptor
            self.t.n_syncs += 1
        self.running, self.waiting = self.waiting, []
        self.waiting_files.clear()
        if self.t.stuck == NULL:
            self.running += self.commits
            self.commits = []
        if self.t.n_sync_fds == 0 and not self.t.is_whole_wanted:
            self.synced_here()
            return
        self.swap_files()
        if self.is_quiet() or (self.worker is None and not self.start_worker()):
            with nogil:
                self.worker_error = sync_files(&self.t)
            if self.t.sync_ns > INLINE_STALL_NS:
                self.t.inline_from_ns = clock_ns() + self.t.sync_ns * INLINE_PAUSE
            self.end_sync()
            with nogil:
                loop_flush_links(&self.t)
            return
        self.t.is_syncing = True
        self.sync_began_ns = clock_ns()
        event_add(self.submit_fd, 1)

    cdef bint is_quiet(self):
        """Whether nobody but those who wait for this sync would notice that the loop waits for it:
        syncs are short here, and no other link was read in this iteration.

        A hand-over to the worker costs two wake-ups of a thread, more than a short sync."""
        if self.t.n_run_fds > MAX_INLINE_FILES or self.t.file_ns > INLINE_SYNC_NS:
            return False
        if self.t.copies != NULL:               # they do the same meanwhile
            return False
        if self.t.is_run_whole or self.t.is_run_large:
            return False
        if self.t.n_reads > self.t.n_batch + <u32>len(self.running):
            return False
        return clock_ns() >= self.t.inline_from_ns

    cdef str failed_path(self):
        """Of the file that could not be synced."""
        cdef int fd = self.t.run_fds[0] if self.t.n_run_fds else self.t.dir_fd
        return os.readlink(f"/proc/self/fd/{fd}")

    cdef void end_sync(self):
        if self.worker_error:
            self.fail(self.failed_path(), self.worker_error)
        else:
            histogram_add(&self.t.sync_times, self.t.sync_ns)
            self.synced_here()

    cdef void synced_here(self):
        """A sync is over on this machine: it is whole once the copies have the same."""
        if self.t.copies != NULL and not self.t.copies.have(self.t.copies, self.awaited):
            self.is_awaited = self.t.is_syncing = True
            if self.t.is_below:
                self.refuse_waiting()
        else:
            self.finish_sync()

    @property
    def is_below(self) -> bool:
        """Whether publishers are told that there are too few copies. See the stub."""
        return self.t.is_below

    @is_below.setter
    def is_below(self, bint value) -> None:
        if value == self.t.is_below:
            return
        self.t.is_below = value
        if value and not self.is_over:
            self.t.is_confirm_new = self.t.n_confirms != 0
            self.refuse_waiting()
            self.kick()

    cdef void refuse_waiting(self):
        """There are too few copies: tell who publishes, unless the sync of it still runs here. All
        others wait on: for them nothing but time has been lost."""
        if self.is_awaited:
            loop_finish_batch(&self.t, False)
            self.running = self.refuse(self.running)
        self.commits = self.refuse(self.commits)

    cdef list refuse(self, list callbacks):
        """Have those told that want to be. Returns: the others."""
        self.answers.extend([(<_Commit>each).refused for each in callbacks
                             if isinstance(each, _Commit)])
        return [each for each in callbacks if not isinstance(each, _Commit)]

    def wait_for_copies(self, int fd) -> None:
        """Be told by an eventfd of what copies have. See the stub."""
        self.copied_fd = c_dup(fd)
        if self.copied_fd < 0:
            raise OSError(errno, os.strerror(errno))
        self.events.add_reader(self.copied_fd, self.on_copied)

    def on_copied(self) -> None:
        """Copies may have what is waited for. Called by the event loop."""
        cdef bint has_ticked = False
        event_take(self.copied_fd)
        if self.is_over:
            return
        self.look_behind()
        if self.is_awaited and self.t.copies.have(self.t.copies, self.awaited):
            self.is_awaited = self.t.is_syncing = False
            self.finish_sync()
            has_ticked = True
        while self.copied and self.t.copies.have(self.t.copies, self.copied[0][0]):
            self.answers.append(self.copied.popleft()[1])
        if self.answers or has_ticked:
            self.answer()
            self.tick()

    cdef void look_behind(self):
        """Have what was changed sent; do not read those that send much while a copy is far behind.
        """
        cdef bint is_behind
        with nogil:
            is_behind = self.t.copies.wake(self.t.copies)
        if is_behind != self.t.is_behind:
            self.t.is_behind = is_behind
            if self.crowd:
                self.release_crowd()

    def when_copied(self, callback) -> None:
        """Call `callback()` once what was changed so far is where it has to be. See the stub."""
        if self.t.copies == NULL:
            callback()
            return
        self.copied.append((self.t.copies.mark(self.t.copies), callback))

    cdef void finish_sync(self):
        cdef list callbacks = self.running
        self.running = []
        loop_finish_batch(&self.t, True)
        self.t.n_synced = self.t.n_syncs
        loop_release_held(&self.t)
        self.answers.extend(callbacks)
        self.answer()
        self.kick()

    cdef void answer(self):
        """Tell those who waited for a sync while the portion lasts: thousands may wait for one."""
        loop_grant(&self.t)
        while self.answers:
            callback = self.answers.popleft()
            try:
                callback()
            except Exception as error:
                self.report(error)
            if loop_look(&self.t):
                break

    cdef bint start_worker(self) except -1:
        """False when there can be none now: no thread or descriptor, or the interpreter ends."""
        if self.submit_fd < 0:
            self.submit_fd = eventfd(0, EFD_CLOEXEC)
        if self.done_fd < 0:
            self.done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.submit_fd < 0 or self.done_fd < 0:
            return False
        worker = threading.Thread(target=self.work, name="sync", daemon=True)
        try:
            worker.start()
        except RuntimeError:
            return False
        self.worker = worker
        self.events.add_reader(self.done_fd, self.on_synced)
        return True

    def work(self) -> None:
        """The worker thread: one sync per wake-up, until told to stop."""
        cdef u64 value = 0
        with nogil:
            while True:
                if c_read(self.submit_fd, &value, 8) != 8:
                    if errno == EINTR:
                        continue
                    break
                if value >= WORK_STOP:
                    break
                self.worker_error = sync_files(&self.t)
                event_add(self.done_fd, 1)

    def on_synced(self) -> None:
        """The worker has finished a sync."""
        cdef u64 value
        if c_read(self.done_fd, &value, 8) != 8:
            return
        self.t.is_syncing = False
        self.end_sync()
        self.tick()

    def finish(self) -> None:
        """Sync what waits for it, and wait for that: then what was moved is deleted where it was.
        Nothing is confirmed from now on. For an orderly stop, before `stop`. Raises OSError."""
        cdef pollfd done
        self.retry()                # what found no room may find it now
        self.is_over = True
        with nogil:
            loop_finish_hauls(&self.t)
            loop_begin_portion(&self.t, FINISH_NS)      # nobody else waits
            loop_run_queues(&self.t)
            loop_flush_logs(&self.t)
            if self.t.has_lost:
                loop_forget_lost(&self.t)
        if self.is_awaited:         # nothing is acknowledged any more
            self.is_awaited = self.t.is_syncing = False
        if self.t.is_syncing:
            done.fd = self.done_fd
            done.events = POLLIN
            with nogil:
                c_poll(&done, 1, -1)
                event_take(self.done_fd)
            self.t.is_syncing = False
            self.check_sync()
        loop_gather_files(&self.t)
        self.swap_files()
        if self.t.n_run_fds or self.t.is_run_whole:
            with nogil:
                self.worker_error = sync_files(&self.t)
            self.check_sync()
        if self.t.stuck == NULL:    # else what was moved stays where it was
            self.t.n_syncs += 1
            self.t.n_synced = self.t.n_syncs
            loop_release_held(&self.t)

    cdef int check_sync(self) except -1:
        """Raise OSError when the last sync failed."""
        if self.worker_error:
            raise OSError(self.worker_error, os.strerror(self.worker_error), self.failed_path())
        return 0

    def stop(self) -> None:
        """End the worker thread, close all descriptors. Nothing is delivered, confirmed or synced
        from now on. Idempotent."""
        self.is_over = True
        if self.worker is not None:
            event_add(self.submit_fd, WORK_STOP)
            self.worker.join()
            self.worker = None
            self.events.remove_reader(self.done_fd)
        if self.linger_fd >= 0:
            self.events.remove_reader(self.linger_fd)
            self.events.remove_reader(self.t.watch.fd)
        if self.copied_fd >= 0:
            self.events.remove_reader(self.copied_fd)
        self.close_descriptors()

    # ---- time

    cdef void find_dead(self, list links):
        """Notice connections that have ended without our being told: nobody watches a link that is
        stopped, and uvloop stops watching at a reset, although there may be data before it."""
        cdef Py_ssize_t i, n = len(links)
        cdef pollfd fds[LOOK_PORTION]
        for i in range(n):
            fds[i].fd = (<Wire>links[i]).t.wire.fd
            # Errors and the end are always told. One that leaves while it is held has gone for
            # good: its descriptor is worth more than a publish that was never confirmed.
            fds[i].events = HUNG_UP if (<Wire>links[i]).t.stops & STOP_HELD else 0
            fds[i].revents = 0
        with nogil:
            c_poll(fds, n, 0)
        dead = [links[i] for i in range(n) if fds[i].revents]
        for link in dead:
            (<Wire>link).end()
        if dead and self.held:
            self.held = [link for link in self.held if not (<Wire>link).t.stops & STOP_ENDED]

    def check_links(self) -> bool:
        """Send heartbeats that are due, drop links that are silent or late, and have channels
        closed that hold a delivery for longer than its queue allows; a portion of them.
        Called eight times a second or so; true when there are more, to be asked for at once.

        Source: docs/protocol.md, connection."""
        cdef list links = []
        cdef link_t* l = NULL
        loop_clock(&self.t)
        if (self.t.large_peak > self.t.large_bytes + TRIM_BYTES
                and self.t.now_ns > self.trimmed_ns + LOOK_EVERY_NS):
            self.t.large_peak = self.t.large_bytes
            self.trimmed_ns = self.t.now_ns
            malloc_trim(0)              # else what was freed stays with the process
        while len(links) < LOOK_PORTION:
            l = wheel_take(&self.t)
            if l == NULL:
                break
            links.append(<Wire>l.owner)
        self.find_dead(links)
        self.is_looking = False
        for link in links:
            try:
                self.check_link(link)
            except Exception as error:
                (<Wire>link).fail(error)
            finally:
                if (<Wire>link).t.state != LINK_CLOSED:
                    wheel_add(&self.t, &(<Wire>link).t, link_look_ns(&(<Wire>link).t))
        return l != NULL or self.is_looking

    cdef check_link(self, Wire link):
        """Do for one link what its clock asks for."""
        cdef link_t* l = &link.t
        cdef i64 now = self.t.now_ns
        if l.state == LINK_CLOSED:
            return
        link_drop_rings(l)
        link.look()
        if l.is_oversized:
            link.tell_oversized()
        self.is_looking |= link.tell_overdue()
        if l.deadline_ns and now > l.deadline_ns:
            link.session.on_timeout("time for handshake or close is over")
        elif l.heartbeat_ns and l.state == LINK_OPEN:
            # A link that we do not read cannot be blamed for silence, but for not reading.
            if not l.stops and now - l.wire.last_read_ns > l.heartbeat_ns + l.protocol.grace_ns:
                link.session.on_timeout("no heartbeat")
            elif (l.stops & STOP_CHOKED
                    and now - l.wire.last_sent_ns > 2 * l.heartbeat_ns + 5000000000):
                link.session.on_timeout("it does not read what it asked for")
            elif not l.wire.is_blocked and link_beat_is_due(l):
                l.protocol.heartbeat(l)
                self.kick()

# Loop: the class that owns loop_t, runs the tick at the end of each iteration and the sync worker.
#
# Runs on any asyncio loop that has call_soon, add_reader and add_writer (uvloop, asyncio). The
# worker thread waits on an event descriptor and only ever calls fdatasync, syncfs and close,
# without the GIL.
import os
import threading

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int initval, int flags)
    enum:
        EFD_CLOEXEC
        EFD_NONBLOCK

cdef extern from "<unistd.h>" nogil:
    ssize_t c_read "read"(int fd, void* buf, size_t n)
    ssize_t c_write "write"(int fd, const void* buf, size_t n)

cdef enum:
    WORK_STOP = 1 << 20


cdef class Loop:
    """Owner of the message path's shared state: input, block pool, tick lists, confirm batches.

    Args: `events`, the running asyncio loop; `data_dir`, an existing directory whose file system is
    synced; `sync`, whether confirms wait for the disk; `on_fatal(path: str, error: int)`, called
    once when a write or sync failed: nothing is confirmed from then on and the broker must stop;
    `on_damage()`, called when a store has lost records or could not be read.
    """
    cdef loop_t t
    cdef object events
    cdef object on_fatal
    cdef object on_damage
    cdef object worker
    cdef list waiting           # callbacks of the next sync
    cdef list running           # callbacks of the sync in flight
    cdef set links
    cdef list held              # links whose publishes wait for consumers
    cdef object hold_timer
    cdef object patient_timer
    cdef bint is_scheduled
    cdef bint is_over           # a write failed, or it was stopped: no confirm leaves any more
    cdef int submit_fd
    cdef int done_fd
    cdef int worker_error

    def __cinit__(self):
        memset(&self.t, 0, sizeof(loop_t))
        self.t.dir_fd = self.submit_fd = self.done_fd = -1
        self.t.input = <u8*>malloc(BLOCK_SIZE)
        if self.t.input == NULL:
            raise MemoryError()

    def __init__(self, events, data_dir, bint sync, on_fatal, on_damage):
        self.events = events
        self.on_fatal = on_fatal
        self.on_damage = on_damage
        self.waiting = []
        self.running = []
        self.links = set()
        self.held = []
        self.t.sync = sync
        self.t.dir_fd = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        loop_clock(&self.t)

    def __dealloc__(self):
        cdef u32 i
        self.close_descriptors()
        for i in range(self.t.pool.n):
            free(self.t.pool.free_blocks[i])
        free(self.t.input)
        free(self.t.confirms)
        free(self.t.batch)
        for i in range(self.t.n_patient):
            consumer_unref(self.t.patient[i])
        free(self.t.patient)
        free(self.t.sync_queues)
        free(self.t.sync_fds)
        free(self.t.run_fds)

    cdef void close_descriptors(self):
        cdef u32 i
        for i in range(self.t.n_sync_fds):
            c_close(self.t.sync_fds[i])
        self.t.n_sync_fds = 0
        for fd in (self.t.dir_fd, self.submit_fd, self.done_fd):
            if fd >= 0:
                c_close(fd)
        self.t.dir_fd = self.submit_fd = self.done_fd = -1

    @property
    def sync(self) -> bool:
        """Whether confirms and definitions wait for the disk."""
        return self.t.sync

    @sync.setter
    def sync(self, bint value) -> None:
        self.t.sync = value

    # ---- the tick

    cdef void kick(self):
        """Have the tick run at the end of this iteration when there is something for it to do."""
        if self.is_scheduled or self.is_over:
            return
        if self.t.n_patient and self.patient_timer is None:
            self.patient_timer = self.events.call_later(0.001, self.wake_patient)
        if (self.t.tick_queues != NULL or self.t.flush_links != NULL or self.t.error
                or (not self.t.is_syncing and (self.t.n_confirms or self.waiting))):
            self.is_scheduled = True
            self.events.call_soon(self.tick)

    def tick(self) -> None:
        """Deliver, store, confirm and send what has gathered.
        Called by the event loop, or to settle."""
        cdef link_t* l
        self.is_scheduled = False
        if self.is_over:
            return
        with nogil:
            loop_tick(&self.t)
        if self.t.error:
            self.fail(self.t.error_path.decode("utf-8", "replace"), self.t.error)
            return
        while self.t.blocked_links != NULL:
            l = self.t.blocked_links
            self.t.blocked_links = l.blocked_next
            (<Link>l.owner).watch_output()
        if self.t.is_damage_new:
            self.t.is_damage_new = False
            self.on_damage()
        if self.t.is_release_due and self.held:
            self.release_held()
        if not self.t.is_syncing and (self.t.n_batch or self.waiting):
            self.start_sync()
        self.kick()

    cdef void hold(self, Link link):
        """Do not read from a publisher until its queue has drained, two milliseconds at most."""
        self.held.append(link)
        if self.hold_timer is None:
            self.hold_timer = self.events.call_later(0.005, self.release_held)

    def wake_patient(self) -> None:
        """Use credit that came in small amounts."""
        self.patient_timer = None
        loop_wake_patient(&self.t)
        self.kick()

    def release_held(self) -> None:
        """Let publishers go on: a crowd has gone, or they have waited long enough."""
        cdef list held = self.held
        self.t.is_release_due = False
        if self.hold_timer is not None:
            self.hold_timer.cancel()
            self.hold_timer = None
        self.held = []
        for link in held:
            (<Link>link).release_hold()

    cdef void fail(self, str path, int error):
        if not self.is_over:
            self.is_over = True
            self.on_fatal(path, error)

    # ---- syncing

    def sync_file(self, int fd, callback) -> None:
        """Call `callback()` on the loop once what was written to fd so far is on disk.

        The descriptor is duplicated; a file that cannot be synced is fatal (see on_fatal)."""
        if self.t.sync and loop_add_sync_fd(&self.t, c_dup(fd)):
            self.fail(f"descriptor {fd}", errno)
            return
        self.waiting.append(callback)
        self.kick()

    def after_sync(self, callback) -> None:
        """Call `callback()` on the loop once what was published to durable queues with a wish for
        a sync (a commit) is on disk."""
        self.waiting.append(callback)
        self.kick()

    cdef void start_sync(self):
        cdef int* fds
        cdef u64 one = 1
        loop_gather_files(&self.t)
        if self.t.error:
            self.fail(self.t.error_path.decode("utf-8", "replace"), self.t.error)
            return
        self.running, self.waiting = self.waiting, []
        if self.t.n_sync_fds == 0:
            self.finish_sync()
            return
        fds = self.t.run_fds                    # the worker is idle: swap the two lists
        self.t.run_fds = self.t.sync_fds
        self.t.sync_fds = fds
        self.t.n_run_fds = self.t.n_sync_fds
        self.t.n_sync_fds = 0
        self.t.cap_sync_fds, self.t.cap_run_fds = self.t.cap_run_fds, self.t.cap_sync_fds
        self.t.is_syncing = True
        if self.worker is None and not self.start_worker():
            return
        c_write(self.submit_fd, &one, 8)

    cdef void finish_sync(self):
        cdef list callbacks = self.running
        self.running = []
        loop_finish_batch(&self.t)
        for callback in callbacks:
            callback()
        self.kick()

    cdef bint start_worker(self) except -1:
        self.submit_fd = eventfd(0, EFD_CLOEXEC)
        self.done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.submit_fd < 0 or self.done_fd < 0:
            self.fail("event descriptor", errno)
            return False
        worker = threading.Thread(target=self.work, name="sync", daemon=True)
        try:
            worker.start()
        except RuntimeError:            # no more threads, or the interpreter is about to end
            self.fail("sync", EAGAIN)
            return False
        self.worker = worker
        self.events.add_reader(self.done_fd, self.on_synced)
        return True

    def work(self) -> None:
        """The worker thread: one sync per wake-up, until told to stop."""
        cdef u64 value = 0, one = 1
        with nogil:
            while True:
                if c_read(self.submit_fd, &value, 8) != 8:
                    if errno == EINTR:
                        continue
                    break
                if value >= WORK_STOP:
                    break
                self.worker_error = sync_files(&self.t)
                c_write(self.done_fd, &one, 8)

    def on_synced(self) -> None:
        """The worker has finished a sync."""
        cdef u64 value
        if c_read(self.done_fd, &value, 8) != 8:
            return
        if self.worker_error:
            self.fail("sync", self.worker_error)
            return
        self.t.is_syncing = False
        self.finish_sync()

    def stop(self) -> None:
        """End the worker thread, close all descriptors. Nothing is delivered, confirmed or synced
        from now on. Idempotent."""
        cdef u64 stop = WORK_STOP
        self.is_over = True
        if self.worker is not None:
            c_write(self.submit_fd, &stop, 8)
            self.worker.join()
            self.worker = None
            self.events.remove_reader(self.done_fd)
        self.close_descriptors()

    # ---- time

    def check_links(self) -> None:
        """Send heartbeats that are due and drop links that are silent or late.
        Called every second or so.

        Source: amqp reference sections 1 and 3."""
        cdef link_t* l
        cdef i64 now
        loop_clock(&self.t)
        now = self.t.now_ns
        for link in list(self.links):
            l = &(<Link>link).t
            if l.deadline_ns and now > l.deadline_ns:
                (<Link>link).session.on_timeout("time for handshake or close is over")
            elif l.heartbeat_ns and l.state == LINK_OPEN:
                if now - l.last_read_ns > l.heartbeat_ns + 5000000000:
                    (<Link>link).session.on_timeout("no heartbeat")
                elif now - l.last_sent_ns >= l.heartbeat_ns // 2 - 500000000:
                    (<Link>link).write(b"\x08\x00\x00\x00\x00\x00\x00\xce")

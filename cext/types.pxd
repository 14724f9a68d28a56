# Types: every struct of the message path on one page, each field with unit and meaning.
#
# Structs point at structs; the cdef classes of the same name (Queue, Link, Exchange, Loop) own them
# and keep each other alive. Nothing here is a Python object, so all of it is usable without the
# GIL. Positions are byte offsets in a segment file; tags are AMQP delivery tags; times are
# nanoseconds of CLOCK_MONOTONIC inside and Unix milliseconds on disk.
# Longer than 500 lines: structs point at each other across all rooms.
from bytes cimport i64, u8, u16, u32, u64
from match cimport MATCH_LOOK, dest_t, filter_steps_t, match_t, reached_t, targets_t

cdef struct seg_t
cdef struct queue_t
cdef struct consumer_t
cdef struct chan_t
cdef struct wire_t
cdef struct link_t
cdef struct loop_t
cdef struct tx_publish_t
cdef struct exchange_t
cdef struct dedup_rewrite_t
cdef struct dedup_t
cdef struct history_t
cdef struct sample_t
cdef struct passing_t
cdef struct mark_t
cdef struct reader_t
cdef struct stream_t
cdef struct job_t
cdef struct publish_job_t
cdef struct haul_t
cdef struct mover_t
cdef struct mqtt_t
cdef struct session_t
cdef struct mlog_t
cdef struct rmsg_t
cdef struct rtree_t
cdef struct mfact_t
cdef struct msession_t
cdef struct rstore_t
cdef struct slog_t
cdef struct summed_t
cdef struct vacant_t

ctypedef bint (*job_step_t)(loop_t* loop, job_t* job) noexcept nogil

cdef extern from *:
    """
    typedef _Bool flag_t;
    #define NEVER 0x7fffffffffffffffll
    #define NO_LIMIT 0xffffffffffffffffull
    #define TLS_PROVIDER "lavinmq.tls_provider_t"
    """
    ctypedef bint flag_t        # of a struct: one byte, where a bint takes four
    i64 NEVER
    u64 NO_LIMIT
    const char* TLS_PROVIDER

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        void* ptr

    cdef struct epoll_event:
        u32 events
        epoll_data_t data

cdef enum limits:
    BLOCK_SIZE = 262144         # pooled block: shared input, staged tail, read window, output
    SMALL_STAGE = 4096          # first staged tail of a queue
    MAX_BLOCKS = 512            # blocks in use above which staged tails stay small
    DENSE_CHANNELS = 4096       # a table by id up to here: its size is the peer's choice
    POOL_KEEP = 16              # free blocks kept for reuse
    SMALL_OUTPUT = 4096         # of a link, while more blocks than that are in use
    NAMES_SIZE = 512            # exchange and routing key: two short strings
    TAG_ROOM = 5                # bytes behind the tag of a consumer
    MAX_OUTPUT = 4194304        # unsent bytes of a link above which it is no longer read
    DELIVER_BUDGET = 2097152    # bytes one queue may deliver in a tick before others get their turn
    CROWD_BYTES = 131072        # ready bytes at which consumers get their turn before publishers
    MUCH_BYTES = 4096           # read at once from a link that waits while a copy is far behind
    KEEP_FILES = 16384          # with more stores than this, or fewer, none keeps its files open
    FILES_OF_A_STORE = 3        # that it may keep open: messages, deletions, and what is read
    TRIAL_NS = 60000000         # in which consumers must take TRIAL_BYTES to come first
    TRIAL_BYTES = 786432        # that is 13 MB/s
    TRIAL_LOOKS = 10            # a trial has at least so many ticks: the disk may have held us up
    SLOW_NS = 100000000         # how long consumers that did not are left out, doubled each time
    SLOW_MAX_NS = 1600000000    # up to this
    BATCH_PREFETCH = 64         # from this prefetch on credit is used in batches
    LARGE_SHARE = 1048576       # of the memory for large messages that no link is refused
    TRIM_BYTES = 16777216       # of that memory, freed, after which the kernel gets it back
    PORTION_NS = 1500000        # of long work in one turn of the loop, whoever it is for
    GRANT_NS = 500000           # of it that those get who come last, when nothing is left for them
    READ_UNITS = 300            # of 10 ns: a read that brings nothing
    LATE_READ = 16384           # bytes read at once while links wait for that: what is left is kept
    LATE_NS = 1000000           # of it after which a link has to wait for others
    LATE_FOR_NS = 5000000       # for so long, and as long as it does not come to its end
    LARGE_RECORD = 1048576      # bytes above which a message is written and read in pieces
    LOOK_UNITS = 10000          # of about 10 ns of work, after which the clock is looked at
    UNIT_SHIFT = 6              # one such unit for so many bytes that are copied, as a power of two
    INLINE_SYNC_NS = 1000000    # a sync that takes less of late may run in the loop's thread
    MAX_INLINE_FILES = 2        # and no more than so many files are synced there
    INLINE_STALL_NS = 20000000  # after one there that took longer
    INLINE_PAUSE = 10           # none does for so many times its length
    LINGER_MAX_NS = 5000000     # a sync waits for more publishes half its length, and no longer
    LINGER_CHANNELS = 64        # and only for so few channels that they are counted at once
    MAX_DEDUP_KEYS = 1048576    # of one cache, whatever it was declared with
    MAX_DEDUP_BYTES = 1 << 28   # of all caches, see budget_t
    MAX_HISTORY = 10000         # messages that one exchange keeps
    MAX_HISTORY_BYTES = 1 << 25     # of them
    MAX_HISTORIES_BYTES = 1 << 28   # of all exchanges
    N_BUCKETS = 20              # of a histogram, the last one without an upper bound
    FOUND_EVENTS = 64           # of sockets that are taken from the kernel at once
    FOUND_NS = 400000           # of asking for more of them when the portion is over
    LOOK_SLOTS = 16             # of the wheel of links, see wheel.pyx; a power of two
    LOOK_SLOT_NS = 125000000    # what each of them stands for
    LOOK_EVERY_NS = 1000000000  # every open link is looked at so often at least
    LOOK_PORTION = 512          # links that are looked at before others have their turn

# ---- numbers for management ----------------------------------------------------------------------

cdef struct tally_t:            # messages since start, of a channel or of a whole vhost
    u64 publish
    u64 confirm
    u64 deliver
    u64 deliver_no_ack
    u64 get
    u64 get_no_ack
    u64 ack
    u64 reject                  # by the client, with or without requeue
    u64 redeliver
    u64 return_unroutable

cdef struct histogram_t:        # durations, see histogram.pyx for the bounds of its buckets
    u64 counts[20]              # N_BUCKETS
    i64 sum_ns

# ---- messages ------------------------------------------------------------------------------------

cdef struct msg_t:              # a message on its way in: slices of the input, nothing owned
    exchange_t* exchange        # when it is known already, else NULL
    const u8* names             # exchange and routing key: two short strings back to back
    u32 names_len
    const u8* props             # property flags and properties, wire order
    u32 props_len
    u32 headers_at              # offset of the headers table's length in props, 0 = none
    u32 headers_len             # bytes of the headers table after its length
    u32 stamp_at                # offset of the timestamp property in props, 0 = none
    u32 reply_to_at             # offset of the reply-to property's length byte in props, 0 = none
    u32 expiration_at           # offset of the expiration's length byte in props, 0 = none
    u32 priority_at             # offset of the priority in props, 0 = none
    flag_t is_special           # it expires by itself, or names where it goes when it dies
    u32 cc_at                   # offset of the CC entry in props, 0 = none
    u32 bcc_at                  # the same for BCC
    const u8* body
    u64 body_len
    u64 size                    # bytes of the stored record

cdef struct rec_t:              # a stored record, sliced
    u32 seg                     # segment id
    u32 pos                     # where the record starts
    u32 size                    # bytes of the record
    u8 level                    # of a priority queue, else 0
    flag_t is_requeued          # it comes from the requeued ones, not from the cursor
    flag_t redelivered          # what clients are told
    u32 seq                     # of a stream: slot of its reader
    const u8* names
    u32 names_len
    const u8* props             # file order
    u32 props_len
    u32 headers_at
    u32 headers_len
    u32 stamp_at
    u32 expiration_at           # of the length byte
    const u8* extra             # headers that the broker adds on the way out, NULL = none
    u32 extra_len               # an entry of the first one's name in the headers is left out
    u32 bcc_at                  # offset in props of the BCC entry, which no client gets, 0 = none
    u32 bcc_len                 # its bytes
    const u8* body              # NULL = it is large and only in the file, at the record's end
    u64 body_len

# ---- storage -------------------------------------------------------------------------------------

cdef enum change_kind:          # of a file of the data directory
    CHANGE_MAKE = 1             # it is there, empty
    CHANGE_APPEND = 2           # bytes start to end were written, behind all that were there
    CHANGE_PATCH = 3            # bytes start to end were written, maybe over others
    CHANGE_TRUNCATE = 4         # it ends at `end`; what that adds is zeros
    CHANGE_HOLE = 5             # bytes start to end are zeros
    CHANGE_RENAME = 6           # a file or directory has the name `target`, whatever had it before
    CHANGE_REMOVE = 7
    CHANGE_MAKE_DIRECTORY = 8
    CHANGE_REMOVE_DIRECTORY = 9

# Paths are relative to the data directory, and there for the time of the call, as is fd, from which
# the bytes can be read, -1 when there are none. Called by any thread; calls no broker.
ctypedef void (*observe_t)(void* owner, u64 position, u8 kind, const char* path,
                           const char* target, int fd, const u8* data, i64 start,
                           i64 end) noexcept nogil

cdef struct observer_t:         # who is told of each change of a file, once it has been made
    observe_t note
    void* owner
    u64 position                # of the last note: they are counted from 1
    const char* root            # the data directory, NUL-terminated
    size_t root_len
    observer_t* next

cdef enum:
    JOURNALS = 3                # that there may be at once: for a backup, and for nodes that join
    OBSERVERS = JOURNALS + 2
    TOUCH_SLOTS = 64
    TOUCH_ALL = 0x7fffffffffffffff      # end of a change that may be anywhere in a file
    SUM_SPOILED = 64            # files that are remembered until somebody asks for them

cdef struct touches_t:          # notes of changes that take something back, in a file of their own
    int fd                      # behind whose end they are written; -1 = nobody wants them
    flag_t is_incomplete        # one could not be written
    u64 seen[TOUCH_SLOTS]       # of paths that were written over since somebody looked

cdef struct copies_t:           # of all files, on other machines: acknowledgements wait for them
    u64 (*mark)(copies_t* c) noexcept nogil     # what was changed so far is wanted: its position
    bint (*have)(copies_t* c, u64 position) noexcept nogil      # on as many disks as it has to be
    bint (*wake)(copies_t* c) noexcept nogil    # something may have been changed: are they behind?

cdef struct sum_tree_t:         # the files of a queue
    u64 key                     # of the directory's path
    u64 vhost                   # of that of the directory above
    sum_tree_t* next            # of its bucket
    summed_t* files             # the first one

cdef struct summed_t:           # one file
    u64 key                     # of its path
    summed_t* next              # of its bucket
    sum_tree_t* tree
    summed_t* tree_next
    summed_t* tree_before       # NULL = it is the first one
    u32 covered                 # bytes from its beginning that there are sums of
    u32 n_blocks
    u8* states                  # of each block, behind the sums
    u32 sums[1]                 # n_blocks of them

cdef struct sums_t:
    pthread_mutex_t lock
    summed_t** files            # buckets
    sum_tree_t** trees          # as many
    u32 n_buckets               # a power of two
    u32 n_files
    u32 n_bad                   # blocks that were found to be so, ever
    flag_t has_peers            # others have what is damaged here: nothing is given up
    u64 watched[3]              # keys of a file that is being read, and of directories above it
    flag_t is_touched           # one of them was changed since
    char* spoiled[SUM_SPOILED]  # paths, owned
    u32 n_spoiled

cdef struct proof_t:            # sums of a part of a file
    sums_t* table               # to tell of damage; NULL = nobody is told
    u64 key
    u64 right                   # position up to which it was compared
    u32 first                   # block
    u32 n                       # blocks
    u64 covered                 # as of summed_t
    char* path                  # below the data directory, behind the rest
    u8* states
    u32 sums[1]

cdef struct mark_t:             # a record of a stream's segment from which reading may begin
    u32 pos
    u32 index                   # records before it
    i64 at_ms                   # when it was stored

cdef struct seg_t:              # one segment file and its ack file
    u32 id
    u32 size                    # logical end: where the next record would start
    u32 count                   # records ever written
    u32 acked                   # records deleted
    u32* deleted                # min-heap of deleted positions that the cursor has not passed
    u32 n_deleted
    u32 cap_deleted
    u32* acks                   # positions deleted since the last flush
    u32 n_acks
    u32 cap_acks
    u32 ack_size                # bytes of the ack file
    int ack_fd                  # -1 when closed
    u32 written                 # records by its meta file, 0 = unknown
    u32 looked_acked            # `acked` when compaction looked at it last
    u32 n_fillers               # that compaction has made, or a walk has found
    u32 damaged_at              # last position found damaged, 0 = none: the file is kept
    u32 n_pins                  # bodies that are being sent from its file: no holes are made
    flag_t is_reserved          # finished with filling behind its data, and without a meta file
    i64 first_offset            # of a stream: of its first record
    i64 first_ms                # when that was stored, 0 = unknown
    i64 last_ms                 # the latest time of a record
    mark_t* marks               # of a stream, by rising position
    u32 n_marks
    u32 cap_marks
    u32 marked_to               # position of the last one, 0 = none
    flag_t is_dirty             # on the store's list of segments with unflushed acks
    seg_t* dirty_next

cdef struct owing_t:            # of the loop's list of queues that may be owing a sync
    queue_t* queue              # a reference
    owing_t* next

cdef struct loc_t:              # where a requeued record is
    u32 seg
    u32 pos
    flag_t is_fresh             # it was never delivered

cdef struct gap_t:              # bytes of a segment that are no record, to be logged
    u32 seg
    u32 pos
    u32 end

cdef struct spot_t:            # a record that is neither ready nor unacked, because it was moved
    u32 seg
    u32 pos
    u32 size
    u8 level
    u8 reason                   # a death or a move_reason
    flag_t is_fresh             # it was never delivered
    flag_t was_parked           # of a large one: it could not be moved before

cdef struct spots_t:            # such records in their order
    spot_t* items
    u32 at                      # the first of them
    u32 n                       # the end of them
    u32 cap

cdef struct moved_t:            # a record that is deleted when its copies elsewhere are on disk
    spot_t spot
    u64 until                   # number of the sync after which they are, if one is waited for
    queue_t* to                 # a queue that has one; a reference
    u8 to_breaks                # how often that had broken then
    flag_t is_last              # of the queues that have one: the others stand before it

cdef struct parked_t:           # a record that could not be moved
    spot_t spot
    queue_t* refuser            # which could not take it, a reference; NULL = there was no memory

cdef struct moved_list_t:
    moved_t* items
    u32 at                      # the first of them that is not decided
    u32 n                       # the end of them
    u32 cap

cdef struct moves_t:            # of one queue
    moved_list_t unsynced       # which wait for a sync, by its rising number
    moved_list_t unwritten      # which no file had: they wait for the end of the tick
    flag_t is_held              # on the loop's list of queues that have any
    flag_t is_listed            # on the loop's list of queues with parked ones
    flag_t is_hauling           # on the loop's list of queues with large ones
    flag_t is_awaited           # a commit waits until they are deleted, and that is on disk
    queue_t* held_next
    queue_t* parked_next
    queue_t* hauling_next
    spots_t large               # which are to go elsewhere in pieces; parked when they cannot
    u64 n_hauls                 # that were ever put there
    u64 n_hauled                # and that are not there any more, in the same order
    u64 hauls_awaited           # commits wait for these first ones
    u32 n_large_parked          # of these, those that were parked before
    parked_t* parked
    u32 parked_end
    u32 cap_parked
    u32 n_parked
    u32 try_at                  # the next one to try, 0 = the next pass begins with the first one
    u32 try_end                 # where this pass ends
    u32 try_kept                # how many it has kept: those up to try_at are gone
    u64 parked_bytes            # of these and of the large ones
    u64 n_returned              # that an operator had moved, and that are back

cdef struct due_t:              # when a message expires
    i64 at_ms
    u32 seg
    u32 pos

cdef struct count_t:            # how often a message was delivered; n = 0 is a free slot
    u32 seg
    u32 pos
    u32 n

cdef struct counts_t:           # open addressing
    count_t* slots
    u32 cap                     # a power of two, or 0
    u32 n
    count_t* news               # changes that the file does not hold
    u32 n_news
    u32 cap_news
    u32 file_n                  # entries in the file
    u32 beside_n                # and in the one that is to replace it
    u64 until                   # number of the sync after which it may
    flag_t has_beside           # there is one

cdef enum file_kind:            # of the files of a store
    FILE_NONE = 0
    FILE_MSGS = 1
    FILE_ACKS = 2
    FILE_OFFSETS = 3

cdef struct window_t:           # bytes of one segment file around the last read
    u8* buf
    u32 cap
    u32 seg
    u32 at
    u32 len
    int fd                      # descriptor behind it, -1 when closed
    u32 fd_seg

cdef struct left_t:             # acks.N of segments that have gone, see handover.pyx
    u64 until                   # number of the sync after which the first of them may go
    u32 n_due                   # how many those are
    u32 n
    u32 cap
    u32 ids[1]                  # cap of them

cdef struct store_t:            # the segments of one queue
    const char* dirname         # where the queue's directory is, NUL-terminated, the loop's
    const char* basename        # and its name there, its owner's
    loop_t* loop
    seg_t** segs                # by rising id; the last one is written to
    seg_t* wseg
    u8* stage                   # the tail of the write segment in memory
    u32 stage_cap
    u32 stage_at                # position of stage[0]; stage_at <= flushed
    u32 n_segs
    u32 cap_segs
    u32 segment_size            # bytes at which a segment is finished
    int wfd                     # descriptor of the write segment, -1 when closed
    u32 flushed                 # bytes of the write segment that its file holds
    u32 unflushed               # records behind `flushed`
    u32 piecemeal               # bytes behind `flushed` that the file has of a tail in pieces
    u32 synced                  # `flushed` when a sync was last asked for
    u32 reserved                # how far filling reaches behind the data, 0 = there is none
    seg_t* rseg                 # read cursor
    u32 rpos
    u32 passed                  # records of rseg that the cursor has passed
    window_t* window            # around the cursor, NULL = nothing has been read
    loc_t* requeued             # binary heap by (segment, position)
    u32 n_requeued
    u32 cap_requeued
    seg_t* dirty                # segments with unflushed acks
    left_t* left                # files that removed segments have left, NULL = none
    counts_t* counts            # deliveries of messages that were delivered before
    i64 tail_due_ms             # no message that is not in `dues` expires after a later one
    due_t* dues                 # min-heap of messages that expire before one in front of them
    u32 n_dues
    u32 cap_dues
    u32 index_at                # segment to look through for deadlines next, 0 = none is left
    u32 index_last              # the last one of those that were there at the start
    u32 index_end               # and its size then
    u32 lost                    # unreadable records dropped, for the log
    i64 miscount                # records found beyond (or short of) what meta files said
    int error                   # errno of the last failed read
    int write_error             # errno of the last failed write, 0 = the last one went well
    gap_t* gaps                 # damages since the last report, NULL = none so far
    u32 failed_seg              # of the last failed write
    u16 n_gaps
    u8 failed_kind              # of that write, a file_kind
    u64 ready                   # of this level, not kept up for other queues
    u32 noted                   # its place on a list of a log of sessions, or anything
    u8 level                    # of a priority queue
    flag_t is_vacant            # of all queues to which nothing has come: it is never written to
    flag_t is_nested            # its directory is one of the queue's
    flag_t is_durable
    flag_t is_stream            # nothing is deleted but whole segments
    flag_t is_dir_made
    flag_t is_unsynced          # data was written since a sync was last asked for
    flag_t is_large_unsynced    # and that was a large message, so that the sync takes long
    flag_t is_untrimmed         # a file found at start is longer than its data
    flag_t is_dir_unsynced      # a file was created since then
    flag_t is_acks_wanted       # a commit waits until what it has deleted is on disk
    flag_t is_acks_dir_unsynced  # a file of deletions was created, or removed with its segment

cdef struct vacant_t:           # the store of all queues to which nothing has come
    store_t store               # must stay first
    u32 segment_size
    vacant_t* next              # of the loop's list

cdef struct dedup_entry_t:      # a remembered key; entry 0 closes the ring and is none
    u64 key[2]                  # its hash
    i64 until_ms                # when it expires, Unix milliseconds
    u32 older                   # of entry 0: the newest one
    u32 newer                   # of entry 0: the oldest one
    u32 following               # in its bucket, or among the free ones; 0 = none
    flag_t is_new               # noted in this tick: its message may be in memory only
    flag_t is_kept              # it may outlive the broker

cdef struct budget_t:           # what all caches, or histories, may take; above it the oldest go
    u64 used                    # bytes
    u64 most

cdef struct dedup_t:            # the keys that one exchange or queue has seen
    loop_t* loop                # NULL in tests
    queue_t* queue              # whose keys these are; NULL = an exchange's
    const u8* header            # whose value is the key
    u32 header_len
    i64 ttl_ms                  # of messages that do not say, -1 = unlimited
    u64 salt[2]                 # key of the hash
    u32 limit                   # keys it may hold
    u32 n
    dedup_entry_t* entries
    u32 cap                     # with entry 0
    u32 n_used                  # entries that have ever been used
    u32 free                    # of these, the first that is free again; 0 = none
    u32* buckets                # first entry by hash
    u32 n_buckets
    u32 cap_buckets             # a power of two
    u32 mask                    # of the hash: n_buckets rounded up to one, less 1
    budget_t* budget
    const char* path            # of the file, NULL = the keys go with the broker
    int fd                      # -1 when closed
    u64 n_refused               # duplicates that a queue did not store
    i64 file_size               # bytes of whole slots, 0 = to be written anew
    u32 unwritten               # the first entry that is not in the file, nor those behind; 0 = all
    dedup_rewrite_t* rewrite    # NULL = none runs
    u64 boot                    # of the machine
    int error                   # errno of the last write, 0 = it went well
    flag_t is_news              # that has changed since it was last told
    flag_t is_dirty             # on the loop's list of caches with new keys
    flag_t is_covered           # the file is what an earlier life has left in order
    dedup_t* dirty_next

# ---- logs of MQTT, see mqtt/log.pyx --------------------------------------------------------------

cdef struct mlog_file_t:        # one file of a log
    u32 number
    u32 size                    # bytes that count, 0 = nothing is written yet
    u64 stale                   # bytes of entries that do not count any more
    int fd                      # to read it, -1 = closed
    flag_t is_damaged           # a start has found bytes that are no entry

cdef struct mlog_t:             # entries in files, one behind the other, that later ones replace
    loop_t* loop
    const char* directory       # NUL-terminated, its owner's
    const char* name            # of the files, up to the dot
    u32 kind
    u32 file_size               # bytes at which a file is finished
    mlog_file_t* files          # by rising number; the last one is written to
    u32 n_files
    u32 cap_files
    u32 next_number
    u32 floor                   # files below it do not count
    u64 salt                    # of the checks, the same in all files
    int fd                      # of the last file, to write it, -1 = closed
    u8* stage                   # what is behind it in memory
    u32 n_stage
    u32 cap_stage
    u64 stale_before            # of the last file, when the stage was empty
    int error                   # errno of the last write, 0 = it went well
    # Told of what was staged that it is written, or that it is not and never will be. NULL: what
    # could not be written stays staged, and is tried again.
    void (*settle)(mlog_t* log, bint is_written) noexcept nogil
    # Makes entries of what its owner has gathered, before they are written. 0, or -1; NULL: none.
    int (*gather)(mlog_t* log) noexcept nogil
    # Told at the end of a tick, behind the attempt to write. NULL: nobody is.
    void (*after)(mlog_t* log) noexcept nogil
    u64 n_written               # bytes since it was opened
    u64 n_handed                # of them, those that a sync covers which has begun, or will
    u64 handed_at               # the number of that sync
    u64 n_before                # of them, those that are on disk while it is not over
    flag_t is_torn              # the last file may end in what failed: a new one is begun
    flag_t is_full              # what is staged found no room
    flag_t is_unsynced          # written since a sync was last asked for
    flag_t is_dir_unsynced      # a file was made since then
    flag_t is_sync_wanted       # on the loop's list of logs that the next sync has to cover
    flag_t is_dirty             # on the loop's list of logs with something staged
    flag_t is_news              # `error` has changed since it was last told
    mlog_t* dirty_next
    mlog_t* sync_next

cdef struct rmsg_t:             # a retained message, in memory: its topic and where the rest is
    u32 file
    u32 pos                     # of its entry
    u32 size                    # of the entry's body, 0 = there is none
    u32 expires_s               # Unix seconds, 0 = never
    u32 put                     # which of the store's puts this was, 0 = it was loaded
    u16 topic_len
    flag_t is_new               # on the list of those that may have to go when the stage is settled
    u8 topic[1]

cdef struct rtree_t:            # a node of the tree that has them in the order of their topics
    rtree_t* prev               # of a leaf: the leaves before and behind it
    rtree_t* next
    u32 n
    u32 height                  # 0 = a leaf
    rmsg_t* keys[64]            # TREE_ORDER; of an inner one: the first below each child
    rtree_t* children[1]        # as many; a leaf has none

cdef struct rline_t:            # messages by hash, in a line of the processor's cache
    rmsg_t* msgs[5]             # LINE_MSGS; of a long one the last place leads to a further line
    u32 hashes[5]
    u32 n                       # messages, or LINE_LONG

cdef struct rundo_t:            # what a message was before what is staged
    rmsg_t* msg
    u32 file
    u32 pos
    u32 size
    u32 expires_s

cdef struct rwindow_t:          # bytes of one file
    u32 file
    u32 at
    u32 len                     # 0 = none

cdef struct rstore_t:         # the retained messages of a virtual host
    mlog_t log                  # must stay first
    rline_t** lines             # by hash, in segments; they come one by one, see retained_split
    u32 n_lines
    u32 cap_lines
    u32 cap_segments
    u32 mask                    # of the hash: those that have come last are not all there yet
    u32 n                       # messages
    u32 n_nodes                 # and those that are staged to go
    rtree_t* root               # NULL = empty
    rtree_t* recent             # the leaf in which the next topic is looked for first, NULL = none
    u64 version                 # moves with each change of the tree
    u32 n_puts                  # so far; it may go round
    u64 seed                    # of the hash
    u32 hinted                  # hash of the topic of which it was told last that it comes soon
    u64 bytes                   # of memory
    u64 live                    # bytes of entries that count
    rundo_t* undo
    u32 n_undo
    u32 cap_undo
    rmsg_t** news               # those that are new, or to go
    u32 n_news
    u32 cap_news
    u32 n_walks                 # under way
    u8* block                   # of windows, NULL while nobody walks
    rwindow_t windows[8]        # N_WINDOWS
    u32 next_window
    i64 imported_ns             # time of the index of LavinMQ that was taken over, 0 = none
    i64 imported_at_ms          # and when that was
    u64 n_lost                  # entries that could not be read since that was last told
    u8* clean_buf
    u64 clean_at                # where the cleaning of the oldest file is
    flag_t is_cleaning
    flag_t has_failed           # what was staged since then could not be written

cdef struct mfact_t:            # what Python keeps of a session under a key
    mfact_t* next
    u32 value_len
    u16 key_len
    u8 key[1]                   # and the value behind it

cdef struct origin_t:           # where a message was before it was a session's
    u32 key                     # of the name of that queue, 0 = it has always been the session's
    u32 mark                    # of the message
    u32 seg
    u32 pos
    u32 subscription            # identifier of the member's subscription

cdef struct mpacket_t:          # a packet id in use
    u32 seg                     # of a message that was sent: where it is; that was received: turn
    u32 pos                     # and its places there, 0 = nothing has to be proved
    origin_t origin             # of a message that was sent
    u16 id                      # 0 = a free place
    u8 state                    # a packet_state

cdef struct msession_t:         # a session, as its log has it
    msession_t* next            # in its bucket
    u64 number                  # by which entries speak of it, never used again
    i64 left_ms                 # when its client went, Unix milliseconds, 0 = it is there
    mfact_t* facts
    mpacket_t* packets          # open addressing by id and direction, NULL = none
    u32 n_packets
    u32 cap_packets             # a power of two, or 0
    u32 hash
    u32 slot
    u32 expiry_s                # how long it outlives its client, 0xffffffff = for ever
    u32 file                    # where it began, or was written anew
    u32 facts_size              # bytes of them in an entry
    u16 name_len
    u8 name[1]                  # the client's id

cdef struct sleft_t:            # a session whose client has gone while some of it was on its way
    queue_t* queue              # a reference
    u64 until                   # number of the sync that covers it

cdef struct splace_t:           # up to where a file has to reach for messages that were received
    queue_t* queue              # a reference; NULL: found at the start, or the retained messages
    u64 key                     # of the queue's name, see slog_key; 0 = the retained messages
    u32 seg
    u32 end

cdef struct sturn_t:            # a turn that is found at the start: its places among all that are
    u32 number
    u32 first
    u32 n
    u32 bad                     # bits of places that the files do not reach

cdef struct slog_t:             # the sessions of a virtual host
    mlog_t log                  # must stay first
    msession_t** buckets        # by hash; with each session comes one, see slog_split
    u32 n_buckets
    u32 cap_buckets
    u32 mask                    # of the hash: those that have come last are not all there yet
    msession_t** slots          # NULL = free
    u32 n_slots
    u32 cap_slots
    u32 free_slot               # no free one is below
    u32 n
    u64 next_number
    u64 seed
    u64 bytes                   # of memory
    u64 live                    # bytes of a log with nothing else in it
    u8* block                   # records of this tick
    u32 n_block
    u32 cap_block
    # the record at the end of the block, when ids that follow each other may join it
    const msession_t* run_of    # NULL = none
    u32 run_at
    u32 run_end
    u32 run_seg
    u32 run_pos
    u16 run_next                # the id that would
    u8 run_change
    # where received messages went; at the start, what of that was found, see session_places.pyx
    splace_t* places
    u32 n_places
    u32 cap_places
    u32 n_told                  # of them, those that are in the log: their queues are written next
    u32 turn                    # the number of the next one
    u32 safe                    # the last one that is on disk with all its places
    u32 safe_told               # and that the log says so of
    u32 marked                  # that is on disk when the log is up to `marked_end`
    u64 marked_end
    u64 told_end                # bytes of the log up to the last turn
    u32 compact_turn            # the last one before all was written anew
    u64 compact_end             # bytes of the log then
    sleft_t* left               # by rising sync, see session_left.pyx
    u32 n_left
    u32 cap_left
    flag_t has_left             # it is on the loop's list of those that have any
    slog_t* left_next
    sturn_t* turns              # found at the start, NULL = none
    u32 n_turns
    u32 cap_turns
    const queue_t* last_queue   # whose session was noted last
    msession_t* last
    msession_t** numbers        # by number, while the files are read: open addressing
    u64 cap_numbers
    u32 compact_at              # slot that is written anew next
    u32 compact_file            # from which file on all is there when it is done
    flag_t is_compacting
    flag_t is_gathering
    flag_t is_in_doubt          # ids were found whose messages may not be there

cdef struct rfound_t:           # a retained message as it is read, for the time of the call
    const u8* topic
    u32 topic_len
    u8 qos
    const u8* props             # a property block of MQTT 5 without its length
    u32 props_len
    const u8* payload
    u32 payload_len
    i64 at_ms                   # when it came
    u32 put                     # as of rmsg_t
    i64 expires_ms              # 0 = never

cdef struct rwalk_t:            # the messages that a filter matches, one after the other
    rstore_t* store
    u8* filter                  # owned
    u32 filter_len
    u8* at                      # the next topic is this one or comes behind it
    u32 at_len
    u32 cap_at
    rtree_t* leaf               # where that is, while the tree's version is this
    u32 index
    u64 version
    u8* buf                     # of a message that is larger than a window
    u32 cap_buf
    flag_t is_over

# ---- queues and consumers ------------------------------------------------------------------------

cdef enum overflow_kind:        # what a full queue does
    DROP_HEAD = 0
    REJECT_PUBLISH = 1
    REJECT_PUBLISH_DLX = 2

cdef struct features_t:         # what a queue does with messages beyond handing them out in order
    u64 max_length              # ready messages, NO_LIMIT = any number
    u64 max_bytes               # bytes of their records
    i64 ttl_ms                  # -1 = none
    i64 delivery_limit          # -1 = none
    u8 overflow
    u8* target                  # dead-letter exchange as a short string, NULL = none
    u8* target_key              # routing key of dead letters, NULL = their own
    u64 planned_mark            # the commit that the next two belong to
    u64 planned                 # messages that it would add
    u64 planned_bytes

cdef struct levels_t:           # the stores of a priority queue
    u32 n
    u64 filled[4]               # a bit for each level that has ready messages
    store_t** stores            # behind the struct, by priority, NULL = no message has come yet
    char* dirname               # behind these: their directory

cdef struct trial_t:            # whether consumers are fast enough to hold publishers back
    u64 progress                # settlements when their present trial began
    i64 start_ns                # and when that was
    u32 looks                   # ticks since
    i64 slow_ns                 # how long they were left out the last time, 0 = they are fast
    i64 slow_until_ns           # until then these consumers hold nobody back

cdef struct queue_t:
    dest_t dest                 # must stay first: bindings point here
    flag_t is_special           # publishes take the long way
    flag_t may_expire           # messages may have a deadline
    flag_t may_bury             # discarded messages may have somewhere to go
    flag_t is_over              # on the loop's list of queues to hold to their limits
    flag_t is_deleted
    flag_t is_closed            # the store cannot be used: publishes are refused; see queue_shut
    flag_t is_durable           # as its store is
    store_t* store              # of a priority queue: of level 0; see queue_own_store
    levels_t* levels            # NULL = not a priority queue
    features_t* features              # NULL = none
    stream_t* stream            # NULL = not a stream
    dedup_t* dedup              # NULL = duplicates are stored
    loop_t* loop
    flag_t is_ranked            # it has had consumers of other priorities than 0
    flag_t is_paused            # nothing is delivered and gets are empty, by order of an operator
    flag_t is_broken            # it was closed by a write that failed, which has not been told yet
    flag_t is_stuck             # the disk has no room for it: its records wait in memory
    flag_t is_in_tick
    flag_t is_crowded           # fast consumers are busy with more than CROWD_BYTES before them
    flag_t is_sync_wanted       # a confirmed publish landed here since the last sync was asked for
    flag_t is_owing             # the same of a message that is confirmed when it comes again
    flag_t is_asleep            # its one consumer has no struct until a message comes: of MQTT
    flag_t is_unindexed         # on the loop's list of those to be looked through for deadlines
    flag_t is_store_owner       # the store is its own, and goes with it
    u8 n_breaks                 # how often a write has closed it, modulo 256
    u32 fold_at                 # of a session: its place among the targets of a publish, see fold_t
    queue_t* tick_next
    queue_t* over_next
    queue_t* stuck_next
    queue_t* index_next         # of those that are on the loop's list
    u64 ready
    u64 ready_bytes
    u64 unacked
    u64 unacked_bytes
    u64 n_published             # counters since start
    u64 n_delivered
    u64 n_delivered_no_ack
    u64 n_get
    u64 n_get_no_ack
    u64 n_acked
    u64 n_redelivered
    u64 n_rejected
    consumer_t* able            # ring of the consumers of highest priority that can take a message
    consumer_t* lower           # first of the rings of lower priorities, which fall along the list
    u32 n_consumers
    u32 refs                    # the owner and each unacked delivery
    u32 n_orphans               # deliveries on their way back, until which nothing is delivered
    u32 n_purges                # under way: their places in the store must stay what they are
    i64 due_ms                  # nothing expires before that, NEVER = nothing does
    u64 timeout_ms              # how long a delivery may stay unacked, 0 = for ever
    const u8* name              # short string, for what tells of its death; behind the struct
    const char* dirname         # in which its directory is, the loop's
    exchange_t* releases        # of a delayed exchange's queue: that exchange
    history_t* history          # of an exchange that keeps messages: they are here and not stored
    sample_t* sample            # where its messages are followed, NULL = nowhere for now
    vhost_t* vhost              # where dead letters find their exchange
    trial_t* trial              # of its consumers, NULL = there was none yet
    moves_t* moves              # what went, or is to go, to other queues, NULL = nothing has
    u32 due_at                  # its place in the loop's heap, counted from 1, 0 = none
    u32 n_missed                # publishes while it was closed, of which nobody was told
    session_t* session          # NULL = none of MQTT
    mover_t* mover              # who moves its messages on, NULL = nobody
    # How its messages are delivered, NULL = as queue/deliver.pyx does. Whether the budget ended.
    bint (*deliver)(queue_t* q) noexcept nogil

cdef struct scratch_t:          # memory for one message
    u8* p
    u64 cap

cdef struct mover_t:            # messages that go on from the head of a queue to another queue
    queue_t* to
    haul_t* haul                # of the large message that is on its way, NULL = none
    u64 left                    # how many are to go on, NO_LIMIT = all that come
    u64 n_moved
    u64 n_bytes
    u64 n_refused               # attempts that the other queue did not take
    flag_t is_refused           # the last one was

cdef struct consumer_t:
    queue_t* queue
    chan_t* chan
    consumer_t* prev            # ring of able consumers of the queue with the same priority
    consumer_t* next
    consumer_t* lower           # head of the next ring, when it is the head of one on that list
    int priority                # a message goes to the highest that can take it
    consumer_t* chan_prev       # all consumers of the channel
    consumer_t* chan_next
    flag_t is_able              # in the ring
    flag_t is_started           # it may take messages: neither before its start nor after its end
    flag_t is_cancelled
    flag_t is_no_ack
    flag_t is_patient           # on the loop's list of consumers to look at again
    u64 wants                   # bytes for a large message that it waits for, 0 = none
    u32 refs                    # the channel, each unacked delivery, the list above
    u32 prefetch                # 0 = no limit
    u32 unacked
    reader_t* reader            # of a stream, else NULL
    # Short string: what its client knows it by. A longer one has room behind it, and any has
    # TAG_ROOM bytes there for its protocol.
    u8 tag[32]

cdef struct unacked_t:
    u64 tag
    queue_t* queue              # NULL = settled
    consumer_t* consumer        # NULL = basic.get
    u32 seg
    u32 pos
    u32 size
    u8 level                    # of a priority queue
    u8 is_tx_settled            # a transaction holds its settlement
    u32 delivered_ds            # when, in tenths of a second since the loop began
    u32 seq                     # of a stream: slot of its consumer's reader

# ---- streams -------------------------------------------------------------------------------------

cdef struct track_t:            # what a consumer tag has acknowledged
    track_t* bucket_next
    track_t* older              # by last commit
    track_t* newer
    track_t* dirty_next
    i64 offset                  # where it goes on reading, 0 = nothing is stored
    u32 refs                    # readers that use it
    flag_t is_dirty             # to be written
    u8 len                      # 0 = a mark of door/stored_offsets.pyx, which owns it
    u8 tag[1]                   # len bytes

cdef struct tracks_t:           # the tags of a stream and their file
    track_t** buckets
    u32 n_buckets               # a power of two, or 0
    u32 n
    track_t* oldest
    track_t* newest
    track_t* dirty
    track_t* next               # to be looked at for whether its message is gone, NULL = none
    i64 dropped                 # offsets below it are forgotten, once all were looked at
    u32 n_readers
    u64 size                    # bytes of the file that are entries
    u64 capacity                # bytes at which it is due to be rewritten
    u64 copied                  # bytes of it whose newest entries are being written elsewhere
    flag_t is_copying           # they are, in a thread
    flag_t is_stale             # the file has entries that were forgotten since
    int fd                      # -1 when closed

cdef struct slot_t:             # a delivery of a reader that is not settled
    i64 offset
    u32 seg
    u32 pos
    u32 prev                    # in the order of the offsets, NO_SLOT = none
    u32 next                    # of a free slot: the next free one

cdef struct condition_t:        # one part of a filter
    u8 kind
    u8 forms                    # which of the values below have the same text
    u32 key_len
    u32 text_len
    u8* key                     # owned
    u8* text                    # owned
    i64 integer
    i64 seconds
    double number
    float number32
    double box[4]               # lowest and highest latitude, lowest and highest longitude
    double lat
    double lon
    double radius_km
    double* points              # latitude and longitude in turn, owned
    u32 n_points
    u32 place                   # of its key or text among those that are looked for

cdef struct wanted_t:           # a text that is looked for in each message
    const u8* p                 # borrowed
    u32 n
    const u8* found             # in this message, NULL = not so far

cdef struct wanteds_t:          # each text once, by its hash
    wanted_t* items
    u32 n
    u32* slots                  # number of the item + 1, 0 = free
    u32 mask

cdef struct filter_t:           # which messages a reader wants
    flag_t is_any               # one condition is enough
    flag_t takes_unfiltered
    u32 n
    condition_t* items
    u32 work                    # of looking at one message, in units of 10 ns, without its headers
    wanteds_t keys              # of headers
    wanteds_t values            # in the list of x-stream-filter-value

cdef struct reader_t:           # where a consumer of a stream is
    seg_t* seg                  # NULL = the stream is gone
    u32 pos
    i64 offset                  # of the record at pos
    i64 from_offset             # records below are passed over
    i64 from_ms                 # until one that was stored then or later, 0 = that has been found
    i64 end_offset              # records from there on are not read, 0 = all are
    flag_t tells_time           # deliveries say when their message was stored
    flag_t tells_epoch          # and in which epoch
    flag_t is_over              # on the loop's list of consumers that have had all they asked for
    consumer_t* over_next
    window_t window
    slot_t* slots
    u32 cap_slots
    u32 n_slots                 # that are in use
    u32 free_slot
    u32 oldest
    u32 newest
    u32* requeued               # min-heap of slots by offset
    u32 n_requeued
    u32 cap_requeued
    track_t* track              # NULL = not tracked
    filter_t* filter            # NULL = it wants all
    flag_t is_idle              # in the ring of idle consumers, else of active ones
    flag_t is_listed
    consumer_t* prev            # all of the stream
    consumer_t* next

cdef struct epoch_t:            # a part of a stream's life, between two ends without order
    i64 number
    i64 first_offset

cdef struct reach_t:            # up to where a stream is on disk, or will be
    i64 offset                  # of the first message behind it
    u32 seg
    u32 pos
    u64 sync                    # number of the sync that brings it there, 0 = nothing is awaited

cdef struct stream_t:
    i64 next_offset             # of the next message
    reach_t synced              # all before is on disk
    reach_t awaited[2]          # of the sync in flight and of the next one
    u32 unsynced_seg            # first segment that may hold what no sync was asked for
    u32 n_epochs
    epoch_t* epochs             # by rising number, the last one is now; NULL = not known yet
    i64 seen_offset             # up to where idle consumers have been woken
    consumer_t* active          # ring of consumers with credit that may have something to read
    consumer_t* idle            # ring of those that have read all there is
    consumer_t* readers         # all of them
    u64 max_length              # NO_LIMIT = none
    u64 max_bytes
    i64 max_age_ms              # -1 = none
    u32 marker_seg              # segment whose first offset a file name tells, 0 = none
    i64 marker_offset
    i64 damaged_offset          # of what comes behind the first damage that the load met, 0 = none
    i64 changed_offset          # from here on offsets may be others than before, for that damage
    u32 changed_seg             # the first segment that was walked and is damaged, 0 = none
    u32 changed_passed          # its records before the damage
    u32 n_marks                 # in all segments
    tracks_t tracks
    u8 header[96]               # x-stream-offset, -timestamp and -epoch, to be filled in
    u8 epoch_header[64]         # x-stream-offset and -epoch
    char created[48]            # tells it from others of its name, empty = not known

cdef struct tx_publish_t:       # a publish that waits for commit; names, properties, body follow
    tx_publish_t* next
    exchange_t* exchange        # that of its name
    u64 epoch                   # of the vhost when that was known
    u8 flags
    u32 names_len
    u32 props_len
    u64 body_len
    u8* body                    # of a large message: a block of its own, owned; else NULL
    u64 body_cap

cdef struct tx_haul_t:          # large messages that a commit has rejected
    queue_t* queue              # a reference
    u64 until                   # its `n_hauled` when they have gone

cdef struct tx_settle_t:        # a settlement that waits for commit
    u64 tag
    flag_t requeue
    flag_t is_ack

# ---- routing -------------------------------------------------------------------------------------

cdef struct exchange_t:
    dest_t dest                 # must stay first: bindings between exchanges point here
    u8* name                    # short string, NULL = none needed
    queue_t* delayed            # where messages wait that ask for it, NULL = nowhere
    queue_t* history            # where they are kept for who comes later, NULL = nowhere
    queue_t* followed           # where somebody follows them, NULL = nobody does
    match_t* match
    exchange_t* alternate       # where messages go that match nothing, or NULL
    exchange_t* bridge          # to MQTT, while anybody has subscribed there; of MQTT: to AMQP
    flag_t is_plain             # bound to queues only, and no alternate; see exchange_note_plain
    flag_t is_internal          # clients may not publish to it, also not by way of a dead letter
    flag_t has_key_routes       # the key alone decides, so the last route may be kept
    u32 n_exchanges             # bindings to exchanges
    u64 version                 # moves when routes that are kept lead elsewhere
    u64 binding_version         # moves with every change of the bindings, and with nothing else
    u64 n_in
    u64 n_crossed               # have come over a bridge from MQTT, and were stored in some queue
    u64 n_out
    dedup_t* dedup              # NULL = duplicates are routed
    publish_job_t* storing      # publishes with keys that are on their way into its queues
    u64 n_unroutable
    u64 n_dedup                 # duplicates that were not routed

cdef struct kept_t:             # a message, with its slices behind it: names, properties, body
    u32 names_len
    u32 props_len
    u32 body_len

cdef struct taken_t:            # a message that has passed: names, properties, body follow
    taken_t* next
    i64 at_ms
    u64 size                    # bytes of its whole body
    u32 names_len
    u32 props_len
    u32 body_len                # of which so many are here

cdef struct sample_t:           # of what passes a queue or an exchange that somebody follows
    queue_t* queue              # that is followed, or NULL
    exchange_t* exchange        # the same
    sample_t* next_passed       # of those that a message has passed; see through.pyx
    passing_t* passings         # channels whose kept routes lead past it
    flag_t is_open              # what passes comes by here, else it is counted alone
    u64 closed_at               # what was counted there when this was closed
    taken_t* first              # in the order of their passing
    taken_t* last
    u64 n_seen                  # that have passed, but for what that counter says
    u64 room                    # bytes that may be kept until they are fetched
    u32 left                    # and messages
    u32 most_body

cdef struct passing_t:          # a route that a channel keeps leads past a sample that is closed
    sample_t* sample
    chan_t* channel
    u64 since                   # what the channel had published when that was counted
    passing_t* prev             # of the sample
    passing_t* next
    passing_t* also             # the next one of the channel

cdef struct history_t:          # the newest messages of an exchange
    loop_t* loop
    sample_t* sample            # where they are followed in place of being kept, NULL = nobody does
    kept_t** items              # number n is items[n & (cap - 1)]
    u32 cap                     # a power of two, or 0
    u32 most                    # 0 = it is there to be followed only
    u64 first                   # number of the oldest
    u64 next                    # of the one to come
    u64 bytes
    u32 n_replays               # under way

cdef struct vhost_t:
    u64 epoch                   # moves when an exchange or a permission changes
    match_t* names              # its exchanges by name, as a direct exchange would find them
    tally_t past                # of channels that have gone
    chan_t* chans               # those that are there

cdef struct known_t:            # an exchange that this connection may publish to
    exchange_t* exchange
    u8 name_len
    u8 name[255]

cdef struct knowns_t:           # the exchanges that are known, by hash, and the one pushed out last
    u64 epoch                   # of the vhost that the entries belong to
    known_t slots[17]           # KNOWN_SLOTS and one

cdef enum:
    ASK_KINDS = 4               # see answers.pyx

cdef struct answer_t:           # a question that Python has said yes to
    u8* question                # NULL = none
    u32 len
    exchange_t* exchange        # NULL = there is none of that name yet

cdef struct answers_t:
    u64 epoch                   # vhost epoch they belong to
    answer_t last[4]            # by kind, ASK_KINDS
    answer_t* slots             # by hash, NULL = none needed
    u8* question                # the one that was put together last
    u64 cap_question

cdef struct routing_t:          # how far a message has come through exchanges
    flag_t is_begun
    flag_t is_asking            # the one at `at` has begun
    flag_t is_key_only          # the routing key alone has decided
    flag_t is_counted           # its first exchange counts it as published there
    flag_t is_root_waiting      # and it waits there
    flag_t is_from_mqtt         # it has crossed a bridge, and does not go back
    u32 at                      # of the targets: all before are asked, or queues
    u32 n_keys                  # of the keys: those that the one at `at` was asked for
    u32 n_queues
    u32 n_alternates            # of the targets: their alternates are asked
    u64 n_matches               # before the one at `at`
    sample_t* passed            # closed ones that the message has passed, when it is through

cdef struct asked_t:            # an exchange that a routing has asked
    exchange_t* exchange
    u64 binding_version

cdef enum publish_phase:
    PUBLISH_ROUTES = 0          # nothing is stored: it begins anew when bindings change
    PUBLISH_STORES = 1          # the targets that are left are held

cdef struct ahead_t:            # a large message on its way into a file of its own
    loop_t* loop
    queue_t* queue              # whose publish_job_t or haul_t holds it
    store_t* store
    const msg_t* message        # while it is appended, else NULL
    char* path                  # of the file, owned
    int fd                      # and its descriptor
    u8 breaks                   # how often the queue had broken when it was begun
    u32 head_len                # of the record, up to its body
    u64 written                 # bytes of the body
    flag_t is_begun             # there is a file

cdef struct body_t:             # the body of a large message that goes from queue to queue
    const u8* p                 # in memory, NULL = it is in a store
    queue_t* queue              # whose store that is, a reference
    u8 breaks                   # how often that had broken
    spot_t spot                 # of the record
    u32 head_len                # of the record, up to its body
    int fd                      # of its file, -1 = not opened
    proof_t* proof              # sums of the body, NULL = nobody has any

cdef struct hauled_t:           # a message that is made of it: with other names and properties
    msg_t m                     # without its body
    u8* head                    # memory of its names and properties, owned
    i64 reason                  # a death whose cycles end here, -1 = it was released

cdef struct haul_target_t:
    queue_t* queue              # a reference
    u32 message                 # of the haul
    ahead_t ahead               # its file
    u8 breaks                   # how often the queue had broken when it took the message
    flag_t is_passed            # it does not get it: it is full, or was deleted

cdef struct haul_t:             # a large message on its way from one queue to others
    haul_t* next                # on the loop's list
    body_t body
    hauled_t* messages
    u32 n_messages
    haul_target_t* targets
    u32 n_targets
    u32 at                      # of the targets: their files are whole
    u32 stored                  # of the targets: they have taken it
    queue_t* refuser            # which could not, borrowed; NULL = none, or there was no memory
    flag_t is_running           # a step is being made
    flag_t is_dropped           # it ends with this step
    flag_t is_detached          # its old queue is deleted

cdef struct stored_t:           # what came of storing a message
    u32 n
    flag_t is_overflowed        # a full queue refused it
    flag_t is_refused           # a queue broke
    flag_t is_durable           # a durable queue has it

cdef struct publish_job_t:      # a publish that goes on in another turn
    u8 phase
    u64 epoch                   # of the vhost when it was put off
    routing_t routing
    flag_t is_nested            # it leads through exchanges: it goes on as it began
    asked_t* asked              # by the routing, up to where it is
    u32 n_asked
    u32 at                      # of the targets: stored before
    stored_t stored
    ahead_t ahead               # for the target at `at`
    haul_t* haul                # that is full and has it die: the letter, NULL = none
    flag_t is_owing             # the exchange drops duplicates: see queue_owe_sync
    u64 key[2]                  # by which duplicates are told, while it is on the exchange's list
    publish_job_t* storing_next

# ---- channels ------------------------------------------------------------------------------------

cdef enum chan_state:
    CHAN_OPEN = 0
    CHAN_CLOSING = 1            # channel.close sent; everything but close-ok is discarded

cdef enum content_state:
    CONTENT_NONE = 0
    CONTENT_HEADER = 1          # publish seen, header awaited
    CONTENT_BODY = 2

cdef enum tx_phase:
    TX_KEEPS = 0
    TX_LOOKS = 1                # whether all can be carried out
    TX_CARRIES_OUT = 2
    TX_WAITS = 3                # what it has published is not on disk, and nothing is settled yet
    TX_SETTLES = 4
    TX_BURIES = 5               # all is settled, and its dead letters are not on disk

cdef struct chan_t:
    link_t* link
    chan_t* sparse_next
    u16 id
    u8 state
    u8 content
    u8 publish_flags            # bit 0 mandatory, bit 1 immediate
    flag_t is_flow_stopped
    tally_t tally
    vhost_t* vhost              # that counts it, NULL = none
    chan_t* vhost_prev          # all channels of that vhost
    chan_t* vhost_next
    # content being assembled
    u8* names                   # NAMES_SIZE bytes, made for the first content
    u32 names_len
    u8* props
    u32 props_len
    u32 props_cap
    u8* body
    u64 body_len                # announced
    u64 body_have
    u64 body_cap
    # What the reply-to pseudo-queue stands for on this channel, a short string; NULL = no consumer
    # of direct replies.
    u8* reply_address
    # last route
    u8* route_names             # NAMES_SIZE bytes, made for the first publish
    u32 route_names_len
    u64 route_epoch             # vhost epoch, 0 = no route kept
    u64 route_version
    exchange_t* route_exchange
    passing_t* passings         # of that route, NULL = it passes none
    targets_t targets
    publish_job_t* job          # of the publish whose frame is walked next, NULL = none
    # publisher confirms
    flag_t is_confirm
    flag_t needs_sync           # a durable queue took a message since the last batch
    flag_t is_overflowed        # a full queue refused a publish of the transaction
    flag_t is_refused           # a queue that unconfirmed publishes, or a commit, went to is closed
    flag_t is_oversized         # it was to get a message whose header does not fit a frame
    flag_t is_in_confirms
    flag_t is_in_batch
    u64 publish_seq
    u64 confirmed_seq
    u64 batch_seq               # high-water of the batch in flight
    u64 n_refused               # nacked alone, and not counted as confirmed by a later ack
    i64 unconfirmed_ns          # when the oldest publish outside that batch was read
    i64 batch_ns                # and the oldest one in it
    # transaction
    flag_t is_tx
    tx_publish_t* tx_first
    tx_publish_t* tx_last
    tx_publish_t* tx_at         # the one that a commit looks at next
    u8 tx_phase
    flag_t tx_has_published
    flag_t tx_has_buried
    flag_t tx_is_late           # queues may have become full since the commit has looked at them
    u32 tx_settled              # settlements that this phase is through with
    u64 tx_plan                 # number of the commit
    u64 tx_bytes
    tx_settle_t* tx_settles
    u32 n_tx_settles
    u32 cap_tx_settles
    u32 n_tx_hauls
    u32 cap_tx_hauls
    tx_haul_t* tx_hauls         # NULL = none
    u64 tx_until                # all up to this tag is settled by the transaction
    # deliveries not yet settled
    unacked_t* ring             # entry of tag t is ring[t & (ring_cap - 1)]
    u32 ring_cap
    u64 first_tag               # oldest tag in the ring
    u64 next_tag
    unacked_t* old              # unsettled deliveries that the ring has left behind, by rising tag
    u32 n_old
    u32 cap_old
    u32 old_at                  # the first of them that is not settled
    u32 n_old_settled           # gaps among them
    u32 n_unacked
    u64 settle_until            # the settlement of all up to this tag is under way, 0 = none is
    u64 timed_tag               # deliveries below it have been looked at, see channel_overdue
    # prefetch
    u32 prefetch                # for consumers to come, 0 = no limit
    u32 global_prefetch         # 0 = no limit
    u32 global_unacked          # deliveries to consumers
    consumer_t* consumers

# ---- MQTT ----------------------------------------------------------------------------------------

cdef enum packet_state:         # of a packet id in use
    PACKET_SENT = 1             # QoS 1 or 2: its message is unacked
    PACKET_RELEASED = 2         # QoS 2: PUBREC has come, PUBREL is sent, PUBCOMP is awaited
    PACKET_RECEIVED = 3         # QoS 2 from the client: its PUBREL is awaited

cdef struct packet_t:
    # Of the delivery, 0 = there is none: it is to be sent again. Of what a client has sent, and has
    # gone: the sync that covers it, 0 = it was there when its client was.
    u64 tag
    u16 id                      # 0 = a free slot
    u8 state
    u8 qos

cdef struct packets_t:          # open addressing by id
    packet_t* slots
    u32 cap                     # a power of two, or 0
    u16 n
    u8 shift                    # 32 less the logarithm of that power

cdef struct returned_t:         # where a message is that went back while it was in flight
    u32 seg
    u32 pos
    u16 id                      # 0 = a free slot

cdef enum:
    SENT_TWICE = 0x80000000     # of the segment of a message that is sent: it has QoS 2

cdef enum session_change:       # what a log keeps of a session
    SESSION_RECEIVED = 1        # a message of QoS 2 has come with this id
    SESSION_RELEASED = 2        # and its PUBREL
    SESSION_SENT = 3            # the message at a position goes out with this id
    SESSION_REC = 4             # its PUBREC has come
    SESSION_DONE = 5            # the id is free

cdef struct session_t:          # of a client, as long as its queue lives
    packets_t sent              # ids of ours
    packets_t received          # ids of the client's
    returned_t* returned        # open addressing by position, NULL = none
    u32 cap_returned            # a power of two
    u32 n_returned
    link_t* link                # of the client, NULL = it is away
    u64 n_dropped               # for a slow or absent client, or too large for it
    u16 last_id

cdef struct session_log_t:      # who keeps sessions on disk: first member of it
    # Whether it was kept: 0, or -1 with errno.
    int (*note)(session_log_t* log, queue_t* q, u8 change, u16 id, u32 seg,
                u32 pos) noexcept nogil
    # A message that is received next stands at the end of q, or of the log of retained ones: its
    # bit is added to `places`, the `pos` of that note. 0, or -1 with errno.
    int (*place)(session_log_t* log, queue_t* q, mlog_t* retained, u32* places) noexcept nogil
    # Where a record of a shared subscription's queue is, but for `subscription`.
    void (*origin)(session_log_t* log, const queue_t* source, const rec_t* rec,
                   origin_t* origin) noexcept nogil
    # The message there goes out with this id to the client of q. 0, or -1 with errno.
    int (*take)(session_log_t* log, queue_t* q, u16 id, const origin_t* origin) noexcept nogil
    # The client of q has gone, and the sync with that number is to cover what it has sent.
    void (*leave)(session_log_t* log, queue_t* q, u64 until) noexcept nogil

cdef struct publish_t:          # a message of MQTT on its way: slices, nothing owned
    const u8* topic
    const u8* body
    const u8* props             # its properties of version 5, without those of the next fields
    const u8* ids               # subscription identifiers, encoded as properties
    u64 body_len
    u32 topic_len
    u32 props_len
    u32 ids_len
    u32 expiry_s                # until it expires
    u16 id                      # packet id, 0 = none
    u8 qos
    flag_t is_retained
    flag_t is_dup
    flag_t has_expiry

cdef struct retained_t:         # who keeps retained messages: first member of it
    # Keep what was published, or forget it when the body is empty. 0, or -1 with errno.
    int (*put)(retained_t* r, const publish_t* m) noexcept nogil
    # What is published with this topic comes soon, behind one more: have memory fetched for both.
    void (*hint)(retained_t* r, const u8* topic, u32 n) noexcept nogil
    mlog_t* log                 # where they are

cdef struct retained_sink_t:    # how publishes come to a store of retained messages
    retained_t sink             # must stay first
    rstore_t* store

cdef struct session_sink_t:     # how changes of packet ids come to a log of sessions
    session_log_t sink          # must stay first
    slog_t* log

cdef struct fold_t:             # a session that gets a message, by one filter or several
    queue_t* queue
    u32 ids_at                  # of its identifiers in fold_ids, 0 = none, else one more
    u8 qos                      # the highest that was granted
    flag_t keeps_retain
    flag_t is_amqp              # it is no session: the message crosses the bridge to it

cdef struct fold_id_t:
    u32 id
    u32 next                    # as ids_at

cdef struct alias_t:            # what an alias of the client stands for
    u8* topic                   # owned, NULL = nothing yet
    u32 len

cdef enum mqtt_phase:           # of the PUBLISH that is walked next
    MQTT_BEGINS = 0
    MQTT_ROUTES = 1             # it was stopped in the midst of it
    MQTT_STORES = 2             # the targets that are left are held
    MQTT_CROSSES = 3            # it was stopped in the midst of routing behind the bridge

cdef struct crossing_t:         # what crosses the bridge to AMQP, or comes from there
    routing_t routing           # how far it is behind it
    msg_t letter                # the message as AMQP has it, size 0 = there was no memory for it
    u8* lettered                # its names and properties
    u64 cap_lettered
    u8* foreign                 # topic and properties of a message from there
    u64 cap_foreign
    filter_steps_t steps        # of the look for what was granted for it

cdef struct mqtt_t:             # what a link that speaks MQTT has besides
    u8 version                  # 3, 4 or 5
    flag_t checks_topics        # Python is asked about each one
    flag_t is_persistent        # its session outlives the connection
    flag_t is_denied            # Python has said no to the topic of the packet that is walked next
    flag_t is_failed            # it is to be let go: version 3 has no word for what was refused
    flag_t crosses              # what its client publishes next may cross the bridge to AMQP
    u8 phase
    u8 n_quiet                  # looks in a row at which nothing had come or gone
    u32 n_moved                 # publishes and deliveries at the last look
    u16 alias_maximum_in
    u16 alias_maximum_out
    u32 receive_maximum         # deliveries that its client takes unacknowledged
    u32 receive_maximum_in      # publishes of its client that may be unanswered; 65535 = any number
    u32 n_unanswered            # of them, of which none is counted when it may be any number
    u32 maximum_in              # remaining length of a packet
    u32 maximum_out             # bytes of a whole packet
    u32 n_denied                # publishes that its client may not make
    chan_t* chan                # NULL = it is asleep, see wake.pyx: what is below is not there
    queue_t* queue              # of its session
    session_t* session
    exchange_t* exchange
    retained_t* retained        # NULL = none are kept
    session_log_t* log          # NULL = it goes with the broker
    u64 large_bytes             # counted for a packet that is being received
    u64 n_published             # that its client has sent
    consumer_t* consumer        # the first that one which is asleep does not have
    alias_t* aliases            # alias_maximum_in of them, NULL = none was used
    u8** out_topics             # alias_maximum_out topics, each behind its length of 32 bits
    u16 n_out_topics
    # answers that wait for the disk: packet id << 16 | type << 8 | reason, by publish_seq
    u32* acks
    u32 cap_acks                # a power of two, or 0
    u64 held_seq                # the last of them that holds output, 0 = none does
    u64 held_at                 # where what that one holds begins, see hold.pyx
    # the last topic, and where it goes
    u8* names                   # exchange and routing key, as they stand in a record
    u32 cap_names
    u32 topic_len               # of it; 0 = none is kept
    u64 route_version           # of the exchange, 0 = the folds are not its
    u64 route_epoch
    fold_t* folds
    u32 n_folds
    u32 cap_folds
    u32 at                      # of the folds: those before it have the message
    fold_id_t* ids
    u32 n_ids
    u32 cap_ids
    stored_t stored             # what came of it so far
    u8* scratch                 # properties of the packet that is walked
    u32 cap_scratch
    u8* composed                # identifiers and properties of a record
    u32 cap_composed
    # of the bridge to AMQP, see mqtt/bridge.pyx
    u32 n_own                   # of the folds: those before it are sessions
    u32 n_histories             # of the others: those in which nothing waits for anybody
    u32 n_kept                  # messages of shared subscriptions that its session has kept
    u32 places                  # where the last message of QoS 2 is, see session_log_t
    crossing_t* crossing        # NULL = nothing has crossed so far

# ---- links and the loop --------------------------------------------------------------------------

cdef enum link_stop:            # why a link neither reads nor walks; it goes on when none is left
    STOP_PAUSED = 1             # an answer waits for the disk
    STOP_HELD = 2               # a publish waits until the disk has room
    STOP_CHOKED = 4             # the peer does not read what we send
    STOP_CROWD = 8              # consumers come first
    STOP_TURN = 16              # others come first: it has kept the loop busy
    STOP_ENDED = 32             # the peer has gone; it is let go when others have been heard

cdef enum link_state:
    LINK_HEADER = 0             # the 8-byte protocol header is awaited
    LINK_HANDSHAKE = 1
    LINK_OPEN = 2
    LINK_CLOSING = 3            # connection.close sent; all but close and close-ok is discarded
    LINK_CLOSED = 4

cdef enum walk_event:           # why a walk has stopped, see protocol_t
    WALK_DONE = 0               # all whole frames are used up
    WALK_METHOD = 1             # ev_data, ev_len: what Python is to answer
    WALK_MISS = 2               # ev_data, ev_len: a question for answers.pyx; the frame is kept
    WALK_ERROR = 3              # ev_len: what is wrong, by the protocol's own numbers
    WALK_CLOSE = 4              # not legal here: drop the socket
    WALK_HELD = 5               # a publish has to wait for the disk; the frame is not used up
    WALK_TURN = 6               # the portion is over; the frame is not used up
    WALK_HEADER = 7             # ev_data, ev_len: what a connection begins with
    WALK_PACKET = 8             # MQTT: ev_method, ev_a, ev_data, ev_len: a packet that is Python's
    WALK_BAD_PACKET = 9         # MQTT: ev_method: a reason code; ev_data: what is wrong, as text
    WALK_TOPIC = 10             # MQTT: ev_data, ev_len: may it be published to? It is not used up
    WALK_CROWD = 11             # MQTT: who gets its messages is busy: wait a moment

cdef enum walk_error:           # ev_len of WALK_ERROR; the first ones close the connection
    ERROR_FRAME_SIZE = 1
    ERROR_FRAME_END = 2
    ERROR_FRAME_TYPE = 3
    ERROR_PROPERTY_FLAGS = 4
    ERROR_HEARTBEAT_SIZE = 5
    ERROR_HEARTBEAT_CHANNEL = 6
    ERROR_SHORT_PAYLOAD = 7
    ERROR_LONG_PAYLOAD = 8
    ERROR_HEADERS_TABLE = 9
    ERROR_BODY_TOO_LONG = 10
    ERROR_CONTENT_ON_CHANNEL_0 = 11
    ERROR_NO_MEMORY = 12
    ERROR_CHANNEL = 20          # from here on a channel is to blame
    ERROR_UNEXPECTED_METHOD = 21
    ERROR_UNEXPECTED_HEADER = 22
    ERROR_UNEXPECTED_BODY = 23
    ERROR_UNKNOWN_TAG = 24
    ERROR_MESSAGE_SIZE = 25
    ERROR_EXPIRATION = 26
    ERROR_EXPIRATION_NEGATIVE = 27
    ERROR_USER_ID = 28
    ERROR_NO_REPLY_CONSUMER = 29
    ERROR_TX_ALREADY_SETTLED = 30
    ERROR_TX_TOO_LARGE = 31
    ERROR_CC = 32
    ERROR_BCC = 33
    ERROR_LARGE = 34
    ERROR_HASH_HEADER = 35
    ERROR_COPIES = 36

cdef struct protocol_t:         # what is spoken on a link: all that a broker calls of it
    # Walk the whole frames in n bytes: a walk_event; *used counts the bytes that are done.
    int (*walk)(link_t* l, const u8* p, u64 n, u64* used) noexcept nogil
    # Bytes of the frame that begins at p; 0 = the n bytes there do not say.
    u64 (*frame_size)(const link_t* l, const u8* p, u64 n) noexcept nogil
    # A delivery with its content into the output. False when the link takes no more for now, or
    # its client never takes this one (`is_oversized`).
    bint (*deliver)(consumer_t* k, rec_t* rec, u64 tag) noexcept nogil
    # All publishes of the channel up to number seq are safe, or not. Whether it is written.
    bint (*confirm)(chan_t* c, u64 seq, bint is_ack) noexcept nogil
    # The last publish of the channel alone is refused. Whether it is written.
    bint (*refuse)(chan_t* c) noexcept nogil
    # A publish goes back to its client, for nobody has got it. 0, or -1 out of memory.
    int (*give_back)(chan_t* c, const msg_t* m, u16 code, const char* text) noexcept nogil
    # Tell the peer that we are there.
    void (*heartbeat)(link_t* l) noexcept nogil
    # A piece of a body that is sent for itself, see rest.pyx: bytes around it, and who writes them.
    u32 piece_head
    u32 piece_tail
    void (*piece_begin)(u8* p, u16 channel, u32 size) noexcept nogil
    void (*piece_end)(u8* p) noexcept nogil
    i64 grace_ns                # of silence beyond the heartbeat's interval

cdef struct job_t:              # long work that is no link's, first member of what it works on
    job_step_t step             # works until loop_spent says so; whether there is more
    job_t* next

cdef struct dedup_rewrite_t:    # a file of keys that is being written anew, aside
    job_t job                   # must stay first
    dedup_t* dedup
    int fd
    u32 done                    # the last entry that was written, 0 = none that is there still
    i64 size                    # of the file so far

cdef struct rest_t:             # output that ends in a body which is still where it was
    job_t job                   # must stay first
    link_t* link
    rest_t* next                # what is sent behind it
    queue_t* queue              # a reference, NULL = the body is in memory
    u8* body                    # that memory, owned and counted for the link
    u64 body_cap
    int fd                      # of the file, its own
    proof_t* proof              # sums of the body, NULL = nobody has any
    u8 level
    u8 breaks                   # how often the queue had broken
    u16 channel
    u32 seg
    u32 chunk                   # most bytes of the body in a piece
    u32 frame_size              # of the frame that is being sent
    u32 frame_left              # of it, not read yet: it is larger than a block
    i64 at                      # in the file, or the memory, of what comes next
    u64 left                    # bytes of the body that are not read
    u8* buf                     # what is sent first: at first what was in the output
    u32 buf_at
    u32 buf_end
    u32 cap

cdef struct tls_t:              # how a wire with TLS reads and writes; both without the GIL
    # Bytes taken into or out of p, -EAGAIN, or -EIO when it has failed; read: 0 at the orderly end.
    # A write that gives -EAGAIN waits for room, a read for input.
    i64 (*read)(wire_t* w, u8* p, u64 n) noexcept nogil
    i64 (*write)(wire_t* w, const u8* p, u64 n) noexcept nogil
    bint (*pending)(const wire_t* w) noexcept nogil     # it holds input that no event will show

cdef struct tls_provider_t:     # what a capsule of that name hands over
    const tls_t* calls
    void* session

cdef struct wire_t:             # the socket half of a link: nothing in it knows a protocol
    int fd                      # -1 = let go of
    u32 watched                 # what the kernel looks for: EPOLLIN and others; 0 = it is not asked
    const tls_t* tls            # NULL = plain
    void* tls_session           # what that works on
    u8* left                    # bytes of a frame that is not complete
    u32 n_left
    u32 cap_left
    u32 need                    # bytes of that frame when known, else 0
    u32 out_at
    u8* out                     # block of what is to be sent
    u32 out_end
    u32 out_cap
    flag_t is_blocked           # no more output is taken for now: it is slow
    flag_t is_lost              # the kernel reported the connection gone while sending
    flag_t has_writer           # the kernel is asked for room in the socket
    i64 last_read_ns
    i64 last_sent_ns
    u64 n_received_bytes
    u64 n_sent_bytes

cdef struct link_t:
    wire_t wire                 # must stay first
    const protocol_t* protocol  # NULL = nobody's: nothing is ever written to it
    u8 state
    flag_t is_in_flush
    flag_t is_oversized         # one of its channels is
    flag_t is_unreadable        # a body that is to be sent is not there any more
    flag_t is_unread            # its turn was over before it was read
    flag_t is_asking            # of MQTT: what was read is more than acknowledgements
    flag_t is_held              # the end of its output waits for the disk
    flag_t is_full              # and a consumer waits for that
    flag_t is_holder            # one of its channels has held a delivery
    flag_t is_in_ages           # the ages of its deliveries are being looked at
    flag_t is_impersonator      # it may publish with any user-id
    u8 stops                    # link_stop bits: frames are kept, not walked
    i64 late_until_ns           # it has kept the loop busy: until then others come first
    u32 crowd_bytes             # published to crowded queues since the link was last held
    u32 frame_max               # largest payload accepted; bodies are sent in frame_max - 8
    u64 max_message_size
    loop_t* loop
    vhost_t* vhost
    knowns_t* known             # made at the first publish
    answers_t* answers          # where the exchange alone does not decide, NULL = nowhere so far
    mqtt_t* mqtt                # NULL = it does not speak that, or its CONNECT is not answered yet
    chan_t** chans              # by channel id, up to DENSE_CHANNELS
    u32 cap_chans
    u32 user_len
    chan_t* sparse              # channels of higher ids
    const u8* user              # login name, for the user-id check
    u64 held_at                 # where that begins, counted from the first byte that it sent
    rest_t* rests               # what is sent before the output
    rest_t* last_rest
    u64 rest_bytes
    u64 large_bytes             # its part of the loop's
    link_t* flush_next
    link_t* blocked_next
    link_t* look_next           # in its slot of the wheel
    link_t** look_at            # what points to it there, NULL = it is in none
    i64 heartbeat_ns            # 0 = none
    i64 deadline_ns             # handshake or close must be over by then, 0 = none
    u32 held_ds                 # it holds no delivery from before, in tenths since the loop began
    i64 overdue_look_ns         # when one that is held for too long was looked for
    void* owner                 # the Link, borrowed

cdef struct pool_t:
    u8* free_blocks[16]
    u32 n
    u32 n_used                  # blocks that are not here

cdef struct watch_t:            # see loop/watch.pyx
    int fd                      # of the kernel's list of what is looked at; -1 = it is closed
    int n                       # events that were found and are being told
    int at                      # the next one of them
    u64 n_changes               # of what is looked for
    epoll_event found[FOUND_EVENTS]

cdef struct loop_t:
    pool_t pool
    watch_t watch
    vacant_t* vacants           # see queue/vacant.pyx
    u8* input                   # shared by all links, BLOCK_SIZE bytes
    u32 work                    # units of about 10 ns since the clock was looked at
    u32 look_units              # after which it is looked at
    u32 touch_units             # of them for the tick, for each queue that it has to look at
    i64 touch_ns                # what that takes, of late
    i64 owed_ns                 # by the tick: what was touched since the last one
    i64 make_ns                 # what making a file takes, of late
    i64 make_owed_ns            # by the tick: for the files that it has to make
    i64 made_ns                 # what all files took since the beginning
    queue_t* over               # queues to hold to their limits before anything else happens
    queue_t* last_over
    queue_t* over_rest          # those for which the portion was not enough: a job of the loop
    queue_t* last_over_rest
    i64 now_ns
    i64 now_ms                  # Unix milliseconds
    u32 n_closed                # queues that are closed, also those that are being forgotten
    u32 match_look              # the same for a routing, which then asks
    u32 max_copies              # keys in CC and BCC of one message
    u32 portion_units           # that a portion has in tests, 0 = portions are of time
    flag_t is_spent             # the portion is over
    flag_t is_working           # the clock was looked at since it began
    i64 look_ns                 # when that was
    i64 portion_ends_ns
    job_t* jobs                 # in the order of their turns
    job_t* last_job
    u32 n_orphans               # of these, jobs that give deliveries back to their queues
    link_t nowhere              # of channels that are no client's
    u32 n_stores                # of all queues: each level of a priority queue has one
    u32 keep_files              # with more stores than this none keeps its files open
    flag_t is_confirm_new       # a channel has asked for confirms since the last tick
    flag_t is_news              # a store was damaged, stuck, freed or broke: to be logged
    flag_t is_low               # the free-space watch says so
    flag_t is_held              # publishers wait: the disk is low, a queue is stuck or a log full
    dedup_t* dirty_dedups       # caches with keys to write
    budget_t dedup_budget
    budget_t history_budget
    flag_t is_replaying         # what an exchange has kept is being published
    flag_t is_stamping          # publishes without a timestamp get one
    queue_t* stuck              # queues whose last write found no room
    u32 n_full_logs             # logs of sessions of which the same is so
    u32 n_breaks                # queues that broke since start
    u64 large_bytes             # memory in messages too large for pooled blocks
    u64 max_large               # above which no more is taken
    u64 large_peak              # its maximum since memory was given back last
    flag_t is_release_due       # a queue is not crowded any more
    consumer_t* over_consumers  # of streams: those whose clients are to be told so
    flag_t is_expiring          # messages are past their time, and the last portion was not enough
    queue_t** dues              # min-heap by due_ms
    u32 n_dues
    u32 cap_dues
    queue_t* held               # queues with deletions that wait for a sync
    queue_t* parked             # queues with messages that could not be moved
    queue_t* hauling            # queues with large messages that are to go elsewhere
    queue_t* last_hauling
    haul_t* hauls               # on their way, the first one first: of deleted queues, or one
    job_t hauler                # the job with which they go
    flag_t is_hauling           # it is at work
    int haul_rest               # what to do with a message that could not begin, a move_result
    i64 no_room_until_ms        # a large message has found the disk full: none is tried
    queue_t** takers            # durable queues that took the message which is being moved
    u32 n_takers
    u32 cap_takers
    flag_t is_from_durable      # it comes from a durable queue
    queue_t* refuser            # which could not take it
    queue_t* unindexed          # loaded queues in which nobody has looked for deadlines yet
    u64 n_plans                 # commits that were looked at before they were carried out
    u64 n_syncs                 # started since the beginning
    u64 n_synced                # of them, over
    ahead_t* ahead              # the file of the message that is being appended, NULL = none
    u32 n_aheads                # such files since the beginning
    flag_t is_large_wanted      # the next sync has a large message to write
    flag_t is_run_large         # the one in flight has
    flag_t is_whole_wanted      # the next sync has more files than there are descriptors for
    flag_t is_run_whole         # the one in flight has
    flag_t is_committing        # a commit that found room before is carried out: no queue is full
    flag_t is_moving            # one is being moved: nothing is delivered meanwhile
    flag_t is_noted             # messages were noted in a log of sessions that are not written
    flag_t is_moved             # a message was moved to another queue since the last flush
    u8* count_header            # x-delivery-count, to be filled in: 21 bytes
    scratch_t scratch           # where a message is put together
    scratch_t carry             # the same for movers
    targets_t buried            # where it goes
    i64 began_ns
    u32 now_ds                  # tenths of a second since then
    u64 shortest_timeout_ms     # no queue has had a shorter one, 0 = none had any
    i64 overdue_pause_ns        # between two looks at a link for deliveries held for too long
    u64 n_overdue_looks         # since start
    i64 clock_offset_ms         # added to the clock, for tests
    queue_t* tick_queues        # queues with something to do at the end of the iteration
    u32 n_tick_queues
    link_t* flush_links         # links with output
    link_t* flush_rest          # those that a tick had no time for
    link_t* blocked_links       # links that need a writer watch, or are lost
    link_t* looks[16]           # LOOK_SLOTS: links by when they are looked at next
    i64 look_slot               # the slot that is emptied next, counted from the clock's beginning
    u32 n_looks
    chan_t** confirms           # channels with publishes to confirm
    u32 n_confirms
    u32 cap_confirms
    chan_t** batch              # channels of the sync in flight
    u32 n_batch
    u32 cap_batch
    consumer_t** patient        # consumers whose little credit is used within a millisecond
    u32 n_patient
    u32 cap_patient
    flag_t is_syncing
    flag_t sync                 # confirms wait for the disk
    u64 expected                # publishes that a sync should cover, from what others covered
    i64 linger_until_ns         # when it waits for them no longer, 0 = it does not wait
    owing_t* owing              # queues with messages whose duplicates wait for a sync
    queue_t** sync_queues       # queues with confirmed publishes to sync
    u32 n_sync_queues
    u32 cap_sync_queues
    int* sync_fds               # descriptors for the next sync, owned
    u32 n_sync_fds
    u32 cap_sync_fds
    int* run_fds                # descriptors of the sync in flight, owned by the worker
    u32 n_run_fds
    u32 cap_run_fds
    int dir_fd                  # data directory, for syncfs
    observer_t* observer        # the first of those told of changes of files, NULL = nobody is
    touches_t touches           # of the same, but for what is made and appended
    size_t touched_root_len     # bytes of the data directory's path
    sums_t* sums                # of segments at rest, by which they are read
    copies_t* copies            # that have to have what is synced, NULL = there are none
    flag_t is_behind            # they are, by so much that who sends much is not read
    flag_t is_below             # there are too few, and who publishes is told instead of waiting
    u8 n_snapshots              # while there are any no file gets holes, nor data over filling
    flag_t is_reading           # they are another's to change: whoever tries is refused
    u32 n_kept_out              # how often that has happened
    reached_t reached           # what the routings under way have reached
    u32 n_reads                 # links that were read since the last tick
    # what the walker of a link hands to Python, which looks at once
    const u8* ev_data
    u32 ev_len
    u16 ev_channel
    u32 ev_method               # class << 16 | method, 0 for content frames
    u64 ev_a
    u64 ev_b
    i64 sync_ns                 # how long the last sync took
    histogram_t sync_times      # how long all took
    histogram_t confirm_times   # from the oldest publish that an ack covers to that ack
    i64 file_ns                 # what syncing one file takes, of late
    i64 whole_ns                # what syncing the file system takes, of late
    i64 inline_from_ns          # until then syncs are left to the worker
    # Of a record of MQTT with that QoS: writes its properties as AMQP has them, in no more than
    # three times their bytes and 2048. Returns their length.
    u32 (*as_amqp)(const rec_t* r, u8 qos, u8* out) noexcept nogil
    mlog_t* dirty_logs          # of MQTT, with entries to write
    slog_t* left_logs           # of sessions, where clients have left something on its way
    flag_t has_lost             # what nobody was told to be safe was lost, since they were told
    mlog_t* sync_logs           # and those that the next sync has to cover

# Core: the umbrella. One extension module, so that every function can be inlined across files.
"""The message path of lavinmq: frames in, segments, frames out. See `_core.pyi` for the door."""
# For all included files: they share one namespace. What a single one needs stands at its head.
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport (
    EAGAIN, EDQUOT, EFBIG, EINTR, EIO, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSPC, errno,
)
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset, strlen
from posix.fcntl cimport (
    O_CLOEXEC, O_CREAT, O_NONBLOCK, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY, open as c_open,
)
from posix.unistd cimport close as c_close, dup as c_dup, ftruncate, unlink

from bytes cimport (
    be16, be32, be64, hash_bytes, i64, le32, le64, lmq_assert, lmq_poison,
    put_be16, put_be32, put_be64, put_le32, put_le64, same_bytes, set_errno,
    u8, u16, u32, u64,
)
from match cimport (
    DEST_EXCHANGE, DEST_GONE, DEST_QUEUE, MATCH_DIRECT, MATCH_FANOUT, MATCH_HASH, MATCH_HEADERS,
    MATCH_MODULUS, MATCH_RANDOM, MATCH_TOPIC, dest_t, match_key_t, match_t, targets_t,
)
from record cimport (
    FLAG_CORRELATION_ID, FLAG_DELIVERY_MODE, FLAG_EXPIRATION, FLAG_HEADERS, FLAG_MESSAGE_ID,
    FLAG_PRIORITY, FLAG_TIMESTAMP, NEWEST_MS, RECORD_FIXED, SCHEMA_VERSION, SEGMENT_HEADER,
    msg_note_plain, msg_note_props, props_place, props_t, props_to_wire, props_walk, record_parse,
    record_write,
)
from types cimport *

include "base/table.pyx"
include "base/fields.pyx"
include "base/clock.pyx"
include "portion.pyx"
include "freeing.pyx"
include "closer.pyx"
include "segment.pyx"
include "reserve.pyx"
include "chain.pyx"
include "salvage.pyx"
include "store.pyx"
include "cursor.pyx"
include "counts.pyx"
include "siphash.pyx"
include "dedup.pyx"
include "dedup_log.pyx"
include "tally.pyx"
include "queue.pyx"
include "ahead.pyx"
include "expiry.pyx"
include "rules.pyx"
include "moves.pyx"
include "dead_letter.pyx"
include "delayed.pyx"
include "haul.pyx"
include "match.pyx"
include "hash_ring.pyx"
include "pick.pyx"
include "copies.pyx"
include "answers.pyx"
include "route.pyx"
include "channel.pyx"
include "orphans.pyx"
include "rest.pyx"
include "deliver.pyx"
include "stream_filter.pyx"
include "stream_offsets.pyx"
include "stream_read.pyx"
include "stream_sync.pyx"
include "stream.pyx"
include "stream_retention.pyx"
include "transaction.pyx"
include "amqp.pyx"
include "tick.pyx"
include "wheel.pyx"
include "loop.pyx"
include "load.pyx"
include "stream_load.pyx"
include "door.pyx"
include "compaction.pyx"
include "purge.pyx"
include "migrate.pyx"
include "link.pyx"
include "manage.pyx"
include "stream_raw.pyx"

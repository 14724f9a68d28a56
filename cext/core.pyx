# Core: the umbrella. One extension module, so that every function can be inlined across files.
"""The message path of lavinmq: frames in, segments, frames out. See `_core.pyi` for the door."""
# For all included files: they share one namespace. What a single one needs stands at its head.
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.errno cimport (
    EAGAIN, ECONNRESET, EDQUOT, EFBIG, EINTR, EIO, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSPC, errno,
)
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset, strlen, strncmp
from posix.fcntl cimport (
    O_CLOEXEC, O_CREAT, O_NONBLOCK, O_RDONLY, O_RDWR, O_TRUNC, open as c_open,
)
from posix.unistd cimport close as c_close, dup as c_dup

from bytes cimport (
    be16, be32, be64, hash_bytes, i32, i64, le16, le32, le64, lmq_assert, lmq_poison,
    put_be16, put_be32, put_be64, put_le32, put_le64, same_bytes, set_errno,
    u8, u16, u32, u64,
)
from match cimport *
from record cimport (
    FLAG_CORRELATION_ID, FLAG_DELIVERY_MODE, FLAG_EXPIRATION, FLAG_HEADERS, FLAG_MESSAGE_ID,
    FLAG_PRIORITY, FLAG_TIMESTAMP, NEWEST_MS, RECORD_FIXED, SCHEMA_VERSION, SEGMENT_HEADER,
    msg_note_plain, msg_note_props, props_place, props_t, props_to_wire, props_walk, record_parse,
    record_write,
)
from types cimport *

include "base/table.pyx"
include "base/fields.pyx"
include "base/properties.pyx"
include "base/buffer.pyx"
include "base/text.pyx"
include "base/table_json.pyx"
include "base/clock.pyx"
include "base/heap.pyx"
include "base/portion.pyx"
include "base/freeing.pyx"
include "base/closer.pyx"
include "base/siphash.pyx"
include "match/keys.pyx"
include "match/topic.pyx"
include "match/headers.pyx"
include "match/hash_ring.pyx"
include "match/pick.pyx"
include "match/filters.pyx"
include "match/match.pyx"
include "match/copies.pyx"
include "store/files.pyx"
include "store/segment.pyx"
include "store/reserve.pyx"
include "store/chain.pyx"
include "store/salvage.pyx"
include "store/store.pyx"
include "store/cursor.pyx"
include "store/walk.pyx"
include "store/counts.pyx"
include "store/handover.pyx"
include "link/protocol.pyx"
include "link/wire.pyx"
include "link/output.pyx"
include "queue/dedup.pyx"
include "queue/dedup_log.pyx"
include "queue/tally.pyx"
include "queue/session.pyx"
include "queue/queue.pyx"
include "queue/unacked.pyx"
include "queue/deliver.pyx"
include "queue/wishes.pyx"
include "queue/ahead.pyx"
include "queue/expiry.pyx"
include "queue/features.pyx"
include "queue/moves.pyx"
include "queue/through.pyx"
include "queue/dead_letter.pyx"
include "queue/delayed.pyx"
include "queue/sample.pyx"
include "queue/history.pyx"
include "queue/haul.pyx"
include "queue/load.pyx"
include "stream/stream_filter.pyx"
include "stream/stream_offsets.pyx"
include "stream/stream_read.pyx"
include "stream/stream_sync.pyx"
include "stream/stream.pyx"
include "stream/stream_retention.pyx"
include "stream/stream_load.pyx"
include "channel/checks.pyx"
include "channel/answers.pyx"
include "channel/route.pyx"
include "channel/publish.pyx"
include "channel/publish_job.pyx"
include "channel/channel.pyx"
include "channel/orphans.pyx"
include "channel/rest.pyx"
include "channel/confirms.pyx"
include "channel/transaction.pyx"
include "amqp/frames.pyx"
include "amqp/deliver.pyx"
include "amqp/replies.pyx"
include "amqp/get.pyx"
include "amqp/content.pyx"
include "amqp/amqp.pyx"
include "amqp/protocol.pyx"
include "mqtt/log.pyx"
include "mqtt/topic_tree.pyx"
include "mqtt/retained.pyx"
include "mqtt/retained_walk.pyx"
include "mqtt/retained_clean.pyx"
include "mqtt/session_state.pyx"
include "mqtt/session_log.pyx"
include "mqtt/session_load.pyx"
include "mqtt/properties.pyx"
include "mqtt/write.pyx"
include "mqtt/record.pyx"
include "mqtt/deliver.pyx"
include "mqtt/acks.pyx"
include "mqtt/fold.pyx"
include "mqtt/publish.pyx"
include "mqtt/retained_give.pyx"
include "mqtt/walk.pyx"
include "mqtt/protocol.pyx"
include "loop/clock.pyx"
include "loop/tick.pyx"
include "loop/wheel.pyx"
include "loop/watch.pyx"
include "loop/loop.pyx"
include "loop/wire.pyx"
include "door/changes.pyx"
include "door/dedup_cache.pyx"
include "door/mqtt_log.pyx"
include "door/sample.pyx"
include "door/queue.pyx"
include "door/restart.pyx"
include "door/vhost.pyx"
include "door/exchange.pyx"
include "door/consumer.pyx"
include "door/link.pyx"
include "door/mqtt.pyx"
include "door/retained_store.pyx"
include "door/session_log.pyx"
include "door/table_text.pyx"
include "door/manage.pyx"
include "door/browse.pyx"
include "door/chosen.pyx"
include "door/stream_raw.pyx"
include "door/compaction.pyx"
include "door/purge.pyx"
include "door/replay.pyx"
include "door/migrate.pyx"

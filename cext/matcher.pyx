# Matcher: the umbrella of the compiled bindings alone, for tests and measurements (make trial).
# For all included files: they share one namespace.
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset, strlen

from bytes cimport (
    be16, be32, be64, hash_bytes, i64, lmq_assert, put_be16, put_be32, same_bytes,
    u8, u16, u32, u64,
)
from match cimport *
from record cimport (
    FLAG_CORRELATION_ID, FLAG_DELIVERY_MODE, FLAG_EXPIRATION, FLAG_HEADERS, FLAG_MESSAGE_ID,
    FLAG_PRIORITY, FLAG_TIMESTAMP, props_place, props_t, props_walk,
)
from types cimport *

include "base/table.pyx"
include "base/fields.pyx"
include "base/properties.pyx"
include "base/crc.pyx"
include "match/keys.pyx"
include "match/topic.pyx"
include "match/headers.pyx"
include "match/hash_ring.pyx"
include "match/pick.pyx"
include "match/filters.pyx"
include "match/match.pyx"
include "match/copies.pyx"
include "trial/matcher.pyx"

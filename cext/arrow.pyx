# Arrow: the umbrella of the compiled module that Spark tasks use. The broker never imports it.
"""Messages as Arrow columns, for Spark: see `_arrow.pyi` for what is offered here."""
# For all included files: they share one namespace. What a single one needs stands at its head.
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int8_t as i8, int16_t as i16
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from bytes cimport (
    be16, be32, be64, i32, i64, le16, le32, le64, put_le64, u8, u16, u32, u64,
)
from record cimport RECORD_FIXED, props_t, props_walk, record_parse
from types cimport rec_t

include "base/table.pyx"
include "base/buffer.pyx"
include "base/text.pyx"
include "arrow/memory.pyx"
include "arrow/headers.pyx"
include "arrow/columns.pyx"
include "arrow/batch.pyx"
include "store/chain.pyx"
include "arrow/segments.pyx"
include "arrow/decode.pyx"
include "arrow/input.pyx"
include "arrow/message.pyx"
include "arrow/properties.pyx"
include "arrow/encode.pyx"
include "arrow/publish.pyx"
include "arrow/confirms.pyx"

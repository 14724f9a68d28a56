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
include "arrow_buffer.pyx"
include "arrow_text.pyx"
include "arrow_headers.pyx"
include "arrow_columns.pyx"
include "arrow_batch.pyx"
include "chain.pyx"
include "arrow_segments.pyx"
include "arrow_decode.pyx"
include "arrow_input.pyx"
include "arrow_message.pyx"
include "arrow_properties.pyx"
include "arrow_encode.pyx"
include "arrow_publish.pyx"
include "arrow_confirms.pyx"

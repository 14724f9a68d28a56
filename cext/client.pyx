# Client: the umbrella of the compiled module of lavinmq.client. The broker has it for its shovels.
"""Frames, publish rings, deliveries and acks of a client, without I/O: see `_engine.pyi`."""
# For all included files: they share one namespace. What a single one needs stands at its head.
cimport cython
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int8_t as i8, int16_t as i16
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from bytes cimport be16, be32, be64, i32, i64, put_be16, put_be32, put_be64, u8, u16, u32, u64

include "base/table.pyx"
include "base/buffer.pyx"
include "client/errors.pyx"
include "client/values.pyx"
include "client/methods.pyx"
include "client/properties.pyx"
include "client/output.pyx"
include "client/tracker.pyx"
include "client/message.pyx"
include "client/rewriter.pyx"
include "client/parcel.pyx"
include "client/receipt.pyx"
include "client/ring.pyx"
include "client/passage.pyx"
include "client/port.pyx"
include "client/input.pyx"

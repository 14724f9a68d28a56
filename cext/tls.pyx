# Tls: the umbrella of `lavinmq._tls`, TLS by OpenSSL's library, for wires of the loop, and for
# those between the nodes of a cluster.
#
# Neither knows any of it: they get a table of three functions (tls_t) that read and write without
# the GIL. Loaded only when there is a certificate.
"""TLS by OpenSSL, read and written without Python. See `_tls.pyi`."""
# For all included files: they share one namespace.
cimport cython
from cpython.pycapsule cimport PyCapsule_New
from libc.errno cimport EAGAIN, EINTR, EIO, ENOMEM, errno
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove, memset, strlen
from posix.fcntl cimport O_APPEND, O_CLOEXEC, O_CREAT, O_WRONLY, open as c_open
from posix.unistd cimport close as c_close, write as c_write

import os
import ssl

from bytes cimport i64, u8, u32, u64
from types cimport BLOCK_SIZE, TLS_PROVIDER, flag_t, tls_provider_t, tls_t, wire_t

include "base/clock.pyx"
include "tls/openssl.pyx"
include "tls/errors.pyx"
include "tls/bio.pyx"
include "tls/wire.pyx"
include "tls/certificate.pyx"
include "tls/context.pyx"
include "tls/session.pyx"

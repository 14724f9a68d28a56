# Trial of TLS: the umbrella of a provider of TLS that is an object of Python, so that tests can
# have every wait and failure at will. Compiled for tests (make trial), never shipped.
cimport cython
from cpython.pycapsule cimport PyCapsule_New
from libc.errno cimport EAGAIN, EIO

from bytes cimport i64, u8, u64
from types cimport BLOCK_SIZE, TLS_PROVIDER, tls_provider_t, tls_t, wire_t

include "trial/tls.pyx"

# Cluster: the umbrella of `lavinmq._cluster`, changes of files on their way between nodes.
#
# A leader's feed hears of each change (observer_t) and holds up acknowledgements until enough
# followers have it on disk (copies_t); a follower makes the changes again. The loop knows none of
# it but these two structs. Loaded only with clustering.
"""Changes of files from the leader of a cluster to its followers. See `_cluster.pyi`."""
# For all included files: they share one namespace.
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.errno cimport (
    EAGAIN, EBADMSG, EDQUOT, EINTR, ENAMETOOLONG, ENOENT, ENOMEM, ENOSPC, EPROTO, ETIMEDOUT,
    errno,
)
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strlen
from posix.fcntl cimport O_CLOEXEC
from posix.unistd cimport close as c_close

import os

from bytes cimport (
    i64, le16, le32, le64, put_le16, put_le32, put_le64, set_errno, u8, u16, u32, u64,
)
from types cimport (
    CHANGE_APPEND, CHANGE_HOLE, CHANGE_MAKE, CHANGE_MAKE_DIRECTORY, CHANGE_PATCH, CHANGE_REMOVE,
    CHANGE_REMOVE_DIRECTORY, CHANGE_RENAME, CHANGE_TRUNCATE, N_BUCKETS, TLS_PROVIDER, TOUCH_ALL,
    copies_t, flag_t, histogram_t, tls_provider_t, touches_t, wire_t,
)

include "base/clock.pyx"
include "base/histogram.pyx"
include "base/touches.pyx"
include "base/closer.pyx"
include "cluster/touched.pyx"
include "cluster/ring.pyx"
include "cluster/channel.pyx"
include "cluster/pack.pyx"
include "cluster/blocks.pyx"
include "cluster/kept.pyx"
include "cluster/feed.pyx"
include "cluster/peer.pyx"
include "cluster/apply.pyx"
include "cluster/follow.pyx"
include "cluster/door.pyx"

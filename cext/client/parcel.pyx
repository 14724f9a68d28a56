# Parcel: a delivered message that goes on, from a port into a ring, in one piece of memory.
#
# Behind its head lie the target (exchange and routing key as two short strings; none = the ring's),
# the properties and the body. It knows what is to be acknowledged when it has ended well.

cdef struct parcel_t:
    PyObject* tracker           # an owned reference; NULL = there is nothing to settle
    u64 tag
    u64 incarnation
    u64 n_body
    u32 n_props
    u32 n_target


cdef inline u8* parcel_target(parcel_t* parcel) noexcept:
    return <u8*>(parcel + 1)


cdef inline u8* parcel_props(parcel_t* parcel) noexcept:
    return <u8*>(parcel + 1) + parcel.n_target


cdef inline u8* parcel_body(parcel_t* parcel) noexcept:
    return <u8*>(parcel + 1) + parcel.n_target + parcel.n_props


cdef inline u64 parcel_size(parcel_t* parcel) noexcept:
    """Bytes of what it carries."""
    return parcel.n_target + <u64>parcel.n_props + parcel.n_body


cdef parcel_t* parcel_make(u64 n_target, const u8* props, u64 n_props, u64 n_body) except NULL:
    """One whose target and body are still to be written."""
    cdef parcel_t* parcel = <parcel_t*>malloc(sizeof(parcel_t) + n_target + n_props + n_body)
    if parcel == NULL:
        raise MemoryError
    parcel.tracker = NULL
    parcel.n_target, parcel.n_props, parcel.n_body = <u32>n_target, <u32>n_props, n_body
    memcpy(parcel_props(parcel), props, n_props)
    return parcel


cdef void parcel_free(parcel_t* parcel) noexcept:
    if parcel != NULL:
        Py_XDECREF(parcel.tracker)
        free(parcel)


cdef int parcel_settle(parcel_t* parcel, int method, bint requeue) except -1:
    """Tell where it came from how it ended."""
    cdef Tracker tracker
    if parcel.tracker != NULL:
        tracker = <Tracker>parcel.tracker
        with cython.critical_section(tracker):
            tracker.settle(parcel.incarnation, parcel.tag, method, requeue)
    return 0

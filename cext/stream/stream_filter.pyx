# Stream filter: which messages of a stream a consumer wants, decided from their headers alone.
#
# A filter is a list of conditions, compiled once from what lavinmq/arguments/stream.py has checked.
# The headers of a message are gone through once, however many conditions there are: what is found
# of those that any condition asks for is noted, and so are the texts in the list of values.
# Text forms are not made at run time: where a condition's text is that of a number, a boolean or a
# time, that value is compared. Reads record headers in place; never allocates while matching.
# Called by stream_read.pyx. Source: docs/streams.md, filters.
from libc.math cimport asin, cos, sin, sqrt

cdef enum condition_kind:
    WANT_VALUE = 0              # the list in x-stream-filter-value has the text
    WANT_HEADER = 1             # the header `key` has the text
    WANT_RADIUS = 2             # the message's place is in a circle
    WANT_BOX = 3
    WANT_POLYGON = 4

cdef enum text_form:            # what else has the same text as a condition's
    FORM_INTEGER = 1
    FORM_NUMBER = 2             # float64
    FORM_NUMBER32 = 4
    FORM_SECONDS = 8            # a timestamp
    FORM_TRUE = 16
    FORM_FALSE = 32

cdef enum:
    EARTH_KM = 6371

cdef double RADIANS = 0.017453292519943295      # of a degree


cdef enum:                      # keys that every filter looks for
    KEY_VALUES = 0
    KEY_LAT = 1
    KEY_LON = 2
    NOT_WANTED = 0xFFFFFFFF


cdef struct place_t:            # where a message says that it belongs
    bint is_known               # the headers have been looked at
    bint is_valid
    double lat
    double lon


# ---- header values -------------------------------------------------------------------------------

cdef inline double be_double(const u8* p) noexcept nogil:
    cdef u64 bits = be64(p)
    cdef double value
    memcpy(&value, &bits, 8)
    return value


cdef inline float be_float(const u8* p) noexcept nogil:
    cdef u32 bits = be32(p)
    cdef float value
    memcpy(&value, &bits, 4)
    return value


cdef bint value_integer(const u8* value, i64* out) noexcept nogil:
    """The integer of a field value at its type. Whether it is one."""
    cdef u8 kind = value[0]
    if kind == c'b':
        out[0] = <signed char>value[1]
    elif kind == c'B':
        out[0] = value[1]
    elif kind == c's' or kind == c'U':
        out[0] = <short>be16(value + 1)
    elif kind == c'u':
        out[0] = be16(value + 1)
    elif kind == c'I':
        out[0] = <int>be32(value + 1)
    elif kind == c'i':
        out[0] = be32(value + 1)
    elif kind == c'l' or kind == c'L':
        out[0] = <i64>be64(value + 1)
    else:
        return False
    return True


cdef bint value_number(const u8* value, double* out) noexcept nogil:
    """The number of a field value, integer or not. Whether it is one."""
    cdef i64 integer
    if value[0] == c'd':
        out[0] = be_double(value + 1)
    elif value[0] == c'f':
        out[0] = be_float(value + 1)
    elif value_integer(value, &integer):
        out[0] = <double>integer
    else:
        return False
    return True


cdef bint has_same_text(const condition_t* want, const u8* value) noexcept nogil:
    """Whether the text form of a field value is the condition's text. Tables, arrays and decimals
    have none."""
    cdef u8 kind = value[0]
    cdef i64 integer
    if kind == c'S' or kind == c'x':
        return be32(value + 1) == want.text_len and same_bytes(value + 5, want.text, want.text_len)
    if kind == c'V':
        return want.text_len == 0
    if kind == c't':
        return want.forms & (FORM_TRUE if value[1] else FORM_FALSE) != 0
    if kind == c'T':
        return want.forms & FORM_SECONDS and want.seconds == <i64>be64(value + 1)
    if kind == c'd':
        return want.forms & FORM_NUMBER and want.number == be_double(value + 1)
    if kind == c'f':
        return want.forms & FORM_NUMBER32 and want.number32 == be_float(value + 1)
    return (want.forms & FORM_INTEGER and value_integer(value, &integer)
            and integer == want.integer)


# ---- what is looked for --------------------------------------------------------------------------

cdef int wanteds_init(wanteds_t* all, u32 most) noexcept nogil:
    """Room for so many texts. 0, or -1 out of memory."""
    all.mask = 7
    while all.mask < 2 * most:
        all.mask = 2 * all.mask + 1
    all.items = <wanted_t*>calloc(most, sizeof(wanted_t))
    all.slots = <u32*>calloc(all.mask + 1, sizeof(u32))
    return 0 if all.items != NULL and all.slots != NULL else -1


# hot
cdef inline u32 wanteds_seek(const wanteds_t* all, const u8* p, u32 n, u32* slot) noexcept nogil:
    """The place of a text, or NOT_WANTED and the free slot where it would go. Cost: 5 ns."""
    cdef u32 at = <u32>hash_bytes(p, n, <u64><size_t>all.slots) & all.mask
    cdef const wanted_t* item
    while all.slots[at]:
        item = &all.items[all.slots[at] - 1]
        if item.n == n and same_bytes(item.p, p, n):
            return all.slots[at] - 1
        at = (at + 1) & all.mask
    slot[0] = at
    return NOT_WANTED


cdef u32 wanteds_add(wanteds_t* all, const u8* p, u32 n) noexcept nogil:
    """The place of a text, which is looked for from now on."""
    cdef u32 slot = 0
    cdef u32 place = wanteds_seek(all, p, n, &slot)
    if place != NOT_WANTED:
        return place
    all.items[all.n].p = p
    all.items[all.n].n = n
    all.n += 1
    all.slots[slot] = all.n
    return all.n - 1


# hot
cdef void keys_find(wanteds_t* keys, const u8* p, u64 n) noexcept nogil:
    """Note where the values of the headers in a table are; of equal keys the first counts. What is
    not valid ends the search."""
    cdef u64 size = entry_size(p, n)
    cdef u32 place, slot = 0
    while size:
        place = wanteds_seek(keys, p + 1, p[0], &slot)
        if place != NOT_WANTED and keys.items[place].found == NULL:
            keys.items[place].found = p + 1 + p[0]
        p += size
        n -= size
        size = entry_size(p, n)


# hot
cdef void values_find(wanteds_t* values, const u8* value) noexcept nogil:
    """Note which texts are in a list of values, parted by commas."""
    cdef const u8* p = value + 5
    cdef u32 left = be32(value + 1), n, place, slot = 0
    while True:
        n = 0
        while n < left and p[n] != c',':
            n += 1
        place = wanteds_seek(values, p, n, &slot)
        if place != NOT_WANTED:
            values.items[place].found = p
        if n == left:
            return
        p += n + 1
        left -= n + 1


# ---- places --------------------------------------------------------------------------------------

cdef double distance_km(double lat1, double lon1, double lat2, double lon2) noexcept nogil:
    """Between two places on the globe, by the haversine formula."""
    cdef double high = sin((lat2 - lat1) * RADIANS / 2)
    cdef double wide = sin((lon2 - lon1) * RADIANS / 2)
    cdef double h = high * high + cos(lat1 * RADIANS) * cos(lat2 * RADIANS) * wide * wide
    return 2 * EARTH_KM * asin(sqrt(h if h < 1 else 1))


cdef bint is_in_box(const condition_t* want, const place_t* at) noexcept nogil:
    return (want.box[0] <= at.lat <= want.box[1] and want.box[2] <= at.lon <= want.box[3])


cdef bint is_in_polygon(const condition_t* want, const place_t* at) noexcept nogil:
    """By casting a ray: how many edges it crosses."""
    cdef bint is_inside = False
    cdef u32 i, before = want.n_points - 1
    cdef double lat1, lon1, lat2, lon2
    for i in range(want.n_points):
        lat1 = want.points[2 * i]
        lon1 = want.points[2 * i + 1]
        lat2 = want.points[2 * before]
        lon2 = want.points[2 * before + 1]
        # The latitudes differ where the division is made.
        if (lat1 > at.lat) != (lat2 > at.lat) and (
                at.lon < (lon2 - lon1) * (at.lat - lat1) / (lat2 - lat1) + lon1):
            is_inside = not is_inside
        before = i
    return is_inside


cdef void place_find(place_t* at, const wanteds_t* keys) noexcept nogil:
    """Where a message says that it belongs, from its headers."""
    cdef const u8* lat = keys.items[KEY_LAT].found
    cdef const u8* lon = keys.items[KEY_LON].found
    at.is_known = True
    at.is_valid = (lat != NULL and lon != NULL and value_number(lat, &at.lat)
                   and value_number(lon, &at.lon)
                   and -90 <= at.lat <= 90 and -180 <= at.lon <= 180)


# ---- matching ------------------------------------------------------------------------------------

cdef bint condition_holds(const filter_t* f, const condition_t* want, place_t* at) noexcept nogil:
    cdef const u8* value
    if want.kind == WANT_VALUE:
        value = f.keys.items[KEY_VALUES].found
        if value == NULL:
            return False
        if value[0] == c'S' or value[0] == c'x':
            return f.values.items[want.place].found != NULL
        return has_same_text(want, value)
    if want.kind == WANT_HEADER:
        value = f.keys.items[want.place].found
        return value != NULL and has_same_text(want, value)
    if not at.is_known:
        place_find(at, &f.keys)
    if not at.is_valid:
        return False
    if want.kind == WANT_RADIUS:
        return distance_km(want.lat, want.lon, at.lat, at.lon) <= want.radius_km
    return is_in_box(want, at) and (want.kind == WANT_BOX or is_in_polygon(want, at))


cdef inline i64 filter_work(const filter_t* f, const rec_t* rec) noexcept nogil:
    """Units of about 10 ns that looking at a record takes."""
    return f.work + (rec.headers_len >> 3 if rec.headers_at else 0)


# hot
cdef bint filter_matches(filter_t* f, const rec_t* rec) noexcept nogil:
    """Whether a record is wanted. Cost: 10 ns for each header, 5 ns for each condition."""
    cdef u32 i
    cdef const u8* values
    cdef place_t at
    cdef bint holds
    for i in range(f.keys.n):
        f.keys.items[i].found = NULL
    if rec.headers_at:
        keys_find(&f.keys, rec.props + rec.headers_at + 4, rec.headers_len)
    values = f.keys.items[KEY_VALUES].found
    if values == NULL and f.takes_unfiltered:
        return True
    if f.values.n and values != NULL and (values[0] == c'S' or values[0] == c'x'):
        for i in range(f.values.n):
            f.values.items[i].found = NULL
        values_find(&f.values, values)
    at.is_known = False
    for i in range(f.n):
        holds = condition_holds(f, &f.items[i], &at)
        if holds == f.is_any:
            return holds
    return not f.is_any or f.n == 0


# ---- life ----------------------------------------------------------------------------------------

cdef void filter_free(filter_t* f) noexcept nogil:
    cdef u32 i
    if f == NULL:
        return
    for i in range(f.n):
        free(f.items[i].key)
        free(f.items[i].text)
        free(f.items[i].points)
    free(f.items)
    free(f.keys.items)
    free(f.keys.slots)
    free(f.values.items)
    free(f.values.slots)
    free(f)


cdef u8* owned_bytes(bytes text, u32* n) except NULL:
    """A copy, its length in n."""
    cdef u8* copy = <u8*>malloc(len(text) + 1)
    if copy == NULL:
        raise MemoryError()
    memcpy(copy, PyBytes_AS_STRING(text), len(text))
    n[0] = <u32>len(text)
    return copy


cdef condition_set_text(condition_t* want, bytes text, dict forms):
    want.text = owned_bytes(text, &want.text_len)
    if "integer" in forms:
        want.forms |= FORM_INTEGER
        want.integer = forms["integer"]
    if "number" in forms:
        want.forms |= FORM_NUMBER
        want.number = forms["number"]
    if "number32" in forms:
        want.forms |= FORM_NUMBER32
        want.number32 = forms["number32"]
    if "seconds" in forms:
        want.forms |= FORM_SECONDS
        want.seconds = forms["seconds"]
    if "boolean" in forms:
        want.forms |= FORM_TRUE if forms["boolean"] else FORM_FALSE


cdef condition_set_polygon(condition_t* want, list points):
    """Raises ValueError when there are less than three."""
    cdef u32 i
    if len(points) < 3:
        raise ValueError("a polygon has at least three points")
    want.points = <double*>malloc(len(points) * 2 * sizeof(double))
    if want.points == NULL:
        raise MemoryError()
    want.n_points = <u32>len(points)
    for i in range(want.n_points):
        want.points[2 * i], want.points[2 * i + 1] = points[i]
    want.box[0] = min([point[0] for point in points])
    want.box[1] = max([point[0] for point in points])
    want.box[2] = min([point[1] for point in points])
    want.box[3] = max([point[1] for point in points])


cdef condition_set(filter_t* f, condition_t* want, tuple item):
    """Compile one condition, see Consumer.read_stream."""
    kind = item[0]
    if kind == "value":
        want.kind = WANT_VALUE
        condition_set_text(want, item[1], item[2])
        want.place = wanteds_add(&f.values, want.text, want.text_len)
    elif kind == "header":
        want.kind = WANT_HEADER
        want.key = owned_bytes(item[1], &want.key_len)
        want.place = wanteds_add(&f.keys, want.key, want.key_len)
        condition_set_text(want, item[2], item[3])
    elif kind == "radius":
        want.kind = WANT_RADIUS
        want.lat, want.lon, want.radius_km = item[1:]
    elif kind == "box":
        want.kind = WANT_BOX
        want.box[0], want.box[1], want.box[2], want.box[3] = item[1:]
    elif kind == "polygon":
        want.kind = WANT_POLYGON
        condition_set_polygon(want, item[1])
        f.work += want.n_points
    else:
        raise ValueError(f"condition {kind!r}")


cdef filter_t* filter_new(list conditions, bint is_any, bint takes_unfiltered) except NULL:
    cdef filter_t* f = <filter_t*>calloc(1, sizeof(filter_t))
    if f == NULL:
        raise MemoryError()
    f.is_any = is_any
    f.takes_unfiltered = takes_unfiltered
    f.items = <condition_t*>calloc(len(conditions) + 1, sizeof(condition_t))
    try:
        if (f.items == NULL or wanteds_init(&f.keys, <u32>len(conditions) + 3)
                or wanteds_init(&f.values, <u32>len(conditions) + 1)):
            raise MemoryError()
        wanteds_add(&f.keys, <const u8*>b"x-stream-filter-value", 21)       # KEY_VALUES
        wanteds_add(&f.keys, <const u8*>b"x-geo-lat", 9)                    # KEY_LAT
        wanteds_add(&f.keys, <const u8*>b"x-geo-lon", 9)                    # KEY_LON
        f.work = 2 * <u32>len(conditions)
        for item in conditions:
            f.n += 1
            condition_set(f, &f.items[f.n - 1], item)
    except BaseException:
        filter_free(f)
        raise
    return f

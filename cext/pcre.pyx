# Pcre: the umbrella of `lavinmq._pcre`, a regular expression of PCRE2 whose cost is bounded.
#
# PCRE2 counts what a match tries, and gives up at a limit: a pattern such as ^(a+)+$ would try
# twice as much for each character of a name. Nothing is kept between two matches but the pattern.
"""Regular expressions in the dialect of PCRE, matched at a bounded cost. See `_pcre.pyi`."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

cdef extern from *:
    """
    #define PCRE2_CODE_UNIT_WIDTH 8
    #include <pcre2.h>
    """
    ctypedef struct pcre2_code
    ctypedef struct pcre2_match_data
    ctypedef struct pcre2_match_context
    ctypedef struct pcre2_compile_context
    ctypedef unsigned int uint32_t
    ctypedef unsigned char PCRE2_UCHAR
    ctypedef const unsigned char* PCRE2_SPTR
    enum:
        PCRE2_UTF
        PCRE2_UCP
        PCRE2_DUPNAMES
        PCRE2_NEVER_BACKSLASH_C
        PCRE2_ERROR_NOMATCH
        PCRE2_ERROR_MATCHLIMIT
        PCRE2_ERROR_DEPTHLIMIT
        PCRE2_ERROR_HEAPLIMIT
        PCRE2_ERROR_NOMEMORY
    pcre2_code* pcre2_compile(
        PCRE2_SPTR, size_t, uint32_t, int*, size_t*, pcre2_compile_context*) noexcept nogil
    void pcre2_code_free(pcre2_code*) noexcept nogil
    int pcre2_get_error_message(int, PCRE2_UCHAR*, size_t) noexcept nogil
    pcre2_match_context* pcre2_match_context_create(void*) noexcept nogil
    void pcre2_match_context_free(pcre2_match_context*) noexcept nogil
    int pcre2_set_match_limit(pcre2_match_context*, uint32_t) noexcept nogil
    int pcre2_set_depth_limit(pcre2_match_context*, uint32_t) noexcept nogil
    int pcre2_set_heap_limit(pcre2_match_context*, uint32_t) noexcept nogil
    pcre2_match_data* pcre2_match_data_create(uint32_t, void*) noexcept nogil
    void pcre2_match_data_free(pcre2_match_data*) noexcept nogil
    int pcre2_match(const pcre2_code*, PCRE2_SPTR, size_t, size_t, uint32_t,
                    pcre2_match_data*, pcre2_match_context*) noexcept nogil

cdef enum:
    OPTIONS = PCRE2_UTF | PCRE2_UCP | PCRE2_DUPNAMES | PCRE2_NEVER_BACKSLASH_C

MAX_PATTERN = 4096              # bytes of a pattern: compiling takes longer with each
MATCH_LIMIT = 20000             # what one search may try, half a millisecond or so
HEAP_LIMIT_KIB = 1024           # and the memory that it may take for that


class LimitReached(Exception):
    """A search would take longer than any may; whether there is a match is not known."""


cdef class Expression:
    """A compiled pattern.

    Args: `text`, the pattern in UTF-8. Raises: ValueError, saying what is wrong and where.
    """
    cdef pcre2_code* code
    cdef pcre2_match_context* limits

    def __init__(self, bytes text not None):
        cdef int error = 0
        cdef size_t at = 0
        cdef size_t n = <size_t>PyBytes_GET_SIZE(text)
        cdef PCRE2_SPTR p = <PCRE2_SPTR>PyBytes_AS_STRING(text)
        cdef PCRE2_UCHAR message[256]
        if self.code != NULL:
            raise ValueError("made already")
        if n > <size_t>MAX_PATTERN:
            raise ValueError(f"longer than {MAX_PATTERN} bytes")
        self.code = pcre2_compile(p, n, <uint32_t>OPTIONS, &error, &at, NULL)
        if self.code == NULL:
            message[0] = 0
            pcre2_get_error_message(error, message, sizeof(message))
            raise ValueError(f"{(<char*>message).decode('ascii', 'replace')} at position {at}")
        self.limits = pcre2_match_context_create(NULL)
        if self.limits == NULL:
            raise MemoryError()
        pcre2_set_match_limit(self.limits, <uint32_t>MATCH_LIMIT)
        pcre2_set_depth_limit(self.limits, <uint32_t>MATCH_LIMIT)
        pcre2_set_heap_limit(self.limits, <uint32_t>HEAP_LIMIT_KIB)

    def __dealloc__(self):
        if self.limits != NULL:
            pcre2_match_context_free(self.limits)
        if self.code != NULL:
            pcre2_code_free(self.code)

    def search(self, bytes subject not None) -> bool:
        """Whether it matches anywhere in a text of UTF-8. Raises: LimitReached, ValueError for what
        is no UTF-8, MemoryError. Cost: half a microsecond, and half a millisecond at most."""
        cdef size_t n = <size_t>PyBytes_GET_SIZE(subject)
        cdef PCRE2_SPTR p = <PCRE2_SPTR>PyBytes_AS_STRING(subject)
        # What a match has tried is kept in there, up to the limit: not with each pattern, then.
        cdef pcre2_match_data* found = pcre2_match_data_create(1, NULL)
        cdef int rc
        if found == NULL:
            raise MemoryError()
        rc = pcre2_match(self.code, p, n, 0, 0, found, self.limits)
        pcre2_match_data_free(found)
        if rc >= 0:
            return True
        if rc == PCRE2_ERROR_NOMATCH:
            return False
        if (rc == PCRE2_ERROR_MATCHLIMIT or rc == PCRE2_ERROR_DEPTHLIMIT
                or rc == PCRE2_ERROR_HEAPLIMIT):
            raise LimitReached()
        if rc == PCRE2_ERROR_NOMEMORY:
            raise MemoryError()
        raise ValueError(f"cannot be searched: error {rc}")

# Errors: what OpenSSL says, in the words that Python's ssl has for it.

cdef str reason_of(unsigned long code):
    """The name of a reason: CERTIFICATE_VERIFY_FAILED. Empty when there is none."""
    cdef const char* text = ERR_reason_error_string(code) if code else NULL
    if text == NULL:
        return ""
    return (<bytes>text).decode("ascii", "replace").upper().replace(" ", "_")


cdef object error_of(unsigned long code, str otherwise):
    """An ssl.SSLError with that reason, or else a text."""
    cdef str reason = reason_of(code) or otherwise
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


cdef object last_error(str otherwise):
    """The error that OpenSSL has found last; nothing is left of it."""
    cdef unsigned long code = ERR_peek_last_error()
    ERR_clear_error()
    return error_of(code, otherwise)

# Certificate: the names in a client's certificate, in the form of ssl.SSLSocket.getpeercert.
#
# Only what can name a user (lavinmq/listeners/certificate.py). A text that is no UTF-8 is unclear:
# it takes the names beside it with it, so that no other one is taken for the first.

cdef dict names_in(const X509* certificate):
    """The subject, and the alternative names that are texts."""
    found = {}
    subject = subject_of(X509_get_subject_name(certificate))
    if subject:
        found["subject"] = subject
    alternative = alternatives_of(certificate)
    if alternative:
        found["subjectAltName"] = alternative
    return found


cdef tuple subject_of(const X509_NAME* name):
    """Pairs of kind and text, in the groups that they form; empty when one is unclear."""
    cdef int i, level, before = -1
    cdef X509_NAME_ENTRY* entry
    cdef list parts = []
    cdef list part = []
    for i in range(X509_NAME_entry_count(name)):
        entry = X509_NAME_get_entry(name, i)
        level = X509_NAME_ENTRY_set(entry)
        pair = pair_of(entry)
        if pair is None:
            return ()
        if level != before:
            part = []
            parts.append(part)
        part.append(pair)
        before = level
    return tuple(map(tuple, parts))


cdef object pair_of(const X509_NAME_ENTRY* entry):
    """What the entry is of, in its long name, and its text; None when it is none."""
    cdef char kind[256]
    cdef unsigned char* text = NULL
    cdef int n = OBJ_obj2txt(kind, sizeof(kind), X509_NAME_ENTRY_get_object(entry), 0)
    if n <= 0 or n >= <int>sizeof(kind):
        return None
    n = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(entry))
    if n < 0:
        ERR_clear_error()
        return None
    try:
        return (<bytes>kind).decode("ascii", "replace"), text[:n].decode("utf-8")
    except UnicodeDecodeError:
        return None
    finally:
        OPENSSL_free(text)


cdef tuple alternatives_of(const X509* certificate):
    """Pairs of kind and text; empty when one is unclear."""
    cdef GENERAL_NAMES* names = <GENERAL_NAMES*>X509_get_ext_d2i(
        certificate, NID_subject_alt_name, NULL, NULL)
    cdef ASN1_STRING* text
    cdef int i, kind
    cdef list found = []
    if names == NULL:
        ERR_clear_error()
        return ()
    try:
        for i in range(sk_GENERAL_NAME_num(names)):
            text = <ASN1_STRING*>GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &kind)
            if kind == GEN_DNS:
                word = "DNS"
            elif kind == GEN_EMAIL:
                word = "email"
            elif kind == GEN_URI:
                word = "URI"
            else:
                continue
            data = ASN1_STRING_get0_data(text)[:ASN1_STRING_length(text)]
            found.append((word, data.decode("utf-8")))
    except UnicodeDecodeError:
        return ()
    finally:
        GENERAL_NAMES_free(names)
    return tuple(found)

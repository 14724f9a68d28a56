# cython: language_level=3
"""The functions of the package `bcrypt` that the broker calls, over OpenBSD's C code.

Stands for that package in the executable: its newer releases are written in Rust and need packages
that no registry of Python serves (decision record 0021). The C code is that of release 3.2.2.
"""

import hmac
import os

cdef extern from "pycabcrypt.h":
    int bcrypt_hashpass(
        const char *key, const char *salt, char *encrypted, size_t size
    ) nogil
    int encode_base64(char *text, const unsigned char *data, size_t size)

cdef enum:
    HASH_SIZE = 61  # with the NUL
    SALT_BYTES = 16
    LONGEST = 72  # what the algorithm looks at


def gensalt(int rounds=12, bytes prefix=b"2b"):
    """Return a random salt. Args: rounds: 4 to 31, of which the cost is the power of two."""
    cdef char text[30]
    if prefix not in (b"2a", b"2b"):
        raise ValueError("prefix must be b'2a' or b'2b'")
    if not 4 <= rounds <= 31:
        raise ValueError("rounds must be 4 to 31")
    cdef bytes salt = os.urandom(SALT_BYTES)
    encode_base64(text, salt, SALT_BYTES)
    return b"$%s$%02d$%s" % (prefix, rounds, <bytes>text)


def hashpw(bytes password, bytes salt):
    """Return the hash. Raises: ValueError for a longer password, a NUL in it, or a bad salt."""
    if len(password) > LONGEST:
        raise ValueError("password cannot be longer than 72 bytes")
    if b"\x00" in password:
        raise ValueError("password may not contain NUL bytes")
    # `$2y$` is another name of what `$2b$` is, which the C code does not know.
    cdef bytes known = b"$2b$" + salt[4:] if salt.startswith(b"$2y$") else salt
    cdef char result[HASH_SIZE]
    cdef const char *key = password
    cdef const char *made_with = known
    cdef int failed
    with nogil:
        failed = bcrypt_hashpass(key, made_with, result, HASH_SIZE)
    if failed:
        raise ValueError("Invalid salt")
    return salt[:4] + (<bytes>result)[4:]


def checkpw(bytes password, bytes hashed_password):
    """Whether the password belongs to the hash. Raises: as `hashpw`."""
    return hmac.compare_digest(hashpw(password, hashed_password), hashed_password)

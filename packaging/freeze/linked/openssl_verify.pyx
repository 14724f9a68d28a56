# cython: language_level=3
"""Checks signatures with the OpenSSL that is linked into the executable.

Used by `signatures.py` beside this file, in place of the package `cryptography`.
"""

cdef extern from "openssl/evp.h" nogil:
    ctypedef struct EVP_PKEY:
        pass
    ctypedef struct EVP_MD:
        pass
    ctypedef struct EVP_MD_CTX:
        pass
    ctypedef struct EVP_PKEY_CTX:
        pass
    const EVP_MD *EVP_sha256()
    EVP_MD_CTX *EVP_MD_CTX_new()
    void EVP_MD_CTX_free(EVP_MD_CTX *context)
    void EVP_PKEY_free(EVP_PKEY *key)
    int EVP_PKEY_get_bits(const EVP_PKEY *key)
    int EVP_DigestVerifyInit(
        EVP_MD_CTX *context, EVP_PKEY_CTX **settings, const EVP_MD *digest,
        void *engine, EVP_PKEY *key,
    )
    int EVP_DigestVerify(
        EVP_MD_CTX *context, const unsigned char *signature, size_t signature_size,
        const unsigned char *data, size_t data_size,
    )

cdef extern from "openssl/rsa.h" nogil:
    int RSA_PKCS1_PSS_PADDING
    int RSA_PSS_SALTLEN_DIGEST
    int EVP_PKEY_CTX_set_rsa_padding(EVP_PKEY_CTX *settings, int padding)
    int EVP_PKEY_CTX_set_rsa_pss_saltlen(EVP_PKEY_CTX *settings, int length)

cdef extern from "openssl/x509.h" nogil:
    EVP_PKEY *d2i_PUBKEY(EVP_PKEY **key, const unsigned char **data, long size)

cdef extern from "openssl/err.h" nogil:
    void ERR_clear_error()


cdef class PublicKey:
    """A public key of any kind. Args: der: its SubjectPublicKeyInfo. Raises: ValueError."""

    cdef EVP_PKEY *_key

    def __cinit__(self, bytes der):
        cdef const unsigned char *data = der
        cdef const unsigned char *end = data + len(der)
        self._key = d2i_PUBKEY(NULL, &data, len(der))
        ERR_clear_error()
        if self._key is NULL or data != end:
            raise ValueError("not a public key")

    def __dealloc__(self):
        EVP_PKEY_free(self._key)

    @property
    def key_size(self):
        """Its size in bits."""
        return EVP_PKEY_get_bits(self._key)

    def verify(self, bytes signature, bytes data, *, bint digest=True, bint pss=False):
        """Whether the signature is one of the data.

        Args: digest: with SHA-256, else the algorithm has its own; pss: RSA in that padding.
        """
        cdef EVP_MD_CTX *context = EVP_MD_CTX_new()
        cdef EVP_PKEY_CTX *settings = NULL
        cdef int done
        if context is NULL:
            raise MemoryError
        try:
            done = EVP_DigestVerifyInit(
                context, &settings, EVP_sha256() if digest else NULL, NULL, self._key
            )
            if done == 1 and pss:
                done = EVP_PKEY_CTX_set_rsa_padding(settings, RSA_PKCS1_PSS_PADDING)
                if done == 1:
                    done = EVP_PKEY_CTX_set_rsa_pss_saltlen(settings, RSA_PSS_SALTLEN_DIGEST)
            if done == 1:
                done = EVP_DigestVerify(context, signature, len(signature), data, len(data))
            return done == 1
        finally:
            EVP_MD_CTX_free(context)
            ERR_clear_error()

# Context: a certificate and its terms. What it is set by bears the names of ssl.SSLContext, so that
# one reading of the settings makes either (lavinmq/listeners/tls.py).

# Those of Python's ssl, for no client is to find another broker behind another port.
DEFAULT_CIPHERS = (
    "@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM")


cdef int refuse_password(char* p, int size, int is_writing, void* asked) noexcept nogil:
    """A key is encrypted: say so, and give no password."""
    (<flag_t*>asked)[0] = True
    return -1


cdef void write_key(const SSL* ssl, const char* line) noexcept nogil:
    """Append a line to the file of session keys, at once and as a whole."""
    cdef int* fd = <int*>SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl))
    cdef char text[512]
    cdef size_t n = strlen(line)
    if fd == NULL or fd[0] < 0 or n >= sizeof(text):
        return
    memcpy(text, line, n)
    text[n] = c"\n"
    if c_write(fd[0], text, n + 1) < 0:
        pass                    # a line that is lost costs an analyser, not us


cdef class Context:
    """Terms for connections. Args: `scratch`, what its sessions work in."""
    cdef SSL_CTX* ctx
    cdef Scratch scratch
    cdef int keylog_fd
    cdef object keylog_name
    cdef public u32 records_per_key

    def __cinit__(self, Scratch scratch):
        self.keylog_fd = -1
        self.scratch = scratch
        self.ctx = SSL_CTX_new(TLS_method())
        if self.ctx == NULL:
            raise last_error("no context")
        SSL_CTX_set_options(self.ctx, (SSL_OP_ALL & ~SSL_OP_DONT_INSERT_EMPTY_FRAGMENTS)
                            | SSL_OP_NO_SSLv2 | SSL_OP_NO_SSLv3 | SSL_OP_NO_COMPRESSION
                            | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF)
        # A read ends with each record, so that none goes on for as long as a peer likes.
        SSL_CTX_clear_mode(self.ctx, SSL_MODE_AUTO_RETRY)
        SSL_CTX_set_mode(self.ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE
                         | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER)
        # Clients resume with tickets; keys for these are this context's own, and go with it.
        SSL_CTX_set_session_cache_mode(self.ctx, SSL_SESS_CACHE_OFF)
        SSL_CTX_set_session_id_context(self.ctx, b"lavinmq", 7)
        SSL_CTX_set_app_data(self.ctx, &self.keylog_fd)
        self.set_ciphers(DEFAULT_CIPHERS)

    def __dealloc__(self):
        SSL_CTX_free(self.ctx)
        if self.keylog_fd >= 0:
            c_close(self.keylog_fd)

    @property
    def options(self) -> int:
        return SSL_CTX_get_options(self.ctx)

    @options.setter
    def options(self, value) -> None:
        cdef ssl_options_t wanted = <ssl_options_t>int(value)
        SSL_CTX_clear_options(self.ctx, SSL_CTX_get_options(self.ctx) & ~wanted)
        SSL_CTX_set_options(self.ctx, wanted)

    @property
    def minimum_version(self) -> int:
        return SSL_CTX_get_min_proto_version(self.ctx)

    @minimum_version.setter
    def minimum_version(self, value) -> None:
        if not SSL_CTX_set_min_proto_version(self.ctx, int(value)):
            raise ValueError(f"no version {value!r}")

    @property
    def verify_mode(self) -> int:
        return ssl.CERT_REQUIRED if SSL_CTX_get_verify_mode(self.ctx) else ssl.CERT_NONE

    @verify_mode.setter
    def verify_mode(self, value) -> None:
        SSL_CTX_set_verify(self.ctx, SSL_VERIFY_NONE if value == ssl.CERT_NONE
                           else SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL)

    @property
    def verify_flags(self) -> int:
        return X509_VERIFY_PARAM_get_flags(SSL_CTX_get0_param(self.ctx))

    @verify_flags.setter
    def verify_flags(self, value) -> None:
        cdef X509_VERIFY_PARAM* param = SSL_CTX_get0_param(self.ctx)
        cdef unsigned long wanted = <unsigned long>int(value)
        X509_VERIFY_PARAM_clear_flags(param, X509_VERIFY_PARAM_get_flags(param) & ~wanted)
        X509_VERIFY_PARAM_set_flags(param, wanted)

    def set_ciphers(self, str ciphers) -> None:
        """Suites of TLS 1.2 and older. Raises: ssl.SSLError when none is left."""
        if not SSL_CTX_set_cipher_list(self.ctx, ciphers.encode()):
            raise last_error("NO_CIPHER_MATCH")

    def load_cert_chain(self, certfile, keyfile=None, password=None) -> None:
        """Take a certificate with its chain, and its key. Raises: ssl.SSLError; and what
        `password` raises, which is called for a key that is encrypted."""
        cdef bytes certificate = os.fsencode(certfile)
        cdef bytes key = certificate if keyfile is None else os.fsencode(keyfile)
        cdef flag_t is_asked = False
        cdef bint is_taken
        ERR_clear_error()
        SSL_CTX_set_default_passwd_cb(self.ctx, refuse_password)
        SSL_CTX_set_default_passwd_cb_userdata(self.ctx, &is_asked)
        is_taken = (SSL_CTX_use_certificate_chain_file(self.ctx, certificate) == 1
                    and SSL_CTX_use_PrivateKey_file(self.ctx, key, SSL_FILETYPE_PEM) == 1
                    and SSL_CTX_check_private_key(self.ctx) == 1)
        SSL_CTX_set_default_passwd_cb_userdata(self.ctx, NULL)
        if is_taken:
            return
        if is_asked and password is not None:
            ERR_clear_error()
            password()
        raise last_error("no certificate")

    def load_verify_locations(self, cafile) -> None:
        """Take the authorities, or revocation lists, of a file. Raises: ssl.SSLError."""
        ERR_clear_error()
        if not SSL_CTX_load_verify_locations(self.ctx, os.fsencode(cafile), NULL):
            raise last_error("no certificate")

    def cert_store_stats(self) -> dict:
        """How many certificates, of them authorities, and revocation lists there are."""
        cdef stack_st_X509_OBJECT* held = X509_STORE_get0_objects(SSL_CTX_get_cert_store(self.ctx))
        cdef X509_OBJECT* each
        cdef int i, kind, n = 0, n_authorities = 0, n_lists = 0
        for i in range(sk_X509_OBJECT_num(held)):
            each = sk_X509_OBJECT_value(held, i)
            kind = X509_OBJECT_get_type(each)
            n += kind == X509_LU_X509
            if kind == X509_LU_X509 and X509_check_ca(X509_OBJECT_get0_X509(each)):
                n_authorities += 1
            n_lists += kind == X509_LU_CRL
        return {"x509": n, "x509_ca": n_authorities, "crl": n_lists}

    @property
    def keylog_filename(self):
        return self.keylog_name

    @keylog_filename.setter
    def keylog_filename(self, name) -> None:
        cdef bytes path = os.fsencode(name)
        cdef int fd = c_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0o666)
        if fd < 0:
            raise OSError(errno, os.strerror(errno), name)
        if self.keylog_fd >= 0:
            c_close(self.keylog_fd)
        self.keylog_fd = fd
        self.keylog_name = name
        SSL_CTX_set_keylog_callback(self.ctx, write_key)

    def begin(self, int fd, str host=None, Scratch scratch=None) -> Session:
        """A session over a connected socket, which stays the caller's to close, after the session.

        Args: host: it is a client's, of a server that has to be this one; scratch: the session
        works in this one instead, so that it may do so in another thread than others.
        Raises: ssl.SSLError; ValueError: there can be no such host."""
        if scratch is None:
            scratch = self.scratch
        return Session.__new__(Session, self, fd, host, scratch)

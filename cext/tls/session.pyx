# Session: TLS of one connection: handshake, what was agreed on, and the way to the wire.

cdef enum:
    HELLO_BYTES = 262144        # of a handshake, read in one call

DONE, INPUT, ROOM = 0, 1, 2     # what a handshake has come to, or waits for
SSL_OP_ENABLE_KTLS = 1 << 3


@cython.no_gc_clear
cdef class Session:
    """TLS of one connection; made by `Context.begin`."""
    cdef session_t t
    cdef tls_t calls
    cdef tls_provider_t provider
    cdef Context context
    cdef Scratch scratch

    def __cinit__(self, Context context, int fd, host, Scratch scratch):
        cdef BIO* bio
        memset(&self.t, 0, sizeof(session_t))
        self.context, self.scratch = context, scratch
        self.t.fd = fd
        self.t.scratch = &scratch.t
        self.t.ssl = SSL_new(context.ctx)
        if self.t.ssl == NULL:
            raise last_error("no session")
        bio = bio_for(&self.t)
        if bio == NULL:
            raise MemoryError()
        SSL_set0_rbio(self.t.ssl, bio)
        # The kernel encrypts only for a BIO of OpenSSL's own.
        if SSL_CTX_get_options(context.ctx) & SSL_OP_ENABLE_KTLS:
            bio = BIO_new_socket(fd, BIO_NOCLOSE)
            if bio == NULL:
                raise MemoryError()
            self.t.is_in_kernel = True
        else:
            BIO_up_ref(bio)
        SSL_set0_wbio(self.t.ssl, bio)
        if host is None:
            SSL_set_accept_state(self.t.ssl)
        else:
            SSL_set_connect_state(self.t.ssl)
            self.demand(host.encode())
        self.calls.read, self.calls.write, self.calls.pending = tls_read, tls_write, tls_pending
        self.provider.calls, self.provider.session = &self.calls, &self.t

    cdef int demand(self, bytes host) except -1:
        """Have the peer's certificate name this host, or address, among its alternative names."""
        cdef X509_VERIFY_PARAM* param = SSL_get0_param(self.t.ssl)
        X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS
                                        | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT)
        if X509_VERIFY_PARAM_set1_ip_asc(param, host):
            return 0
        ERR_clear_error()
        # Of no name at all it would take any.
        if not host or not X509_VERIFY_PARAM_set1_host(param, host, <size_t>len(host)):
            ERR_clear_error()
            raise ValueError(f"no host {host!r}")
        return 0

    def __dealloc__(self):
        self.close()

    def close(self) -> None:
        """Let go of everything: before the socket is closed, and after its wire. Idempotent."""
        SSL_free(self.t.ssl)
        free(self.t.held)
        free(self.t.unsent)
        self.t.ssl = NULL
        self.t.held = self.t.unsent = NULL
        self.t.n_held = self.t.n_unsent = 0

    def handshake(self) -> int:
        """Go on with it: DONE, or INPUT or ROOM that it waits for. Raises: OSError."""
        cdef int rc, why = SSL_ERROR_NONE
        cdef bint is_sent
        self.check_open()
        with nogil:
            session_begin(&self.t, HELLO_BYTES)
            rc = SSL_do_handshake(self.t.ssl)
            if rc <= 0:
                why = SSL_get_error(self.t.ssl, rc)
                if why != SSL_ERROR_WANT_READ and why != SSL_ERROR_WANT_WRITE:
                    session_note(&self.t, rc)
            is_sent = session_end(&self.t)
        if self.t.has_failed or self.t.is_over:
            raise self.error()
        if not is_sent or why == SSL_ERROR_WANT_WRITE:
            return ROOM
        if rc <= 0:
            return INPUT
        self.settle()
        return DONE

    cdef void settle(self):
        """The handshake is over: from now on records without data are counted."""
        cdef BIO* bio
        if self.t.is_ready:
            return
        self.t.is_ready = True
        SSL_set_msg_callback(self.t.ssl, note_record)
        SSL_set_msg_callback_arg(self.t.ssl, &self.t)
        if self.t.is_in_kernel and not BIO_get_ktls_send(SSL_get_wbio(self.t.ssl)):
            self.t.is_in_kernel = False
            bio = SSL_get_rbio(self.t.ssl)
            BIO_up_ref(bio)
            SSL_set0_wbio(self.t.ssl, bio)
        # The kernel, and older versions, keep their key.
        if SSL_version(self.t.ssl) == TLS1_3_VERSION and not self.t.is_in_kernel:
            self.t.per_key = self.context.records_per_key

    cdef int check_open(self) except -1:
        if self.t.ssl == NULL:
            raise ValueError("the session is closed")
        return 0

    cdef object error(self):
        """What has ended it, as an OSError."""
        if self.t.n_stray > MAX_STRAY:
            return error_of(0, "TOO_MANY_RECORDS_WITHOUT_DATA")
        if self.t.os_error:
            return OSError(self.t.os_error, os.strerror(self.t.os_error))
        if self.t.is_over:
            return error_of(0, "TLS/SSL connection has been closed (EOF)")
        return error_of(self.t.code, "EOF occurred in violation of protocol")

    @property
    def failure(self):
        """Why the connection has ended, empty for its orderly end, None while it lives."""
        if self.t.has_failed:
            error = self.error()
            return f"TLS: {getattr(error, 'reason', None) or error.strerror}"
        return "" if self.t.is_over else None

    @property
    def verify_error(self) -> str:
        """What is wrong with the peer's certificate, for people; empty: nothing that is known."""
        cdef long result = X509_V_OK if self.t.ssl == NULL else SSL_get_verify_result(self.t.ssl)
        if result == X509_V_OK:
            return ""
        return (<bytes>X509_verify_cert_error_string(result)).decode("ascii", "replace")

    def shutdown(self) -> None:
        """Say goodbye, as far as the kernel takes it; nothing is written afterwards."""
        if self.t.ssl == NULL or self.t.has_failed or not self.t.is_ready:
            return
        with nogil:
            session_begin(&self.t, 0)
            SSL_shutdown(self.t.ssl)
            ERR_clear_error()
            session_end(&self.t)

    def version(self) -> str:
        """As OpenSSL writes it: TLSv1.3."""
        self.check_open()
        return (<bytes>SSL_get_version(self.t.ssl)).decode()

    def cipher(self) -> str:
        """The suite that was agreed on; empty before."""
        self.check_open()
        cdef const SSL_CIPHER* agreed = SSL_get_current_cipher(self.t.ssl)
        return "" if agreed == NULL else (<bytes>SSL_CIPHER_get_name(agreed)).decode()

    @property
    def is_resumed(self) -> bool:
        """Whether the client has come back with a ticket."""
        return self.t.ssl != NULL and SSL_session_reused(self.t.ssl) == 1

    def peer_names(self) -> dict:
        """The names in the client's certificate, in the form of ssl.SSLSocket.getpeercert. Empty
        unless it was verified."""
        cdef X509* certificate
        self.check_open()
        if not SSL_get_verify_mode(self.t.ssl) & SSL_VERIFY_PEER:
            return {}
        certificate = SSL_get1_peer_certificate(self.t.ssl)
        if certificate == NULL:
            return {}
        try:
            return names_in(certificate)
        finally:
            X509_free(certificate)

    def wire(self):
        """What a wire reads and writes by, for `_core.Link.use_tls`; it must not outlive this."""
        return PyCapsule_New(&self.provider, TLS_PROVIDER, NULL)

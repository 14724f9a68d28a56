# OpenSSL: what is used of its library, version 3.0 or later.

cdef extern from *:
    """
    #include <openssl/bio.h>
    #include <openssl/err.h>
    #include <openssl/ssl.h>
    #include <openssl/x509v3.h>
    #if OPENSSL_VERSION_NUMBER < 0x30000000L
    #error "OpenSSL is older than 3.0"
    #endif
    /* Macros, some of which take casts that C alone can write. */
    static BIO_METHOD *lmq_bio_method(
        int (*read)(BIO *, char *, int), int (*write)(BIO *, const char *, int),
        long (*control)(BIO *, int, long, void *))
    {
        BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "wire");
        if (m != NULL) {
            BIO_meth_set_read(m, read);
            BIO_meth_set_write(m, write);
            BIO_meth_set_ctrl(m, control);
        }
        return m;
    }
    """
    ctypedef struct BIO
    ctypedef struct BIO_METHOD
    ctypedef struct SSL
    ctypedef struct SSL_CTX
    ctypedef struct SSL_METHOD
    ctypedef struct SSL_CIPHER
    ctypedef struct X509
    ctypedef struct X509_NAME
    ctypedef struct X509_NAME_ENTRY
    ctypedef struct X509_STORE
    ctypedef struct X509_OBJECT
    ctypedef struct X509_VERIFY_PARAM
    ctypedef struct stack_st_X509_OBJECT "struct stack_st_X509_OBJECT"
    ctypedef struct GENERAL_NAMES
    ctypedef struct ASN1_OBJECT
    ctypedef struct ASN1_STRING
    ctypedef ASN1_STRING ASN1_IA5STRING
    ctypedef struct GENERAL_NAME
    ctypedef unsigned long ssl_options_t "uint64_t"
    enum:
        BIO_CTRL_EOF
        BIO_CTRL_FLUSH
        BIO_NOCLOSE
        SSL_ERROR_NONE
        SSL_ERROR_WANT_READ
        SSL_ERROR_WANT_WRITE
        SSL_ERROR_SYSCALL
        SSL_ERROR_ZERO_RETURN
        SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER
        SSL_MODE_AUTO_RETRY
        SSL_MODE_ENABLE_PARTIAL_WRITE
        SSL_MODE_RELEASE_BUFFERS
        SSL_SESS_CACHE_OFF
        SSL_VERIFY_PEER
        SSL_VERIFY_FAIL_IF_NO_PEER_CERT
        SSL_VERIFY_NONE
        SSL_FILETYPE_PEM
        SSL3_RT_HEADER
        SSL3_RT_INNER_CONTENT_TYPE
        SSL3_RT_APPLICATION_DATA
        X509_LU_X509
        X509_LU_CRL
        NID_subject_alt_name
        X509_CHECK_FLAG_NEVER_CHECK_SUBJECT
        X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS
        X509_V_OK
        SSL_KEY_UPDATE_NOT_REQUESTED
        TLS1_3_VERSION
        GEN_DNS
        GEN_EMAIL
        GEN_URI
    ssl_options_t SSL_OP_ALL
    ssl_options_t SSL_OP_DONT_INSERT_EMPTY_FRAGMENTS
    ssl_options_t SSL_OP_NO_COMPRESSION
    ssl_options_t SSL_OP_CIPHER_SERVER_PREFERENCE
    ssl_options_t SSL_OP_IGNORE_UNEXPECTED_EOF
    ssl_options_t SSL_OP_NO_SSLv2
    ssl_options_t SSL_OP_NO_SSLv3

    ctypedef int (*bio_read_t)(BIO*, char*, int) noexcept nogil
    ctypedef int (*bio_write_t)(BIO*, const char*, int) noexcept nogil
    ctypedef long (*bio_control_t)(BIO*, int, long, void*) noexcept nogil
    ctypedef void (*ssl_message_t)(int, int, int, const void*, size_t, SSL*, void*) noexcept nogil
    ctypedef void (*ssl_keylog_t)(const SSL*, const char*) noexcept nogil
    ctypedef int (*pem_password_t)(char*, int, int, void*) noexcept nogil

cdef extern from * nogil:
    BIO_METHOD* lmq_bio_method(bio_read_t, bio_write_t, bio_control_t)
    BIO* BIO_new(const BIO_METHOD*)
    BIO* BIO_new_socket(int, int)
    int BIO_free(BIO*)
    int BIO_up_ref(BIO*)
    int BIO_get_ktls_send(BIO*)
    void BIO_set_data(BIO*, void*)
    void* BIO_get_data(BIO*)
    void BIO_set_init(BIO*, int)
    void BIO_clear_retry_flags(BIO*)
    void BIO_set_retry_read(BIO*)

    void ERR_clear_error()
    unsigned long ERR_peek_last_error()
    const char* ERR_reason_error_string(unsigned long)

    const SSL_METHOD* TLS_method()
    SSL_CTX* SSL_CTX_new(const SSL_METHOD*)
    void SSL_CTX_free(SSL_CTX*)
    ssl_options_t SSL_CTX_get_options(const SSL_CTX*)
    ssl_options_t SSL_CTX_set_options(SSL_CTX*, ssl_options_t)
    ssl_options_t SSL_CTX_clear_options(SSL_CTX*, ssl_options_t)
    long SSL_CTX_set_mode(SSL_CTX*, long)
    long SSL_CTX_clear_mode(SSL_CTX*, long)
    long SSL_CTX_set_session_cache_mode(SSL_CTX*, long)
    int SSL_CTX_set_session_id_context(SSL_CTX*, const unsigned char*, unsigned int)
    int SSL_CTX_set_min_proto_version(SSL_CTX*, int)
    int SSL_CTX_get_min_proto_version(SSL_CTX*)
    int SSL_CTX_set_cipher_list(SSL_CTX*, const char*)
    void SSL_CTX_set_default_passwd_cb(SSL_CTX*, pem_password_t)
    void SSL_CTX_set_default_passwd_cb_userdata(SSL_CTX*, void*)
    int SSL_CTX_use_certificate_chain_file(SSL_CTX*, const char*)
    int SSL_CTX_use_PrivateKey_file(SSL_CTX*, const char*, int)
    int SSL_CTX_check_private_key(const SSL_CTX*)
    int SSL_CTX_load_verify_locations(SSL_CTX*, const char*, const char*)
    void SSL_CTX_set_verify(SSL_CTX*, int, void*)
    int SSL_CTX_get_verify_mode(const SSL_CTX*)
    X509_VERIFY_PARAM* SSL_CTX_get0_param(SSL_CTX*)
    int X509_VERIFY_PARAM_set_flags(X509_VERIFY_PARAM*, unsigned long)
    int X509_VERIFY_PARAM_clear_flags(X509_VERIFY_PARAM*, unsigned long)
    unsigned long X509_VERIFY_PARAM_get_flags(const X509_VERIFY_PARAM*)
    X509_STORE* SSL_CTX_get_cert_store(const SSL_CTX*)
    stack_st_X509_OBJECT* X509_STORE_get0_objects(X509_STORE*)
    int sk_X509_OBJECT_num(const stack_st_X509_OBJECT*)
    X509_OBJECT* sk_X509_OBJECT_value(const stack_st_X509_OBJECT*, int)
    int X509_OBJECT_get_type(const X509_OBJECT*)
    X509* X509_OBJECT_get0_X509(const X509_OBJECT*)
    int X509_check_ca(X509*)
    void SSL_CTX_set_keylog_callback(SSL_CTX*, ssl_keylog_t)
    void SSL_CTX_set_app_data(SSL_CTX*, void*)
    void* SSL_CTX_get_app_data(SSL_CTX*)
    SSL_CTX* SSL_get_SSL_CTX(const SSL*)

    SSL* SSL_new(SSL_CTX*)
    void SSL_free(SSL*)
    void SSL_set_accept_state(SSL*)
    void SSL_set_connect_state(SSL*)
    X509_VERIFY_PARAM* SSL_get0_param(SSL*)
    int X509_VERIFY_PARAM_set1_ip_asc(X509_VERIFY_PARAM*, const char*)
    int X509_VERIFY_PARAM_set1_host(X509_VERIFY_PARAM*, const char*, size_t)
    void X509_VERIFY_PARAM_set_hostflags(X509_VERIFY_PARAM*, unsigned int)
    long SSL_get_verify_result(const SSL*)
    const char* X509_verify_cert_error_string(long)
    void SSL_set0_rbio(SSL*, BIO*)
    void SSL_set0_wbio(SSL*, BIO*)
    BIO* SSL_get_wbio(const SSL*)
    BIO* SSL_get_rbio(const SSL*)
    int SSL_do_handshake(SSL*)
    int SSL_read(SSL*, void*, int)
    int SSL_write(SSL*, const void*, int)
    int SSL_pending(const SSL*)
    int SSL_shutdown(SSL*)
    int SSL_key_update(SSL*, int)
    int SSL_version(const SSL*)
    int SSL_get_error(const SSL*, int)
    const char* SSL_get_version(const SSL*)
    const SSL_CIPHER* SSL_get_current_cipher(const SSL*)
    const char* SSL_CIPHER_get_name(const SSL_CIPHER*)
    int SSL_session_reused(const SSL*)
    int SSL_get_verify_mode(const SSL*)
    void SSL_set_msg_callback(SSL*, ssl_message_t)
    void SSL_set_msg_callback_arg(SSL*, void*)

    X509* SSL_get1_peer_certificate(const SSL*)
    void X509_free(X509*)
    X509_NAME* X509_get_subject_name(const X509*)
    int X509_NAME_entry_count(const X509_NAME*)
    X509_NAME_ENTRY* X509_NAME_get_entry(const X509_NAME*, int)
    int X509_NAME_ENTRY_set(const X509_NAME_ENTRY*)
    ASN1_OBJECT* X509_NAME_ENTRY_get_object(const X509_NAME_ENTRY*)
    ASN1_STRING* X509_NAME_ENTRY_get_data(const X509_NAME_ENTRY*)
    int OBJ_obj2txt(char*, int, const ASN1_OBJECT*, int)
    int ASN1_STRING_to_UTF8(unsigned char**, const ASN1_STRING*)
    const unsigned char* ASN1_STRING_get0_data(const ASN1_STRING*)
    int ASN1_STRING_length(const ASN1_STRING*)
    void OPENSSL_free(void*)
    void* X509_get_ext_d2i(const X509*, int, int*, int*)
    int sk_GENERAL_NAME_num(const GENERAL_NAMES*)
    GENERAL_NAME* sk_GENERAL_NAME_value(const GENERAL_NAMES*, int)
    void* GENERAL_NAME_get0_value(const GENERAL_NAME*, int*)
    void GENERAL_NAMES_free(GENERAL_NAMES*)

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_send "send"(int fd, const void* buf, size_t n, int flags)
    ssize_t c_recv "recv"(int fd, void* buf, size_t n, int flags)
    enum:
        MSG_NOSIGNAL
        MSG_DONTWAIT

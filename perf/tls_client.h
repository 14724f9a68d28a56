/* tls_client: has a generator speak TLS; include it first, as if it stood at its head:
 *   cc -O2 -pthread -include perf/tls_client.h -o flood-tls perf/flood.c -lssl -lcrypto
 * Each socket does its handshake with its first send. It trusts every certificate. TLS_SUITES in the
 * environment names the suites of TLS 1.3 that are offered. */
#define _GNU_SOURCE
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

static SSL *tls_of[65536];
static SSL_CTX *tls_context;
static pthread_once_t tls_once = PTHREAD_ONCE_INIT;

static void tls_begin(void) {
  const char *suites = getenv("TLS_SUITES");
  tls_context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_read_ahead(tls_context, 1);
  SSL_CTX_set_default_read_buffer_len(tls_context, 131072);
  if (suites && !SSL_CTX_set_ciphersuites(tls_context, suites)) { fprintf(stderr, "no such suite\n"); exit(1); }
}

static SSL *tls_on(int fd) {
  if (!tls_of[fd]) {
    pthread_once(&tls_once, tls_begin);
    SSL *ssl = SSL_new(tls_context);
    SSL_set_fd(ssl, fd);
    if (SSL_connect(ssl) != 1) { fprintf(stderr, "no TLS\n"); exit(1); }
    tls_of[fd] = ssl;
  }
  return tls_of[fd];
}

static ssize_t tls_send(int fd, const void *p, size_t n, int flags) {
  (void)flags;
  return SSL_write(tls_on(fd), p, n > 1 << 30 ? 1 << 30 : (int)n);
}

static ssize_t tls_recv(int fd, void *p, size_t n, int flags) {
  (void)flags;
  return SSL_read(tls_on(fd), p, n > 1 << 30 ? 1 << 30 : (int)n);
}

static int tls_poll(struct pollfd *fds, nfds_t n, int ms) {
  if (n == 1 && fds->events & POLLIN && tls_of[fds->fd] && SSL_has_pending(tls_of[fds->fd])) return fds->revents = POLLIN, 1;
  return poll(fds, n, ms);
}

#define send tls_send
#define recv tls_recv
#define poll tls_poll

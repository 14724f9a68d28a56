/* The AMQP 0-9-1 client code of the load generators topicflood.c and churnflood.c: encoding, a reader of
 * whole frames, opening a connection as guest on "/" and ending the program when the broker complains.
 * Blocking, no heartbeats. Included once per program, after it has defined PROGRAM, its name. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

static const char *host = "127.0.0.1";
static int port = 5672;

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void die(const char *m) { fprintf(stderr, PROGRAM ": %s (%s)\n", m, strerror(errno)); exit(1); }

/* ---- writing frames ---- */
typedef struct { uint8_t *b; size_t n, cap; } Buf;
static void need(Buf *w, size_t k) {
  if (w->n + k <= w->cap) return;
  w->cap = (w->n + k) * 2;
  if (!(w->b = realloc(w->b, w->cap))) die("memory");
}
static void u8(Buf *w, unsigned v) { need(w, 1); w->b[w->n++] = v; }
static void u16(Buf *w, unsigned v) { u8(w, v >> 8); u8(w, v & 255); }
static void u32(Buf *w, uint32_t v) { u16(w, v >> 16); u16(w, v & 65535); }
static void u64(Buf *w, uint64_t v) { u32(w, v >> 32); u32(w, (uint32_t)v); }
static void raw(Buf *w, const void *p, size_t k) { need(w, k); memcpy(w->b + w->n, p, k); w->n += k; }
static void sstr(Buf *w, const char *s) { u8(w, strlen(s)); raw(w, s, strlen(s)); }
static size_t begin(Buf *w, int type, int ch) { u8(w, type); u16(w, ch); u32(w, 0); return w->n; }
static size_t method(Buf *w, int ch, int cls, int mth) { size_t at = begin(w, 1, ch); u16(w, cls); u16(w, mth); return at; }
static void end(Buf *w, size_t at) {
  uint32_t k = w->n - at;
  w->b[at - 4] = k >> 24; w->b[at - 3] = k >> 16; w->b[at - 2] = k >> 8; w->b[at - 1] = k;
  u8(w, 0xCE);
}
static void sendall(int fd, const uint8_t *b, size_t n) {
  while (n) {
    ssize_t k = send(fd, b, n, MSG_NOSIGNAL);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) die("send");
    b += k; n -= k;
  }
}
static void flush(int fd, Buf *w) { sendall(fd, w->b, w->n); w->n = 0; }

/* ---- reading frames ---- */
typedef struct { int fd; uint8_t *b; size_t cap, n, at; } Reader;
/* next whole frame's payload; NULL when the peer is gone (*type = -1) or nothing came for ms (*type = 0) */
static uint8_t *frame(Reader *r, int *type, uint32_t *len, int ms) {
  for (;;) {
    size_t have = r->n - r->at;
    if (have >= 7) {
      uint8_t *p = r->b + r->at;
      uint32_t k = (uint32_t)p[3] << 24 | p[4] << 16 | p[5] << 8 | p[6];
      if (k + 8u > r->cap) die("frame too large");
      if (have >= k + 8u) {
        if (p[7 + k] != 0xCE) die("bad frame end");
        *type = p[0]; *len = k; r->at += k + 8;
        return p + 7;
      }
    }
    if (r->at) { memmove(r->b, r->b + r->at, have); r->n = have; r->at = 0; }
    struct pollfd pf = {r->fd, POLLIN, 0};
    if (ms >= 0 && poll(&pf, 1, ms) == 0) { *type = 0; return NULL; }
    ssize_t k = recv(r->fd, r->b + r->n, r->cap - r->n, 0);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) { *type = -1; return NULL; }
    r->n += k;
  }
}
static void check_close(const uint8_t *p) {
  unsigned c = p[0] << 8 | p[1], m = p[2] << 8 | p[3];
  if ((c == 10 && m == 50) || (c == 20 && m == 40)) {
    fprintf(stderr, PROGRAM ": broker closed: %u %.*s\n", p[4] << 8 | p[5], p[6], p + 7);
    exit(1);
  }
}
static uint8_t *expect(Reader *r, unsigned cls, unsigned mth) {
  int type; uint32_t len; uint8_t *p;
  while ((p = frame(r, &type, &len, -1))) {
    if (type != 1) continue;
    if ((p[0] << 8 | p[1]) == (int)cls && (p[2] << 8 | p[3]) == (int)mth) return p;
    check_close(p);
  }
  die("connection lost"); return NULL;
}

/* ---- connections ---- */
/* a socket to the broker from 127.0.0.`source`; from any address when that is 0 */
static int open_socket(int source) {
  int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7F000000u + source)};
  if (fd < 0) die("socket");
  setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one); /* the port is chosen by connect */
  if (source && bind(fd, (void *)&from, sizeof from)) die("bind");
  inet_pton(AF_INET, host, &a.sin_addr);
  if (connect(fd, (void *)&a, sizeof a)) die("connect");
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}
/* log in over a connected socket and open channel 1; `w` is room to work in, r->b may be shared by readers
 * that take turns. Returns the highest channel number. */
static unsigned log_in(Reader *r, Buf *w) {
  size_t at;
  sendall(r->fd, (const uint8_t *)"AMQP\0\0\x09\x01", 8);
  expect(r, 10, 10);
  at = method(w, 0, 10, 11); u32(w, 0); sstr(w, "PLAIN"); u32(w, 12); raw(w, "\0guest\0guest", 12); sstr(w, "en_US"); end(w, at);
  flush(r->fd, w);
  uint8_t *p = expect(r, 10, 30);
  unsigned channels = p[4] << 8 | p[5]; uint32_t frame_max = (uint32_t)p[6] << 24 | p[7] << 16 | p[8] << 8 | p[9];
  if (!frame_max || frame_max > 131072) frame_max = 131072;
  at = method(w, 0, 10, 31); u16(w, channels); u32(w, frame_max); u16(w, 0); end(w, at);
  at = method(w, 0, 10, 40); sstr(w, "/"); sstr(w, ""); u8(w, 0); end(w, at);
  flush(r->fd, w);
  expect(r, 10, 41);
  at = method(w, 1, 20, 10); sstr(w, ""); end(w, at);
  flush(r->fd, w);
  expect(r, 20, 11);
  return channels ? channels : 65535;
}
static Reader *new_reader(size_t capacity) {
  Reader *r = calloc(1, sizeof *r);
  if (!r || !(r->b = malloc(capacity))) die("memory");
  r->cap = capacity;
  return r;
}

/* topicflood: flood's companion for topic exchanges. flood repeats one routing key; this one gives every
 * message the next of many distinct, pre-encoded keys, so that a broker cannot live off one cached route.
 * One producer and one consumer connection, each in its own thread; the consumer only counts (no-ack).
 * Key number i is "order%d.%05d.paid%d" with i % 25, i, i / 25 % 40: 1 000 combinations of first and last
 * word, each with its own ids in between. Declares nothing: exchange, queue and bindings must exist.
 *
 * topicflood [-H host] [-P port] [-e exchange] [-q queue] [-K distinct keys] [-s body bytes] [-z seconds]
 *            [-b bytes] write batch
 * Prints one JSON line with the fields of flood. Build: cc -O2 -pthread -o topicflood topicflood.c */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char *host = "127.0.0.1", *queue = "flood", *exchange = "amq.topic";
static int port = 5672, keys = 100000, bodysize = 16, seconds = 10, batchbytes = 65536;
static atomic_long published, consumed;
static atomic_int stop_pub, stop_con;
static double con_first;

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void die(const char *m) { fprintf(stderr, "topicflood: %s (%s)\n", m, strerror(errno)); exit(1); }

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
    fprintf(stderr, "topicflood: broker closed: %u %.*s\n", p[4] << 8 | p[5], p[6], p + 7);
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

static Reader *open_conn(void) {
  int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  inet_pton(AF_INET, host, &a.sin_addr);
  if (connect(fd, (void *)&a, sizeof a)) die("connect");
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  Reader *r = calloc(1, sizeof *r);
  r->fd = fd; r->cap = 1 << 20; r->b = malloc(r->cap);
  Buf w = {0}; size_t at;
  sendall(fd, (const uint8_t *)"AMQP\0\0\x09\x01", 8);
  expect(r, 10, 10);
  at = method(&w, 0, 10, 11); u32(&w, 0); sstr(&w, "PLAIN"); u32(&w, 12); raw(&w, "\0guest\0guest", 12); sstr(&w, "en_US"); end(&w, at);
  flush(fd, &w);
  uint8_t *p = expect(r, 10, 30);
  unsigned channels = p[4] << 8 | p[5]; uint32_t frame_max = (uint32_t)p[6] << 24 | p[7] << 16 | p[8] << 8 | p[9];
  if (!frame_max || frame_max > 131072) frame_max = 131072;
  at = method(&w, 0, 10, 31); u16(&w, channels); u32(&w, frame_max); u16(&w, 0); end(&w, at);
  at = method(&w, 0, 10, 40); sstr(&w, "/"); sstr(&w, ""); u8(&w, 0); end(&w, at);
  flush(fd, &w);
  expect(r, 10, 41);
  at = method(&w, 1, 20, 10); sstr(&w, ""); end(&w, at);
  flush(fd, &w);
  expect(r, 20, 11);
  free(w.b);
  return r;
}

static void message(Buf *w, int i) {
  char key[64];
  snprintf(key, sizeof key, "order%d.%05d.paid%d", i % 25, i, i / 25 % 40);
  size_t at = method(w, 1, 60, 40); u16(w, 0); sstr(w, exchange); sstr(w, key); u8(w, 0); end(w, at);
  at = begin(w, 2, 1); u16(w, 60); u16(w, 0); u64(w, bodysize); u16(w, 0); end(w, at);
  at = begin(w, 3, 1); need(w, bodysize); memset(w->b + w->n, 'x', bodysize); w->n += bodysize; end(w, at);
}
static void *watch(void *arg) { /* a producer that is closed by the broker must say so, not hang */
  int type; uint32_t len; uint8_t *p;
  while ((p = frame(arg, &type, &len, -1))) if (type == 1) check_close(p);
  return NULL;
}
static void *producer(void *arg) {
  Reader *r = open_conn(); Buf ring = {0}; pthread_t th;
  pthread_create(&th, NULL, watch, r);
  size_t *end_of = malloc(keys * sizeof *end_of);
  for (int i = 0; i < keys; i++) { message(&ring, i); end_of[i] = ring.n; }
  *(double *)arg = now();
  for (int i = 0; !atomic_load(&stop_pub);) { /* one slice of whole messages per write, round and round */
    size_t from = i ? end_of[i - 1] : 0; int first = i;
    do i++; while (i < keys && end_of[i] - from <= (size_t)batchbytes);
    sendall(r->fd, ring.b + from, end_of[i - 1] - from);
    atomic_fetch_add(&published, i - first);
    if (i == keys) i = 0;
  }
  return NULL;
}
static void *consumer(void *arg) {
  (void)arg; Reader *r = open_conn(); Buf w = {0};
  size_t at = method(&w, 1, 60, 20); u16(&w, 0); sstr(&w, queue); sstr(&w, "c"); u8(&w, 2); u32(&w, 0); end(&w, at);
  flush(r->fd, &w);
  expect(r, 60, 21);
  int type; uint32_t len; uint8_t *p;
  while (!atomic_load(&stop_con)) {
    p = frame(r, &type, &len, 100);
    if (!p) { if (type == -1) die("connection lost"); continue; }
    if (type == 1) check_close(p);
    else if (type == 3 && atomic_fetch_add(&consumed, 1) == 0) con_first = now(); /* bodies are one frame */
  }
  return NULL;
}

int main(int argc, char **argv) {
  int c;
  while ((c = getopt(argc, argv, "H:P:e:q:K:s:z:b:")) != -1) switch (c) {
    case 'H': host = optarg; break; case 'P': port = atoi(optarg); break;
    case 'e': exchange = optarg; break; case 'q': queue = optarg; break;
    case 'K': keys = atoi(optarg); break; case 's': bodysize = atoi(optarg); break;
    case 'z': seconds = atoi(optarg); break; case 'b': batchbytes = atoi(optarg); break;
    default: return 2; }
  if (keys < 1 || keys > 100000 || bodysize < 1 || bodysize > 100000 || seconds < 1) { fprintf(stderr, "topicflood: bad option\n"); return 2; }
  pthread_t pub, con; double started = 0; struct timespec ts = {seconds, 0};
  pthread_create(&con, NULL, consumer, NULL);
  usleep(300000); /* as flood does: the consumer is there before the first message */
  double p0 = now();
  pthread_create(&pub, NULL, producer, &started);
  nanosleep(&ts, NULL);
  double p1 = now(); long pb = published, cn = consumed;
  if (started < p0) started = p0;
  atomic_store(&stop_pub, 1); pthread_join(pub, NULL);
  atomic_store(&stop_con, 1); pthread_join(con, NULL);
  printf("{\"published\": %ld, \"publish_rate\": %.0f, \"confirmed\": 0, \"consumed\": %ld, \"consume_rate\": %.0f}\n",
         pb, pb / (p1 - started), cn, cn && p1 > con_first ? cn / (p1 - con_first) : 0);
  return 0;
}

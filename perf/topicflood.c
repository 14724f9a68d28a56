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
#define PROGRAM "topicflood"
#include "client.h"
#include <pthread.h>
#include <stdatomic.h>

static const char *queue = "flood", *exchange = "amq.topic";
static int keys = 100000, bodysize = 16, seconds = 10, batchbytes = 65536;
static atomic_long published, consumed;
static atomic_int stop_pub, stop_con;
static double con_first;

static Reader *open_conn(void) {
  Reader *r = new_reader(1 << 20); Buf w = {0};
  r->fd = open_socket(0);
  log_in(r, &w);
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

/* churnflood: flood's companion for everything that is not the flow of messages: connections, channels,
 * queues and bindings that come, stay or go, confirms one by one, and many publishers of single messages.
 *
 * churnflood -S scenario [-H host] [-P port] [-s body bytes] [-z seconds | -n count] [-c clients]
 *            [-w window] requests under way per client [-r messages/s] of all clients [-d] durable
 *   connections       open `count` connections with a channel, one after the other, and keep them
 *   queues            declare `count` queues, waiting for at most `window` replies
 *   bindings          every client binds its own queue with ever new keys
 *   connection-churn  every client opens a connection and a channel, closes it, and so on
 *   channel-churn     every client opens and closes channels of its one connection
 *   confirms          every client publishes to its own queue, waiting for each confirm (window 1)
 *   publishers        one message per send, by `clients` connections in turn, evenly spaced; no consumer
 *
 * Everything that must be there first is prepared before "ready" is printed. A line on standard input then
 * starts the work; after it one JSON line is printed, and connections stay open until the input ends. So
 * whoever starts this program can look at the broker before, between and after.
 * Build: cc -O2 -pthread -o churnflood churnflood.c */
#define _GNU_SOURCE
#define PROGRAM "churnflood"
#include "client.h"
#include <pthread.h>
#include <stdatomic.h>

enum { SOURCES = 16, BUFFER = 1 << 16 }; /* 28 000 ports per source address */

typedef struct { Reader *r; Buf w; int number; unsigned channels; long done; } Client;

static int bodysize = 16, seconds = 10, clients = 1, window = 1, durable = 0;
static long count = 0, rate = 50000;
static atomic_int stop;

static void open_client(Client *c) {
  c->r = new_reader(BUFFER);
  c->r->fd = open_socket(1 + c->number % SOURCES);
  c->channels = log_in(c->r, &c->w);
}

/* ---- requests and their replies ---- */
static void declare_exchange(Client *c, const char *name) {
  size_t at = method(&c->w, 1, 40, 10); u16(&c->w, 0); sstr(&c->w, name); sstr(&c->w, "direct"); u8(&c->w, durable ? 2 : 0); u32(&c->w, 0); end(&c->w, at);
}
static void declare_queue(Client *c, long n) {
  char name[32]; snprintf(name, sizeof name, "churn.%ld", n);
  size_t at = method(&c->w, 1, 50, 10); u16(&c->w, 0); sstr(&c->w, name); u8(&c->w, durable ? 2 : 0); u32(&c->w, 0); end(&c->w, at);
}
static void bind_queue(Client *c, long n) {
  char name[32], key[32]; snprintf(name, sizeof name, "churn.%d", c->number); snprintf(key, sizeof key, "key.%d.%ld", c->number, n);
  size_t at = method(&c->w, 1, 50, 20); u16(&c->w, 0); sstr(&c->w, name); sstr(&c->w, "churn"); sstr(&c->w, key); u8(&c->w, 0); u32(&c->w, 0); end(&c->w, at);
}
static void open_and_close_channel(Client *c, long n) {
  unsigned others = c->channels - 1, ch = 2 + n % others; /* channel 1 stays */
  size_t at = method(&c->w, ch, 20, 10); sstr(&c->w, ""); end(&c->w, at);
  at = method(&c->w, ch, 20, 40); u16(&c->w, 200); sstr(&c->w, ""); u16(&c->w, 0); u16(&c->w, 0); end(&c->w, at);
}
static void publish(Client *c, long n) {
  char key[32]; snprintf(key, sizeof key, "churn.%d", c->number); (void)n;
  size_t at = method(&c->w, 1, 60, 40); u16(&c->w, 0); sstr(&c->w, ""); sstr(&c->w, key); u8(&c->w, 0); end(&c->w, at);
  at = begin(&c->w, 2, 1); u16(&c->w, 60); u16(&c->w, 0); u64(&c->w, bodysize); u16(&c->w, durable ? 0x1000 : 0); if (durable) u8(&c->w, 2); end(&c->w, at);
  at = begin(&c->w, 3, 1); need(&c->w, bodysize); memset(c->w.b + c->w.n, 'x', bodysize); c->w.n += bodysize; end(&c->w, at);
}
/* send requests so that at most `window` wait for their reply; half a window goes in one write */
static void pipeline(Client *c, void (*request)(Client *, long), int cls, int mth) {
  long batch = window > 1 ? window / 2 : 1, sent = 0;
  while (!atomic_load(&stop) && !(count && sent >= count)) {
    for (long i = 0; i < batch && !(count && sent >= count); i++) request(c, sent++);
    flush(c->r->fd, &c->w);
    for (; sent - c->done > window - batch; c->done++) expect(c->r, cls, mth);
  }
  for (; c->done < sent; c->done++) expect(c->r, cls, mth);
}

/* ---- before "ready" ---- */
static void with_queue(Client *c) {
  open_client(c);
  declare_exchange(c, "churn"); declare_queue(c, c->number); flush(c->r->fd, &c->w);
  expect(c->r, 50, 11);
}
static void with_confirms(Client *c) {
  with_queue(c);
  size_t at = method(&c->w, 1, 85, 10); u8(&c->w, 0); end(&c->w, at); flush(c->r->fd, &c->w);
  expect(c->r, 85, 11);
}
static Client *publishers;
static void with_publishers(Client *c) {
  with_queue(c);
  publishers = calloc(clients, sizeof *publishers);
  for (int i = 0; i < clients; i++) {
    publishers[i].number = i;
    open_client(&publishers[i]);
    publishers[i].number = c->number; /* the queue they all publish to */
  }
}

/* ---- the work ---- */
static void keep_connections(Client *c) {
  c->r = new_reader(BUFFER);
  for (; c->done < count; c->done++) {
    c->r->fd = open_socket(1 + c->done % SOURCES); c->r->n = c->r->at = 0;
    log_in(c->r, &c->w);
  }
}
static void churn_connections(Client *c) {
  c->r = new_reader(BUFFER);
  for (; !atomic_load(&stop); c->done++) {
    c->r->fd = open_socket(1 + (c->number + c->done) % SOURCES); c->r->n = c->r->at = 0;
    log_in(c->r, &c->w);
    size_t at = method(&c->w, 0, 10, 50); u16(&c->w, 200); sstr(&c->w, ""); u16(&c->w, 0); u16(&c->w, 0); end(&c->w, at); flush(c->r->fd, &c->w);
    expect(c->r, 10, 51);
    close(c->r->fd);
  }
}
static void declare_queues(Client *c) { pipeline(c, declare_queue, 50, 11); }
static void bind_queues(Client *c) { pipeline(c, bind_queue, 50, 21); }
static void churn_channels(Client *c) { if (window > (int)c->channels - 1) window = c->channels - 1; pipeline(c, open_and_close_channel, 20, 41); }
static void wait_for_confirms(Client *c) { window = 1; pipeline(c, publish, 60, 80); } /* an ack may stand for several */
static void publish_singly(Client *c) {
  double start = now();
  for (int i = 0; !atomic_load(&stop); i = (i + 1) % clients, c->done++) {
    /* Sleeping would bunch messages; this loop has a core to itself. */
    while (now() < start + c->done / (double)rate) if (atomic_load(&stop)) break;
    publish(&publishers[i], 0); flush(publishers[i].r->fd, &publishers[i].w);
  }
  for (int i = 0; i < clients; i++) { /* a reply to something cheap: what was sent before is dealt with, and paid for */
    Buf *w = &publishers[i].w;
    size_t at = method(w, 1, 60, 10); u32(w, 0); u16(w, 1); u8(w, 0); end(w, at); flush(publishers[i].r->fd, w);
  }
  for (int i = 0; i < clients; i++) expect(publishers[i].r, 60, 11);
}

static const struct { const char *name; int threads, counted; void (*prepare)(Client *), (*work)(Client *); } SCENARIOS[] = {
  {"connections", 0, 1, NULL, keep_connections},
  {"queues", 0, 1, open_client, declare_queues},
  {"bindings", 1, 0, with_queue, bind_queues},
  {"connection-churn", 1, 0, NULL, churn_connections},
  {"channel-churn", 1, 0, open_client, churn_channels},
  {"confirms", 1, 0, with_confirms, wait_for_confirms},
  {"publishers", 0, 0, with_publishers, publish_singly},
};
static void (*work)(Client *);
static void *run(void *client) { work(client); return NULL; }
static void await_line(void) { for (int c = getchar(); c != EOF && c != '\n'; c = getchar()); }

int main(int argc, char **argv) {
  int c, chosen = -1;
  while ((c = getopt(argc, argv, "S:H:P:s:z:n:c:w:r:d")) != -1) switch (c) {
    case 'S': for (unsigned i = 0; i < sizeof SCENARIOS / sizeof *SCENARIOS; i++) if (!strcmp(SCENARIOS[i].name, optarg)) chosen = i; break;
    case 'H': host = optarg; break; case 'P': port = atoi(optarg); break;
    case 's': bodysize = atoi(optarg); break; case 'z': seconds = atoi(optarg); break;
    case 'n': count = atol(optarg); break; case 'c': clients = atoi(optarg); break;
    case 'w': window = atoi(optarg); break; case 'r': rate = atol(optarg); break;
    case 'd': durable = 1; break;
    default: return 2; }
  if (chosen < 0 || clients < 1 || clients > 10000 || window < 1 || seconds < 1 || rate < 1 || bodysize < 1 || bodysize > 100000
      || (count > 0) != SCENARIOS[chosen].counted) {
    fprintf(stderr, PROGRAM ": bad option\n"); return 2;
  }
  int workers = SCENARIOS[chosen].threads ? clients : 1;
  Client *all = calloc(workers, sizeof *all); pthread_t *threads = calloc(workers, sizeof *threads);
  work = SCENARIOS[chosen].work;
  for (int i = 0; i < workers; i++) { all[i].number = i; if (SCENARIOS[chosen].prepare) SCENARIOS[chosen].prepare(&all[i]); }
  printf("ready\n"); fflush(stdout); await_line();

  double started = now(); long done = 0;
  for (int i = 0; i < workers; i++) pthread_create(&threads[i], NULL, run, &all[i]);
  if (!count) { sleep(seconds); atomic_store(&stop, 1); }
  for (int i = 0; i < workers; i++) { pthread_join(threads[i], NULL); done += all[i].done; }
  printf("{\"done\": %ld, \"rate\": %.1f}\n", done, done / (now() - started)); fflush(stdout);
  await_line();
  return 0;
}

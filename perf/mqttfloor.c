/* mqttfloor: what the kernel alone takes of a row of mqttflood. One thread and one epoll; packets are counted, not
 * looked at, and nothing is routed. What is published with QoS 1 is gathered until a window of it is there, or a
 * millisecond has been quiet; it goes into a file that is filled ahead by one write, is synced, answered by one send, and goes out unchanged, by
 * one send for each subscriber that gets something. No broker that does the same needs fewer system calls.
 *
 * mqttfloor directory port window each     every subscriber gets everything
 * mqttfloor directory port window share    every subscriber gets an equal part, as of a shared subscription
 * Packets of less than 128 bytes, QoS 0 and 1, MQTT 3.1.1. Client ids as mqttflood makes them say who subscribes.
 * Its CPU time is read from outside. Build: cc -O2 -o mqttfloor mqttfloor.c */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { INPUT = 262144, EVENTS = 256, MOST = 4096, ROOM = 64 << 20 };
typedef struct { int fd, is_subscriber, n_left; uint8_t left[128]; } Client;

static Client *subscribers[MOST];
static int n_subscribers, file = -1, is_shared;
static long window, n_gathered;
static off_t written;
static Client *publisher; /* whose messages are gathered */
static uint8_t input[INPUT + 128], answers[INPUT], gathered[2 * INPUT];
static size_t n_answers, n_bytes;

static void die(const char *what) { fprintf(stderr, "mqttfloor: %s (%s)\n", what, strerror(errno)); exit(1); }

/* A socket that takes no more is none of this program's rows: it waits. */
static void put(int fd, const uint8_t *bytes, size_t n) {
  while (n) {
    ssize_t k = send(fd, bytes, n, MSG_NOSIGNAL);
    if (k < 0) return;
    bytes += k;
    n -= k;
  }
}

/* n_messages of equal size. */
static void deliver(const uint8_t *bytes, size_t n, long n_messages) {
  size_t each = n / n_messages;
  for (long i = 0, at = 0; i < n_subscribers; i++) {
    long until = is_shared ? n_messages * (i + 1) / n_subscribers : n_messages;
    if (until > at) put(subscribers[i]->fd, bytes + at * each, (until - at) * each);
    if (is_shared) at = until;
  }
}

/* What was gathered is safe, answered and delivered. */
static void settle(void) {
  if (!n_gathered) return;
  if (written + (off_t)n_bytes > ROOM) written = 0;
  if (pwrite(file, gathered, n_bytes, written) < 0 || fdatasync(file)) die("disk");
  written += n_bytes;
  put(publisher->fd, answers, n_answers);
  deliver(gathered, n_bytes, n_gathered);
  n_gathered = n_bytes = n_answers = 0;
}

static void gather(Client *c, const uint8_t *p, const uint8_t *id) {
  if (publisher != c || n_bytes > INPUT || n_answers + 4 > INPUT) settle();
  publisher = c;
  memcpy(gathered + n_bytes, p, 2 + p[1]);
  n_bytes += 2 + p[1];
  memcpy(answers + n_answers, (uint8_t[]){0x40, 2, id[0], id[1]}, 4);
  n_answers += 4;
  if (++n_gathered == window) settle();
}

static void take(Client *c, const uint8_t *b, size_t n) {
  const uint8_t *p = b, *end = b + n, *first = NULL, *behind = NULL;
  long n_messages = 0;
  while (end - p >= 2 && p + 2 + p[1] <= end) {
    int kind = p[0] >> 4;
    if (kind == 3 && p[0] & 6) {
      gather(c, p, p + 4 + (p[2] << 8 | p[3]));
    } else if (kind == 3) {
      if (!first) first = p;
      behind = p + 2 + p[1];
      n_messages++;
    } else if (kind == 8) {
      uint8_t suback[] = {0x90, 3, p[2], p[3], p[1 + p[1]]};
      put(c->fd, suback, sizeof suback);
    } else if (kind == 1) {
      c->is_subscriber = p[2 + p[1] - 7] == 's';
      if (c->is_subscriber && n_subscribers < MOST) subscribers[n_subscribers++] = c;
      put(c->fd, (const uint8_t *)"\x20\2\0\0", 4);
    } else if (kind == 12) put(c->fd, (const uint8_t *)"\xd0\0", 2);
    p += 2 + p[1];
  }
  if (n_messages) deliver(first, behind - first, n_messages);
  c->n_left = end - p < 128 ? end - p : 0;
  memcpy(c->left, p, c->n_left);
}

static void end(Client *c) {
  if (publisher == c) {
    settle();
    publisher = NULL;
  }
  for (int i = 0; i < n_subscribers; i++)
    if (subscribers[i] == c) { subscribers[i] = subscribers[--n_subscribers]; break; }
  close(c->fd);
  free(c);
}

int main(int argc, char **argv) {
  if (argc != 5) { fprintf(stderr, "usage: mqttfloor directory port window each|share\n"); return 2; }
  int l = socket(AF_INET, SOCK_STREAM, 0), one = 1, ep = epoll_create1(0);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct epoll_event e = {.events = EPOLLIN}, events[EVENTS];
  char path[4096];
  window = atol(argv[3]);
  is_shared = !strcmp(argv[4], "share");
  snprintf(path, sizeof path, "%s/floor", argv[1]);
  if ((file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600)) < 0) die(path);
  /* Written before, so that no sync has to note a new size or new blocks. */
  for (off_t at = 0; at < ROOM; at += INPUT)
    if (pwrite(file, input, INPUT, at) != INPUT) die(path);
  if (fsync(file)) die(path);
  setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(l, (void *)&a, sizeof a) || listen(l, 1024)) die("listen");
  epoll_ctl(ep, EPOLL_CTL_ADD, l, &e);
  for (;;) {
    int k = epoll_wait(ep, events, EVENTS, n_gathered ? 1 : -1);
    if (k == 0) settle();
    for (int i = 0; i < k; i++) {
      Client *c = events[i].data.ptr;
      if (!c) {
        int fd = accept(l, NULL, NULL);
        if (fd < 0 || !(c = calloc(1, sizeof *c))) continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->fd = fd;
        e.data.ptr = c;
        epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
        continue;
      }
      memcpy(input, c->left, c->n_left);
      ssize_t n = recv(c->fd, input + c->n_left, INPUT, 0);
      if (n <= 0) end(c);
      else take(c, input, c->n_left + n);
    }
  }
}

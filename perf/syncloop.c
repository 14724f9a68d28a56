/* syncloop: how often the disk can be made to keep a short record, with nothing in between: append to a
 * file with pwrite, fdatasync, and again. No broker that syncs before it confirms can confirm messages
 * one by one any faster. Records are 63 to 100 bytes, about what a broker stores for a small message.
 *
 * syncloop directory [milliseconds]     writes and removes a file in the directory
 * Prints one JSON line. Build: cc -O2 -o syncloop syncloop.c */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SMALLEST = 63, LARGEST = 100 };

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void die(const char *m) { fprintf(stderr, "syncloop: %s (%s)\n", m, strerror(errno)); exit(1); }

int main(int argc, char **argv) {
  if (argc < 2 || argc > 3) { fprintf(stderr, "usage: syncloop directory [milliseconds]\n"); return 2; }
  double seconds = (argc > 2 ? atoi(argv[2]) : 5000) / 1e3;
  char record[LARGEST]; memset(record, 'x', sizeof record);
  if (chdir(argv[1])) die("chdir");
  int fd = open("syncloop.data", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) die("open");

  off_t at = 0; long syncs = 0; double started = now(), taken;
  do {
    int size = SMALLEST + syncs % (LARGEST - SMALLEST + 1);
    if (pwrite(fd, record, size, at) != size) die("pwrite");
    if (fdatasync(fd)) die("fdatasync");
    at += size; syncs++;
  } while ((taken = now() - started) < seconds);
  unlink("syncloop.data");
  printf("{\"syncs\": %ld, \"rate\": %.1f}\n", syncs, syncs / taken);
  return 0;
}

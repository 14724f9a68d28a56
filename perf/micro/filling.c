/* filling: what a batch of confirms costs that is appended to a file, and that is written over filling which
 * was put there ahead. The table is the ground for decision 0010.
 *
 * A batch is one pwrite and one fdatasync. When filling is used up the next batch writes new filling, too, and
 * pays for it. All ways take turns of a quarter of a second, so that drift of the disk meets all; files are
 * cut and begun again at 8 MiB, as segments are.
 *
 * filling directory [seconds per figure]      (default 2.5)
 * Files are made in, and removed from, the directory. Prints a Markdown table of means, medians in brackets.
 * Build: cc -O2 -o filling filling.c */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WAYS = 4, SIZES = 5, SEGMENT = 8 << 20, SAMPLES = 1 << 20 };
static const int AHEAD[WAYS] = {0, 65536, 262144, 1048576};
static const int BATCH[SIZES] = {80, 4200, 16000, 42000, 84000};
static const double SLICE_S = 0.25;

typedef struct { int fd; off_t at, filled; double *ms; long n; } Way;

static char record[1 << 17], filling[1 << 20];

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void die(const char *m) { fprintf(stderr, "filling: %s (%s)\n", m, strerror(errno)); exit(1); }
static int rising(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return x < y ? -1 : x > y; }

/* one batch of `size` bytes; the milliseconds it took until all was on disk */
static double batch(Way *w, int size, int ahead) {
  if (w->at + size > SEGMENT) {
    if (ftruncate(w->fd, 0) || fdatasync(w->fd)) die("ftruncate");
    w->at = w->filled = 0;
  }
  double start = now();
  if (pwrite(w->fd, record, size, w->at) != size) die("pwrite");
  w->at += size;
  if (ahead && w->at + size > w->filled) {
    off_t from = w->filled > w->at ? w->filled : w->at, to = w->at + ahead < SEGMENT ? w->at + ahead : SEGMENT;
    if (to > from && pwrite(w->fd, filling, to - from, from) != to - from) die("pwrite");
    w->filled = to;
  }
  if (fdatasync(w->fd)) die("fdatasync");
  return (now() - start) * 1e3;
}

static void measure(int size, double seconds) {
  Way ways[WAYS];
  for (int i = 0; i < WAYS; i++) {
    ways[i] = (Way){open("filling.data", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), 0, 0, malloc(SAMPLES * sizeof(double)), 0};
    if (ways[i].fd < 0 || !ways[i].ms) die("open");
    unlink("filling.data");
  }
  for (double spent = 0; spent < seconds; spent += SLICE_S)
    for (int i = 0; i < WAYS; i++)
      for (double end = now() + SLICE_S; now() < end && ways[i].n < SAMPLES;)
        ways[i].ms[ways[i].n++] = batch(&ways[i], size, AHEAD[i]);
  printf("| %d |", size);
  for (int i = 0; i < WAYS; i++) {
    double sum = 0;
    for (long k = 0; k < ways[i].n; k++) sum += ways[i].ms[k];
    qsort(ways[i].ms, ways[i].n, sizeof(double), rising);
    printf(" %.2f (%.2f) |", sum / ways[i].n, ways[i].ms[ways[i].n / 2]);
    free(ways[i].ms);
    close(ways[i].fd);
  }
  printf("\n");
  fflush(stdout);
}

int main(int argc, char **argv) {
  if (argc < 2 || argc > 3) { fprintf(stderr, "usage: filling directory [seconds]\n"); return 2; }
  if (chdir(argv[1])) die("chdir");
  memset(record, 'x', sizeof record);
  memset(filling, 0xA5, sizeof filling);
  printf("| bytes in the batch | appended | over 64 KiB | over 256 KiB | over 1 MiB |\n| --- | --- | --- | --- | --- |\n");
  for (int i = 0; i < SIZES; i++) measure(BATCH[i], argc > 2 ? atof(argv[2]) : 2.5);
  return 0;
}

/* sync: what a batch of confirms costs that touched N durable queues, synced file by file (fdatasync) or
 * all at once (syncfs), on a quiet file system and beside a neighbour that writes unrelated data to it.
 * The table is the ground for decision 0005.
 *
 * A batch appends one record of 63 to 100 bytes to each of N files and then syncs. Both ways take turns
 * of a quarter of a second, so that drift of the disk meets both. The neighbour is another process that
 * appends 64 KiB blocks and never syncs.
 *
 * sync directory [seconds per figure] [MiB/s of the neighbour ...]   (default 5 seconds; 0 32 256)
 * Files are made in, and removed from, the directory. Prints a Markdown table of medians, with the 95th
 * percentile in brackets. Build: cc -O2 -o sync sync.c */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 256, SMALLEST = 63, LARGEST = 100, BLOCK = 65536, ROUND = 256 << 20, SAMPLES = 1 << 20 };
static const int FILES[] = {1, 2, 4, 8, 16, 32, 64, 256};
enum { EACH, AT_ONCE, WAYS };
static const double SLICE_S = 0.25;

typedef struct { double *ms; long n; } Series;

static char record[LARGEST], block[BLOCK];
static int files[MOST], directory;
static off_t ends[MOST];

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void die(const char *m) { fprintf(stderr, "sync: %s (%s)\n", m, strerror(errno)); exit(1); }
static int create(const char *name) {
  int fd = openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) die("open");
  return fd;
}

static void neighbour(int mib_per_s) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int fd = create("neighbour"); double start = now(); off_t at = 0;
  for (long n = 0;; n++) {
    double early = start + n * (BLOCK / 1048576.0) / mib_per_s - now();
    if (early > 0) usleep(early * 1e6);
    if (pwrite(fd, block, BLOCK, at) != BLOCK) die("pwrite");
    if ((at += BLOCK) >= ROUND) { if (ftruncate(fd, 0)) die("ftruncate"); at = 0; }
  }
}

/* one batch over the first n files; the milliseconds it took until all was on disk */
static double batch(int n, int way) {
  double start = now();
  for (int i = 0; i < n; i++) {
    int size = SMALLEST + ends[i] % (LARGEST - SMALLEST + 1);
    if (pwrite(files[i], record, size, ends[i]) != size) die("pwrite");
    ends[i] += size;
  }
  if (way == AT_ONCE) { if (syncfs(directory)) die("syncfs"); return (now() - start) * 1e3; }
  for (int i = 0; i < n; i++) if (fdatasync(files[i])) die("fdatasync");
  return (now() - start) * 1e3;
}
static void slice(Series *s, int n, int way) {
  double until = now() + SLICE_S;
  do s->ms[s->n++] = batch(n, way); while (now() < until && s->n < SAMPLES);
}
static int ascending(const void *a, const void *b) { double x = *(double *)a, y = *(double *)b; return (x > y) - (x < y); }
static double quantile(Series *s, double q) { return s->ms[(long)((s->n - 1) * q)]; }

static void measure(int n, double seconds, int mib_per_s) {
  Series ways[WAYS]; pid_t child = 0;
  for (int way = 0; way < WAYS; way++) { ways[way].n = 0; if (!(ways[way].ms = malloc(SAMPLES * sizeof(double)))) die("memory"); }
  syncfs(directory); /* begin with nothing left over */
  if (mib_per_s && !(child = fork())) neighbour(mib_per_s);
  for (double until = now() + WAYS * seconds; now() < until;) for (int way = 0; way < WAYS; way++) slice(&ways[way], n, way);
  if (child) { kill(child, SIGKILL); waitpid(child, NULL, 0); }
  if (mib_per_s) printf("| %d | %d MiB/s |", n, mib_per_s); else printf("| %d | none |", n);
  for (int way = 0; way < WAYS; way++) {
    qsort(ways[way].ms, ways[way].n, sizeof(double), ascending);
    printf(" %.2f (%.2f) |", quantile(&ways[way], 0.5), quantile(&ways[way], 0.95));
  }
  printf("\n");
  fflush(stdout);
  for (int way = 0; way < WAYS; way++) free(ways[way].ms);
}

int main(int argc, char **argv) {
  if (argc < 2) { fprintf(stderr, "usage: sync directory [seconds per figure] [MiB/s of the neighbour ...]\n"); return 2; }
  char *usual[] = {"0", "32", "256"}, **rates = argc > 3 ? argv + 3 : usual, name[32];
  double seconds = argc > 2 ? atof(argv[2]) : 5; int n_rates = argc > 3 ? argc - 3 : 3;
  if ((directory = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) die("open directory");
  memset(record, 'x', sizeof record); memset(block, 'y', sizeof block);
  for (int i = 0; i < MOST; i++) { snprintf(name, sizeof name, "file.%d", i); files[i] = create(name); }
  printf("| files | neighbour | fdatasync each, ms | syncfs once, ms |\n| --- | --- | --- | --- |\n");
  for (int k = 0; k < n_rates; k++)
    for (unsigned i = 0; i < sizeof FILES / sizeof *FILES; i++) measure(FILES[i], seconds, atoi(rates[k]));
  for (int i = 0; i < MOST; i++) { snprintf(name, sizeof name, "file.%d", i); unlinkat(directory, name, 0); }
  unlinkat(directory, "neighbour", 0);
  return 0;
}

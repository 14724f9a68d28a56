/* slowclock: a library to be preloaded, by which monotonic time passes 50 times more slowly, as a
 * program does under callgrind. Whatever looks at the clock between two messages then does so as
 * often for each message as it does in life. Threads of Python that wait until a moment of that clock
 * wait so long, too: the kernel's clock would be past it at once, and they would spin. Build: cc -O2 -shared -fPIC -o slowclock.so slowclock.c -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <semaphore.h>
#include <time.h>

#define SLOWER 50

int clock_gettime(clockid_t clock, struct timespec *to) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, to);
  if (!failed && clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) {
    long long ns = (to->tv_sec * 1000000000LL + to->tv_nsec) / SLOWER;
    to->tv_sec = ns / 1000000000LL;
    to->tv_nsec = ns % 1000000000LL;
  }
  return failed;
}

int sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *until) {
  static int (*real)(sem_t *, clockid_t, const struct timespec *);
  if (!real)
    real = (int (*)(sem_t *, clockid_t, const struct timespec *))dlsym(RTLD_NEXT, "sem_clockwait");
  if (clock == CLOCK_REALTIME) return real(sem, clock, until);
  long long seconds = until->tv_sec * SLOWER + until->tv_nsec / (1000000000L / SLOWER);
  struct timespec later = {seconds, until->tv_nsec % (1000000000L / SLOWER) * SLOWER};
  return real(sem, clock, &later);
}

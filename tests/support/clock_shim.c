/* The wall clock of a process under test: LD_PRELOAD this to have it jump.
 *
 * The file CLOCK_SHIM_CONTROL, which is mapped, says by how many nanoseconds CLOCK_REALTIME is off;
 * a test changes it while the process runs. Other clocks are as they are. `tests/support/clock.py`
 * is the other side.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t* off_ns;

__attribute__((constructor)) static void begin(void)
{
    const char* path = getenv("CLOCK_SHIM_CONTROL");
    int fd;
    if (path == NULL)
        return;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    off_ns = mmap(NULL, sizeof *off_ns, PROT_READ, MAP_SHARED, fd, 0);
    if (fd < 0 || off_ns == MAP_FAILED)
        abort();
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec* t)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, t);
    int64_t ns;
    if (rc || off_ns == NULL || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return rc;
    ns = (int64_t)t->tv_sec * 1000000000 + t->tv_nsec + *off_ns;
    t->tv_sec = (time_t)(ns / 1000000000);
    t->tv_nsec = (long)(ns % 1000000000);
    return 0;
}

int gettimeofday(struct timeval* restrict t, void* restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t* where)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where != NULL)
        *where = now.tv_sec;
    return now.tv_sec;
}

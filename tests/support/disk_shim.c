/* Stands between a broker and its disk: LD_PRELOAD this to log, count, kill or fail file calls.
 *
 * Only calls on files below DISK_SHIM_ROOT count. Every one is appended to the file DISK_SHIM_LOG
 * (if given) in the order in which it took effect, with the bytes of a write, so that the log alone
 * can rebuild the directory. What is to happen to which call stands in the file DISK_SHIM_CONTROL,
 * which is mapped: a test changes it while the broker runs. `tests/support/disk.py` is the other
 * side of both formats. Descriptors are looked up in /proc/self/fd, which follows dup and rename.
 * Calls go to the kernel directly, so no symbol of the C library is needed to do what was asked.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind {
    OPEN = 1 << 0,        /* for writing, or creating */
    OPEN_READ = 1 << 1,
    WRITE = 1 << 2,
    READ = 1 << 3,
    SYNC = 1 << 4,        /* in the log: it has begun */
    TRUNCATE = 1 << 5,
    RENAME = 1 << 6,
    UNLINK = 1 << 7,
    MKDIR = 1 << 8,
    RMDIR = 1 << 9,
    MMAP = 1 << 10,
    DUP = 1 << 11,
    SYNCED = 1 << 12,     /* only in the log: a sync has ended well */
    PUNCH = 1 << 13,      /* a hole is made; in the log its length is the data, 8 bytes */
    ALLOCATE = 1 << 14,   /* room is made ahead; likewise */
    STAT = 1 << 15,       /* asked by name what is there; never in the log */
    CACHED = 1 << 16,     /* asked for what need not be read from the disk; likewise */
};

enum action { NOTHING, KILL_BEFORE, KILL_AFTER, KILL_MIDDLE, FAIL, SHORT, HOLD };

struct control {
    uint32_t action;
    uint32_t kinds;       /* the calls that count, as bits */
    uint32_t error;       /* errno of FAIL; of the calls after the first SHORT one, 0: none */
    uint32_t sync_us;     /* a sync takes this long and goes nowhere; 0: a real one */
    uint64_t first, last; /* numbers of the matching calls it happens to, from 1 */
    uint64_t matched;     /* matching calls so far */
    uint64_t struck;      /* those it happened to */
    char pattern[256];    /* fnmatch, on the path below the root; empty: any */
};

struct record {
    uint64_t time_ns;     /* CLOCK_MONOTONIC, before the call took effect */
    uint64_t inode;       /* 0: the whole file system */
    int64_t offset;       /* of a write or a hole; the new size of a truncate */
    uint32_t kind;
    uint32_t flags;       /* of an open: 1 it was created, 2 emptied; of a sync: 4 a directory;
                           * of an allocation: 8 the size stays */
    uint32_t path_len, target_len, data_len;
    uint32_t number;      /* of the call among the matching ones; 0 if it is not one */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct control* control;
static char root[PATH_MAX];
static size_t root_len;
static int log_fd = -1;

/* Also called by a process that has forked, and has other variables by now (nursery.py). */
__attribute__((constructor)) void disk_shim_begin(void)
{
    const char* place = getenv("DISK_SHIM_ROOT");
    const char* steering = getenv("DISK_SHIM_CONTROL");
    const char* log_path = getenv("DISK_SHIM_LOG");
    int fd;
    if (place == NULL || steering == NULL)
        return;
    fd = (int)syscall(SYS_openat, AT_FDCWD, steering, O_RDWR | O_CLOEXEC, 0);
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || control == MAP_FAILED)
        abort();
    if (log_path != NULL) {
        int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
        log_fd = (int)syscall(SYS_openat, AT_FDCWD, log_path, flags, 0644);
        if (log_fd < 0)
            abort();
    }
    snprintf(root, sizeof root, "%s", place);
    root_len = strlen(root);
}

/* ---- which file ------------------------------------------------------------------------------ */

static int is_ours(const char* path)
{
    return root_len && strncmp(path, root, root_len) == 0
        && (path[root_len] == '/' || path[root_len] == 0);
}

/* The path of a descriptor of ours, 1; or 0. */
static int path_of(int fd, char* path, uint64_t* inode)
{
    static const char deleted[] = " (deleted)";
    struct stat st;
    char link[40];
    ssize_t n;
    if (root_len == 0 || fd < 0 || fd == log_fd || syscall(SYS_fstat, fd, &st) < 0)
        return 0;
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, PATH_MAX - 1);
    if (n < 0)
        return 0;
    path[n] = 0;
    n -= (ssize_t)sizeof deleted - 1;
    if (n > 0 && strcmp(path + n, deleted) == 0)
        path[n] = 0;
    if (inode != NULL)
        *inode = st.st_ino;
    return is_ours(path);
}

/* The whole path of a name in a directory, 1 when it is ours. */
static int path_at(int dir, const char* name, char* path)
{
    size_t n;
    if (root_len == 0 || name == NULL)
        return 0;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
        return is_ours(path);
    }
    if (dir == AT_FDCWD || !path_of(dir, path, NULL))
        return 0;
    n = strlen(path);
    snprintf(path + n, PATH_MAX - n, "/%s", name);
    return 1;
}

/* ---- log ------------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Append one record; the lock is held. One system call: only a kill can cut it short. */
static void note(struct record r, const char* path, const char* target, const void* data)
{
    struct iovec parts[4];
    int saved = errno;
    if (log_fd < 0)
        return;
    path = path == NULL ? "" : path[root_len] ? path + root_len + 1 : "";
    target = target == NULL ? "" : target + root_len + 1;
    r.path_len = (uint32_t)strlen(path);
    r.target_len = (uint32_t)strlen(target);
    parts[0] = (struct iovec){&r, sizeof r};
    parts[1] = (struct iovec){(void*)path, r.path_len};
    parts[2] = (struct iovec){(void*)target, r.target_len};
    parts[3] = (struct iovec){(void*)data, r.data_len};
    if (syscall(SYS_writev, log_fd, parts, 4) < 0)
        abort();
    errno = saved;
}

/* ---- what is to happen ----------------------------------------------------------------------- */

static void die(void)
{
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;)
        pause();
}

static int is_meant(enum kind kind, const char* path)
{
    const char* name = path[root_len] ? path + root_len + 1 : "";
    if (!(control->kinds & kind))
        return 0;
    return !control->pattern[0] || fnmatch(control->pattern, name, 0) == 0;
}

/* A disk that does not answer: keep a call back until the plan says something else. The lock is not
 * held meanwhile, other calls go on. */
static void keep_back(enum kind kind, const char* path)
{
    if (control->action != HOLD || !is_meant(kind, path))
        return;
    __atomic_add_fetch(&control->struck, 1, __ATOMIC_SEQ_CST);
    while (*(volatile uint32_t*)&control->action == HOLD)
        usleep(1000);
}

/* Count a call, with the lock held. What is to happen to it; kills at once for KILL_BEFORE. */
static enum action strike(enum kind kind, const char* path, struct record* r)
{
    enum action action = (enum action)control->action;
    if (!is_meant(kind, path))
        return NOTHING;
    control->matched++;
    if (r != NULL)
        r->number = (uint32_t)control->matched;
    if (action == NOTHING || action == HOLD || control->matched < control->first || control->matched > control->last)
        return NOTHING;
    control->struck++;
    if (action == KILL_BEFORE)
        die();
    if (action == SHORT && control->error && control->matched > control->first)
        action = FAIL;
    if (action == FAIL)
        errno = (int)control->error;
    return action;
}

/* The simple calls: do it, note it, die after it if that is wanted. */
#define PLAIN(kind_, path_, target_, record_, call_)                     \
    do {                                                                 \
        long result_ = -1;                                               \
        enum action action_;                                             \
        keep_back(kind_, path_);                                         \
        pthread_mutex_lock(&lock);                                       \
        record_.time_ns = now_ns();                                      \
        record_.kind = kind_;                                            \
        action_ = strike(kind_, path_, &record_);                                  \
        if (action_ != FAIL)                                             \
            result_ = (call_);                                           \
        if (result_ >= 0)                                                \
            note(record_, path_, target_, NULL);                         \
        if (action_ == KILL_AFTER || action_ == KILL_MIDDLE)             \
            die();                                                       \
        pthread_mutex_unlock(&lock);                                     \
        return (int)result_;                                             \
    } while (0)

/* ---- names ----------------------------------------------------------------------------------- */

static int open_at(int dir, const char* name, int flags, mode_t mode)
{
    char path[PATH_MAX];
    struct record r = {0};
    struct stat st;
    enum kind kind = flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC) ? OPEN : OPEN_READ;
    enum action action;
    int fd = -1, saved;
    if (!path_at(dir, name, path))
        return (int)syscall(SYS_openat, dir, name, flags, mode);
    keep_back(kind, path);
    pthread_mutex_lock(&lock);
    r.time_ns = now_ns();
    r.kind = kind;
    r.flags = access(path, F_OK) ? 1 : flags & O_TRUNC ? 2 : 0;
    action = strike(kind, path, &r);
    if (action != FAIL)
        fd = (int)syscall(SYS_openat, dir, name, flags, mode);
    saved = errno;
    if (fd >= 0 && kind == OPEN && syscall(SYS_fstat, fd, &st) == 0) {
        r.inode = st.st_ino;
        note(r, path, NULL, NULL);
    }
    if (action == KILL_AFTER || action == KILL_MIDDLE)
        die();
    pthread_mutex_unlock(&lock);
    errno = saved;
    return fd;
}

static mode_t mode_of(int flags, va_list rest)
{
    return flags & (O_CREAT | __O_TMPFILE) ? (mode_t)va_arg(rest, int) : 0;
}

int open(const char* path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return open_at(AT_FDCWD, path, flags, mode);
}

int openat(int dir, const char* path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return open_at(dir, path, flags, mode);
}

/* A directory that is listed. */
DIR* opendir(const char* name)
{
    int fd = open_at(AT_FDCWD, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK, 0);
    return fd < 0 ? NULL : fdopendir(fd);
}

/* What a disk says of a name, or that it does not say. */
static int stat_at(int dir, const char* name, struct stat* st, int flags)
{
    char path[PATH_MAX];
    enum action action = NOTHING;
    if (name[0] && path_at(dir, name, path)) {
        keep_back(STAT, path);
        pthread_mutex_lock(&lock);
        action = strike(STAT, path, NULL);
        pthread_mutex_unlock(&lock);
    }
    return action == FAIL ? -1 : (int)syscall(SYS_newfstatat, dir, name, st, flags);
}

int fstatat(int dir, const char* name, struct stat* st, int flags)
{
    return stat_at(dir, name, st, flags);
}

int stat(const char* path, struct stat* st) { return stat_at(AT_FDCWD, path, st, 0); }

int lstat(const char* path, struct stat* st)
{
    return stat_at(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

int mkdirat(int dir, const char* name, mode_t mode)
{
    char path[PATH_MAX];
    struct record r = {0};
    if (!path_at(dir, name, path))
        return (int)syscall(SYS_mkdirat, dir, name, mode);
    PLAIN(MKDIR, path, NULL, r, syscall(SYS_mkdirat, dir, name, mode));
}

int unlinkat(int dir, const char* name, int flags)
{
    char path[PATH_MAX];
    struct record r = {0};
    enum kind kind = flags & AT_REMOVEDIR ? RMDIR : UNLINK;
    if (!path_at(dir, name, path))
        return (int)syscall(SYS_unlinkat, dir, name, flags);
    PLAIN(kind, path, NULL, r, syscall(SYS_unlinkat, dir, name, flags));
}

int renameat(int from_dir, const char* from, int to_dir, const char* to)
{
    char path[PATH_MAX], target[PATH_MAX];
    struct record r = {0};
    if (!path_at(from_dir, from, path) || !path_at(to_dir, to, target))
        return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
    PLAIN(RENAME, path, target, r, syscall(SYS_renameat2, from_dir, from, to_dir, to, 0));
}

int mkdir(const char* path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int rename(const char* from, const char* to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

/* ---- contents -------------------------------------------------------------------------------- */

/* offset -1: at the position of the descriptor. */
static ssize_t write_to(int fd, const void* data, size_t n, off_t offset)
{
    char path[PATH_MAX];
    struct record r = {0};
    enum action action;
    ssize_t done = -1;
    int saved;
    if (n == 0 || !path_of(fd, path, &r.inode))
        return offset < 0 ? syscall(SYS_write, fd, data, n)
                          : syscall(SYS_pwrite64, fd, data, n, offset);
    keep_back(WRITE, path);
    pthread_mutex_lock(&lock);
    r.time_ns = now_ns();
    r.kind = WRITE;
    action = strike(WRITE, path, &r);
    if ((action == SHORT || action == KILL_MIDDLE) && n > 1)
        n /= 2;
    if (action != FAIL)
        done = offset < 0 ? syscall(SYS_write, fd, data, n)
                          : syscall(SYS_pwrite64, fd, data, n, offset);
    saved = errno;
    if (done > 0) {
        r.offset = offset < 0 ? lseek(fd, 0, SEEK_CUR) - done : offset;
        r.data_len = (uint32_t)done;
        note(r, path, NULL, data);
    }
    if (action == KILL_AFTER || action == KILL_MIDDLE)
        die();
    pthread_mutex_unlock(&lock);
    errno = saved;
    return done;
}

ssize_t write(int fd, const void* data, size_t n) { return write_to(fd, data, n, -1); }
ssize_t pwrite(int fd, const void* data, size_t n, off_t at) { return write_to(fd, data, n, at); }

/* As one write: the parts of ours are few and short. */
ssize_t pwritev(int fd, const struct iovec* parts, int count, off_t at)
{
    char path[PATH_MAX];
    size_t n = 0;
    char* whole;
    ssize_t done;
    if (!path_of(fd, path, NULL))
        return syscall(SYS_pwritev, fd, parts, count, at, 0);
    for (int i = 0; i < count; i++)
        n += parts[i].iov_len;
    whole = malloc(n);
    if (whole == NULL)
        abort();
    n = 0;
    for (int i = 0; i < count; i++) {
        memcpy(whole + n, parts[i].iov_base, parts[i].iov_len);
        n += parts[i].iov_len;
    }
    done = write_to(fd, whole, n, at);
    free(whole);
    return done;
}

static ssize_t read_from(int fd, void* data, size_t n, off_t offset)
{
    char path[PATH_MAX];
    enum action action = NOTHING;
    if (path_of(fd, path, NULL)) {
        keep_back(READ, path);
        pthread_mutex_lock(&lock);
        action = strike(READ, path, NULL);
        pthread_mutex_unlock(&lock);
    }
    if (action == FAIL)
        return -1;
    if (action == SHORT && n > 1)
        n /= 2;
    return offset < 0 ? syscall(SYS_read, fd, data, n)
                      : syscall(SYS_pread64, fd, data, n, offset);
}

/* A read that does not wait: FAIL with EAGAIN is a page cache that has nothing. */
ssize_t preadv2(int fd, const struct iovec* parts, int count, off_t at, int flags)
{
    char path[PATH_MAX];
    enum action action = NOTHING;
    if (path_of(fd, path, NULL)) {
        pthread_mutex_lock(&lock);
        action = strike(CACHED, path, NULL);
        pthread_mutex_unlock(&lock);
    }
    return action == FAIL ? -1 : syscall(SYS_preadv2, fd, parts, count, at, 0, flags);
}

/* What the kernel reads for a socket; it is held, and done whole or not at all. */
ssize_t sendfile(int to, int fd, off_t* at, size_t n)
{
    char path[PATH_MAX];
    enum action action = NOTHING;
    if (path_of(fd, path, NULL)) {
        keep_back(READ, path);
        pthread_mutex_lock(&lock);
        action = strike(READ, path, NULL);
        pthread_mutex_unlock(&lock);
    }
    return action == FAIL ? -1 : syscall(SYS_sendfile, to, fd, at, n);
}

ssize_t read(int fd, void* data, size_t n) { return read_from(fd, data, n, -1); }
ssize_t pread(int fd, void* data, size_t n, off_t at) { return read_from(fd, data, n, at); }

int ftruncate(int fd, off_t size)
{
    char path[PATH_MAX];
    struct record r = {.offset = size};
    if (!path_of(fd, path, &r.inode))
        return (int)syscall(SYS_ftruncate, fd, size);
    PLAIN(TRUNCATE, path, NULL, r, syscall(SYS_ftruncate, fd, size));
}

/* Holes and room ahead; other modes are refused, as some file systems do: the log could not tell
 * what they did. */
int fallocate(int fd, int mode, off_t offset, off_t size)
{
    char path[PATH_MAX];
    struct record r = {.offset = offset, .data_len = sizeof(int64_t)};
    int64_t length = size;
    enum action action;
    int rc = -1, saved;
    if (!path_of(fd, path, &r.inode))
        return (int)syscall(SYS_fallocate, fd, mode, offset, size);
    r.kind = mode & FALLOC_FL_PUNCH_HOLE ? PUNCH : ALLOCATE;
    r.flags = mode & FALLOC_FL_KEEP_SIZE ? 8 : 0;
    if (mode & ~(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)) {
        errno = EOPNOTSUPP;
        return -1;
    }
    pthread_mutex_lock(&lock);
    r.time_ns = now_ns();
    action = strike((enum kind)r.kind, path, &r);
    if (action != FAIL)
        rc = (int)syscall(SYS_fallocate, fd, mode, offset, size);
    saved = errno;
    if (rc == 0)
        note(r, path, NULL, &length);
    if (action == KILL_AFTER || action == KILL_MIDDLE)
        die();
    pthread_mutex_unlock(&lock);
    errno = saved;
    return rc;
}

int posix_fallocate(int fd, off_t offset, off_t size)
{
    int saved = errno, rc = fallocate(fd, 0, offset, size) ? errno : 0;
    errno = saved;
    return rc;
}

/* A mapping of ours is counted and may fail; what is written through it the log would not see. */
void* mmap(void* at, size_t n, int protection, int flags, int fd, off_t offset)
{
    char path[PATH_MAX];
    enum action action = NOTHING;
    if (fd >= 0 && path_of(fd, path, NULL)) {
        pthread_mutex_lock(&lock);
        action = strike(MMAP, path, NULL);
        if (log_fd >= 0 && protection & PROT_WRITE && flags & MAP_SHARED)
            abort();
        pthread_mutex_unlock(&lock);
    }
    if (action == FAIL)
        return MAP_FAILED;
    return (void*)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}

int dup(int fd)
{
    char path[PATH_MAX];
    enum action action = NOTHING;
    if (path_of(fd, path, NULL)) {
        pthread_mutex_lock(&lock);
        action = strike(DUP, path, NULL);
        pthread_mutex_unlock(&lock);
    }
    return action == FAIL ? -1 : (int)syscall(SYS_dup, fd);
}

/* ---- syncs ----------------------------------------------------------------------------------- */

/* The lock is not held while a sync runs: what is written meanwhile it need not cover. */
static int sync_by(long number, int fd)
{
    char path[PATH_MAX];
    struct record r = {0};
    struct stat st;
    enum action action;
    int rc = -1, saved;
    if (!path_of(fd, path, &r.inode))
        return (int)syscall(number, fd);
    if (number == SYS_syncfs)
        r.inode = 0;
    r.flags = syscall(SYS_fstat, fd, &st) == 0 && S_ISDIR(st.st_mode) ? 4 : 0;
    keep_back(SYNC, path);
    pthread_mutex_lock(&lock);
    r.time_ns = now_ns();
    r.kind = SYNC;
    action = strike(SYNC, path, &r);
    note(r, path, NULL, NULL);
    pthread_mutex_unlock(&lock);
    if (action == FAIL) {
        errno = (int)control->error;
        return -1;
    }
    if (control->sync_us)
        rc = usleep(control->sync_us);
    else
        rc = (int)syscall(number, fd);
    saved = errno;
    pthread_mutex_lock(&lock);
    r.time_ns = now_ns();
    r.kind = SYNCED;
    r.number = 0;
    if (rc == 0)
        note(r, path, NULL, NULL);
    if (action == KILL_AFTER || action == KILL_MIDDLE)
        die();
    pthread_mutex_unlock(&lock);
    errno = saved;
    return rc;
}

int fsync(int fd) { return sync_by(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_by(SYS_fdatasync, fd); }
int syncfs(int fd) { return sync_by(SYS_syncfs, fd); }

/* ---- the names of 32 bit days ---------------------------------------------------------------- */

int open64(const char*, int, ...) __attribute__((alias("open")));
int openat64(int, const char*, int, ...) __attribute__((alias("openat")));
int stat64(const char*, struct stat64*) __attribute__((alias("stat")));
int lstat64(const char*, struct stat64*) __attribute__((alias("lstat")));
int fstatat64(int, const char*, struct stat64*, int) __attribute__((alias("fstatat")));
ssize_t pwrite64(int, const void*, size_t, off_t) __attribute__((alias("pwrite")));
ssize_t pwritev64(int, const struct iovec*, int, off_t) __attribute__((alias("pwritev")));
ssize_t preadv64v2(int, const struct iovec*, int, off_t, int) __attribute__((alias("preadv2")));
ssize_t pread64(int, void*, size_t, off_t) __attribute__((alias("pread")));
ssize_t sendfile64(int, int, off_t*, size_t) __attribute__((alias("sendfile")));
int ftruncate64(int, off_t) __attribute__((alias("ftruncate")));
int fallocate64(int, int, off_t, off_t) __attribute__((alias("fallocate")));
int posix_fallocate64(int, off_t, off_t) __attribute__((alias("posix_fallocate")));
void* mmap64(void*, size_t, int, int, int, off_t) __attribute__((alias("mmap")));

/* ---- the names that headers give to calls: of checked ones, and of a version of `struct stat` -- */

int __open_2(const char* path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __open64_2(const char*, int) __attribute__((alias("__open_2")));

int __openat_2(int dir, const char* path, int flags) { return open_at(dir, path, flags, 0); }
int __openat64_2(int, const char*, int) __attribute__((alias("__openat_2")));

ssize_t __read_chk(int fd, void* data, size_t n, size_t room)
{
    if (n > room)
        abort();
    return read_from(fd, data, n, -1);
}

ssize_t __pread_chk(int fd, void* data, size_t n, off_t at, size_t room)
{
    if (n > room)
        abort();
    return read_from(fd, data, n, at);
}
ssize_t __pread64_chk(int, void*, size_t, off_t, size_t) __attribute__((alias("__pread_chk")));

/* What a program calls that was linked with a C library older than 2.33. The version is always that
 * of the kernel's structure. */
int __xstat(int version, const char* path, struct stat* st)
{
    (void)version;
    return stat_at(AT_FDCWD, path, st, 0);
}

int __lxstat(int version, const char* path, struct stat* st)
{
    (void)version;
    return stat_at(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

int __fxstatat(int version, int dir, const char* name, struct stat* st, int flags)
{
    (void)version;
    return stat_at(dir, name, st, flags);
}

int __xstat64(int, const char*, struct stat64*) __attribute__((alias("__xstat")));
int __lxstat64(int, const char*, struct stat64*) __attribute__((alias("__lxstat")));
int __fxstatat64(int, int, const char*, struct stat64*, int) __attribute__((alias("__fxstatat")));

// Ends the process in the middle of one of its writes, or has the disk be full from that one on.
//
// What counts is whatever changes a regular file or a folder: opening with O_CREAT, writing,
// cutting to length, renaming, taking away, and waiting for the disk. Of a write that is hit only
// half is done, as when a process is killed in it or the last page of a disk is filled by it. The
// disk itself is not waited for: what was written outlives a process without that.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NOTHING, KILL, FULL };
static long left = 0;
static int how = NOTHING;

// The `count`th change from now on is hit: 1 kills, 2 is a full disk that stays full.
void harm_at(long count, int kind) { left = count, how = kind; }

// How many more changes it takes until one is hit; 0 once it was.
long changes_left(void) { return left; }

static int is_hit(void) {
  if (how == NOTHING) return 0;
  if (left > 0) left--;
  return left == 0;
}

static void end(void) {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

static int on_disk(int fd) {
  struct stat seen;
  return !fstat(fd, &seen) && S_ISREG(seen.st_mode);
}

// Taking away, renaming and waiting need no room.
#define FREE(CALL)                      \
  if (is_hit() && how == KILL) end();   \
  return (CALL)
#define ROOM(CALL)                      \
  if (is_hit()) {                       \
    if (how == KILL) end();             \
    errno = ENOSPC;                     \
    return -1;                          \
  }                                     \
  return (CALL)

static int opened(int dir, const char *path, int flags, mode_t mode) {
  if (!(flags & (O_CREAT | O_TRUNC)) || !(flags & (O_WRONLY | O_RDWR)))
    return syscall(SYS_openat, dir, path, flags, mode);
  struct stat seen;
  if (how == FULL && !fstatat(dir, path, &seen, 0))  // it is there already
    return syscall(SYS_openat, dir, path, flags, mode);
  ROOM((int)syscall(SYS_openat, dir, path, flags, mode));
}

#define MODE_OF(FLAGS)                                   \
  mode_t mode = 0;                                       \
  if ((FLAGS) & (O_CREAT | O_TMPFILE)) {                 \
    va_list rest;                                        \
    va_start(rest, FLAGS);                               \
    mode = va_arg(rest, mode_t);                         \
    va_end(rest);                                        \
  }

int open(const char *path, int flags, ...) { MODE_OF(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE_OF(flags) return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE_OF(flags) return opened(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE_OF(flags) return opened(dir, path, flags | O_LARGEFILE, mode); }

static ssize_t wrote(int fd, const void *data, size_t size, int at, off_t place) {
#define WRITE(SIZE) (at ? syscall(SYS_pwrite64, fd, data, SIZE, place) : syscall(SYS_write, fd, data, SIZE))
  if (!on_disk(fd)) return WRITE(size);
  long before = left;
  if (is_hit()) {
    if (how == KILL) {
      WRITE(size / 2);
      end();
    }
    if (before > 0 && size > 1) return WRITE(size / 2);
    errno = ENOSPC;
    return -1;
  }
  return WRITE(size);
}

ssize_t write(int fd, const void *data, size_t size) { return wrote(fd, data, size, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return wrote(fd, data, size, 1, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return wrote(fd, data, size, 1, at); }
int ftruncate(int fd, off_t size) { FREE((int)syscall(SYS_ftruncate, fd, size)); }
int ftruncate64(int fd, off64_t size) { FREE((int)syscall(SYS_ftruncate, fd, size)); }
int fsync(int fd) { (void)fd; FREE(0); }
int fdatasync(int fd) { (void)fd; FREE(0); }
int unlink(const char *path) { FREE((int)syscall(SYS_unlinkat, AT_FDCWD, path, 0)); }
int unlinkat(int dir, const char *path, int flags) { FREE((int)syscall(SYS_unlinkat, dir, path, flags)); }
int rename(const char *from, const char *to) { FREE((int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0)); }
int renameat(int a, const char *from, int b, const char *to) { FREE((int)syscall(SYS_renameat2, a, from, b, to, 0)); }
int mkdir(const char *path, mode_t mode) { ROOM((int)syscall(SYS_mkdirat, AT_FDCWD, path, mode)); }
int mkdirat(int dir, const char *path, mode_t mode) { ROOM((int)syscall(SYS_mkdirat, dir, path, mode)); }

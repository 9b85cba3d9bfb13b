/* Loaded before the C library, this makes a disk of any speed of the one below: the thread that
 * commits a log waits after each of its syncs. What is kept for whom meanwhile is the test's to find
 * out; nothing of the broker is built otherwise for it.
 *
 * SYNC_THREAD     the end of the name of the threads that wait, instead of those that commit; their
 *                 fsync waits, too.
 * SYNC_DELAY_MS   milliseconds that each sync takes longer.
 * SYNC_GATE       a directory. The file `begun` in it counts the syncs. With a file `released` no
 *                 sync is done whose number is above the one in that file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static unsigned long begun;

static int ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static int waits(const char *end) {
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    return ends_with(name, end);
}

static void wait_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

static void path_in(const char *directory, const char *name, char *path, size_t size) {
    snprintf(path, size, "%s/%s", directory, name);
}

/* The number in a file of the gate. The test puts it there whole, by a rename. */
static unsigned long released_in(const char *directory) {
    char path[4096], text[32] = "";
    path_in(directory, "released", path, sizeof path);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return (unsigned long)-1;
    }
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    return length > 0 ? strtoul(text, NULL, 10) : 0;
}

static void tell_begun(const char *directory, unsigned long number) {
    char path[4096], text[32];
    path_in(directory, "begun", path, sizeof path);
    int length = snprintf(text, sizeof text, "%020lu", number);
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) {
        if (pwrite(file, text, (size_t)length, 0) != length) {
            abort();
        }
        close(file);
    }
}

static void wait_for_disk(void) {
    const char *gate = getenv("SYNC_GATE"), *delay = getenv("SYNC_DELAY_MS");
    if (gate != NULL) {
        unsigned long number = __atomic_add_fetch(&begun, 1, __ATOMIC_SEQ_CST);
        tell_begun(gate, number);
        while (number > released_in(gate)) {
            wait_ms(1);
        }
    }
    if (delay != NULL) {
        wait_ms(atol(delay));
    }
}

int fdatasync(int file) {
    static int (*next)(int);
    if (next == NULL) {
        next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    }
    const char *thread = getenv("SYNC_THREAD");
    if (waits(thread != NULL ? thread : "-commit")) {
        wait_for_disk();
    }
    return next(file);
}

int fsync(int file) {
    static int (*next)(int);
    if (next == NULL) {
        next = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    }
    const char *thread = getenv("SYNC_THREAD");
    if (thread != NULL && waits(thread)) {
        wait_for_disk();
    }
    return next(file);
}

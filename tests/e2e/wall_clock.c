/* Loaded before the C library, this makes a wall clock that a test can set, for one process. Clocks
 * that nobody can set show what they do without it.
 *
 * WALL_CLOCK      a file with the number of seconds that the wall clock is ahead. None: it is right.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The test puts the file there whole, by a rename. */
static time_t secs_ahead(void) {
    char text[32] = "";
    const char *path = getenv("WALL_CLOCK");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return 0;
    }
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    return length > 0 ? (time_t)strtoll(text, NULL, 10) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        time->tv_sec += secs_ahead();
    }
    return result;
}

/* The clock of a host that is wrong: what the time of day is, with SPANWISE_TEST_AHEAD_S seconds added.
   libfaketime also changes what clock_nanosleep() is given, which Python's sleep does not survive. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long ahead_s(void) {
    const char *seconds = getenv("SPANWISE_TEST_AHEAD_S");
    return seconds ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*own)(clockid_t, struct timespec *);
    if (!own) own = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = own(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead_s();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*own)(struct timeval *, void *);
    if (!own) own = dlsym(RTLD_NEXT, "gettimeofday");
    int failed = own(now, zone);
    if (!failed) now->tv_sec += ahead_s();
    return failed;
}

time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}

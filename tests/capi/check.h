/* What the C tests share: assertions that stay in every build, and a small random generator. */
#ifndef FLINT_RT_TEST_CHECK_H
#define FLINT_RT_TEST_CHECK_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <flint_rt.h>

#define HOLDS(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);     \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

/* That a call gives `wanted`; else its text is shown. */
#define GIVES(wanted, handle, call)                                                            \
    do {                                                                                       \
        flint_rt_status got_ = (call);                                                         \
        if (got_ != (wanted)) {                                                                \
            char text_[512] = "";                                                              \
            flint_rt_last_error((handle), text_, sizeof text_, NULL);                          \
            fprintf(stderr, "%s:%d: %s gives %d (%s), wanted %d\n", __FILE__, __LINE__, #call, \
                    got_, text_, (int)(wanted));                                               \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

#define WORKS(handle, call) GIVES(FLINT_RT_OK, handle, call)

/* xorshift64*; Vigna 2016. */
static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

static inline uint32_t below(uint64_t *state, uint32_t bound) {
    return (uint32_t)((next_random(state) >> 33) % bound);
}

/* The process's memory in KiB: field `name` of its status. */
static inline long status_kib(const char *name) {
    char line[256];
    long found = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, strlen(name)) == 0) {
            found = strtol(line + strlen(name) + 1, NULL, 10);
        }
    }
    if (file) {
        fclose(file);
    }
    return found;
}

#endif

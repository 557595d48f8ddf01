/* The streaming layer alone, with memory and a consumer of one's own: stream_experts MODEL [SLOTS]
 *
 * Goes through the layers as a step would, with a few experts a layer: while one layer's are used, the next one's are read. What
 * uses them here is a toy: the sum of the gate's first row, and a hash of all bytes. A runtime would run its kernels there.
 *
 * cc stream_experts.c $(pkg-config --cflags --libs flint_rt) -o stream_experts
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <flint_rt.h>

#define EXPERTS 3 /* of a layer; a model's router would choose them */

static void check(flint_rt_status status, const void *handle, const char *what) {
    char text[512];
    if (status == FLINT_RT_OK) {
        return;
    }
    flint_rt_last_error(handle, text, sizeof text, NULL);
    fprintf(stderr, "%s: %s: %s\n", what, flint_rt_status_string(status), text);
    exit(1);
}

static float half_to_float(uint16_t half) {
    uint32_t exponent = (half >> 10) & 31, fraction = half & 1023;
    float value = exponent == 0 ? (float)fraction / 16777216.0f : (float)(fraction + 1024) / 1024.0f;
    for (; exponent > 15; exponent--) {
        value *= 2.0f;
    }
    for (; exponent > 0 && exponent < 15; exponent++) {
        value /= 2.0f;
    }
    return half & 0x8000 ? -value : value;
}

/* The sum of a row in Q4_1: blocks of 32 weights, each scale, least value, and 4 bits a weight. */
static double sum_of_row(const unsigned char *row, uint32_t weights) {
    double sum = 0;
    for (uint32_t block = 0; block < weights / 32; block++, row += 20) {
        uint16_t scale, least;
        memcpy(&scale, row, 2);
        memcpy(&least, row + 2, 2);
        for (int at = 0; at < 16; at++) {
            sum += (double)half_to_float(scale) * ((row[4 + at] & 15) + (row[4 + at] >> 4));
        }
        sum += 32 * (double)half_to_float(least);
    }
    return sum;
}

static uint64_t hash(uint64_t state, const unsigned char *bytes, uint64_t count) {
    for (uint64_t at = 0; at < count; at++) {
        state = (state ^ bytes[at]) * 1099511628211u; /* FNV-1a */
    }
    return state;
}

static void choose(uint32_t layer, uint32_t experts, uint32_t *chosen) {
    for (uint32_t at = 0; at < EXPERTS; at++) {
        chosen[at] = (layer * 5 + at * 3) % experts;
    }
}

int main(int argc, char **argv) {
    flint_rt_store *store = NULL;
    flint_rt_pool *pool = NULL;
    flint_rt_store_info info = {0};
    flint_rt_pool_options options;
    flint_rt_pool_stats stats = {0};
    uint32_t chosen[EXPERTS];
    int32_t descriptor = -1;

    if (argc < 2) {
        fprintf(stderr, "usage: stream_experts MODEL [SLOTS]\n");
        return 2;
    }
    check(flint_rt_check_abi(FLINT_RT_ABI_VERSION), NULL, "libflint_rt");
    check(flint_rt_store_open(argv[1], &store), NULL, argv[1]);
    info.struct_size = sizeof info;
    check(flint_rt_store_info_get(store, &info), store, "info");

    /* Memory of our own: a device's runtime would take it pinned, so that its device reads what lands there. */
    flint_rt_pool_options_init(&options, sizeof options);
    options.slots = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 4 * EXPERTS;
    check(flint_rt_store_pool_bytes(store, options.slots, &options.memory_bytes), store, "memory");
    options.memory = mmap(NULL, options.memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (options.memory == MAP_FAILED) {
        perror("memory");
        return 1;
    }
    check(flint_rt_pool_create(store, &options, &pool), store, "pool");
    check(flint_rt_pool_eventfd(pool, &descriptor), pool, "eventfd");

    for (uint32_t layer = info.layer_first; layer < info.layer_first + info.layer_count; layer++) {
        flint_rt_expert experts[EXPERTS];
        uint64_t request = 0;
        size_t count = 0;
        int32_t is_ready = 0;

        choose(layer, info.expert_count, chosen);
        check(flint_rt_pool_request(pool, layer, chosen, EXPERTS, FLINT_RT_NEEDED, &request), pool, "request");
        if (layer + 1 < info.layer_first + info.layer_count) {
            uint32_t next[EXPERTS];
            flint_rt_status status;
            choose(layer + 1, info.expert_count, next);
            status = flint_rt_pool_request(pool, layer + 1, next, EXPERTS, FLINT_RT_GUESS, NULL);
            if (status != FLINT_RT_ERR_POOL_FULL) { /* With so few slots there is no reading ahead. */
                check(status, pool, "guess");
            }
        }
        /* As in a loop that waits for other things, too; flint_rt_pool_wait does it in one call. */
        while (check(flint_rt_pool_poll(pool, request, &is_ready), pool, "read"), !is_ready) {
            struct pollfd wake = {descriptor, POLLIN, 0};
            poll(&wake, 1, -1);
        }
        check(flint_rt_pool_experts(pool, request, experts, EXPERTS, &count), pool, "experts");
        for (size_t at = 0; at < count; at++) {
            uint64_t all = hash(14695981039346656037u, experts[at].gate, info.gate_bytes);
            all = hash(hash(all, experts[at].up, info.up_bytes), experts[at].down, info.down_bytes);
            printf("%u %u %.6f %016llx\n", layer, chosen[at], sum_of_row(experts[at].gate, info.embed_dim),
                   (unsigned long long)all);
        }
        check(flint_rt_pool_release(pool, request), pool, "release");
    }

    stats.struct_size = sizeof stats;
    check(flint_rt_pool_stats_get(pool, &stats), pool, "stats");
    fprintf(stderr, "%llu hits, %llu misses, %llu evictions, %.1f MB read\n", (unsigned long long)stats.hits,
            (unsigned long long)stats.misses, (unsigned long long)stats.evictions,
            (double)stats.drive_read_bytes / 1e6);
    flint_rt_pool_free(pool);
    flint_rt_store_close(store);
    munmap(options.memory, options.memory_bytes);
    return 0;
}

/* Calls in random order on good, freed, foreign and missing handles, from two threads, from a seed:
 * random_calls MODEL SEED SEQUENCES DEVICE ("-": no device, only what needs none)
 *
 * No call may crash, meet a fault of the library, or give what is no status; a handle that never was good gives
 * FLINT_RT_ERR_HANDLE; and when all is freed the process is as large as it was.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>

#include "check.h"

#define KINDS 5
#define HANDLES 4
#define CALLS 24

enum { MODEL, SESSION, SAMPLER, STORE, POOL };

static const char *model_path, *device;
static flint_rt_model *shared_model;
/* Handles of both threads: what one frees the other may be using. */
static void *handles[KINDS][HANDLES];
static uint64_t requests[HANDLES];
static int tokens_left;

typedef struct {
    uint64_t random;
    unsigned long long calls, good;
} Thread;

static int32_t count_down(void *user_data, uint32_t token, const char *text, size_t text_bytes) {
    (void)token, (void)text, (void)text_bytes;
    return below(user_data, 2) == 0;
}

static int32_t maybe_stop(void *user_data, int32_t phase, uint64_t done, uint64_t total) {
    (void)phase, (void)done, (void)total;
    return below(user_data, 4) == 0;
}

/* A handle that may be good, of another kind, freed, NULL, an address, or made up. */
static void *any(Thread *it, int kind) {
    uint32_t choice = below(&it->random, 32);
    if (choice == 0) {
        return NULL;
    }
    if (choice == 1) {
        return &it->random;
    }
    if (choice == 2) {
        return (void *)(uintptr_t)next_random(&it->random);
    }
    if (choice == 3) {
        kind = (int)below(&it->random, KINDS);
    }
    if (kind == MODEL && choice < 28) {
        return shared_model;
    }
    return __atomic_load_n(&handles[kind][below(&it->random, HANDLES)], __ATOMIC_ACQUIRE);
}

static flint_rt_status release(int kind, void *handle) {
    switch (kind) {
    case MODEL:
        return flint_rt_model_close(handle);
    case SESSION:
        return flint_rt_session_free(handle);
    case SAMPLER:
        return flint_rt_sampler_free(handle);
    case STORE:
        return flint_rt_store_close(handle);
    default:
        return flint_rt_pool_free(handle);
    }
}

/* Keeps a new handle, and frees the one whose place it takes; sometimes leaves the freed one to be used again. */
static void keep(Thread *it, int kind, void *handle) {
    if (handle) {
        void *old = __atomic_exchange_n(&handles[kind][below(&it->random, HANDLES)], handle, __ATOMIC_ACQ_REL);
        release(kind, old);
    }
}

static flint_rt_status call(Thread *it) {
    uint64_t *r = &it->random;
    uint32_t tokens[16] = {0}, token = 0, room;
    char text[32];
    size_t count = 0, given = below(r, 4);
    int32_t number = 0, states[4];
    float logits[4] = {0};
    const float *lent = NULL;
    flint_rt_expert experts[4];
    void *made = NULL;
    flint_rt_status status;
    for (size_t at = 0; at < 4; at++) {
        tokens[at] = below(r, 16) ? below(r, 300) : (uint32_t)next_random(r);
    }
    uint32_t *some = below(r, 16) ? tokens : NULL;
    uint64_t request = below(r, 4) ? __atomic_load_n(&requests[below(r, HANDLES)], __ATOMIC_RELAXED) : below(r, 3);
    switch (below(r, 43)) {
    case 0: {
        flint_rt_model_options options = {0};
        flint_rt_model_options_init(&options, below(r, 8) ? sizeof options : below(r, 64));
        options.device = device;
        options.context_len = 64;
        options.progress = maybe_stop;
        options.user_data = r;
        if (!device || below(r, 64)) { /* Takes long where it works. */
            return flint_rt_model_open(below(r, 2) ? "/nowhere" : NULL, &options, (flint_rt_model **)&made);
        }
        status = flint_rt_model_open(model_path, &options, (flint_rt_model **)&made);
        keep(it, MODEL, made);
        return status;
    }
    case 1: case 2:
        status = flint_rt_session_create(any(it, MODEL), below(r, 8) ? (flint_rt_session **)&made : NULL);
        keep(it, SESSION, made);
        return status;
    case 3: case 4: {
        flint_rt_sampler_options options;
        flint_rt_sampler_options_init(&options, sizeof options);
        options.temperature = (float)below(r, 3) - 0.5f;
        status = flint_rt_sampler_create(any(it, MODEL), below(r, 2) ? &options : NULL, (flint_rt_sampler **)&made);
        keep(it, SAMPLER, made);
        return status;
    }
    case 5: case 6:
        status = flint_rt_store_open(below(r, 4) ? model_path : "/nowhere", (flint_rt_store **)&made);
        keep(it, STORE, made);
        return status;
    case 7: case 8: case 9: {
        flint_rt_pool_options options;
        flint_rt_pool_options_init(&options, sizeof options);
        options.slots = below(r, 16) ? 1 + below(r, 12) : (uint32_t)next_random(r);
        options.read_path = (int32_t)below(r, 8) ? FLINT_RT_READ_THREADS : (int32_t)below(r, 5);
        options.depth = below(r, 4);
        status = flint_rt_pool_create(any(it, STORE), &options, (flint_rt_pool **)&made);
        keep(it, POOL, made);
        return status;
    }
    case 10: {
        int kind = (int)below(r, KINDS);
        void *handle = any(it, kind);
        return handle == shared_model ? FLINT_RT_OK : release(kind, handle);
    }
    case 11:
        return flint_rt_model_tokenize(any(it, MODEL), "ab\xff" + below(r, 3), below(r, 2), below(r, 5), some, given, &count);
    case 12:
        return flint_rt_model_detokenize(any(it, MODEL), some, given, text, sizeof text, below(r, 8) ? &count : NULL);
    case 13: {
        flint_rt_message message = {below(r, 4) ? "user" : "nobody", "hi", 2, NULL, 0};
        return flint_rt_model_chat_prompt(any(it, MODEL), &message, below(r, 2), (int32_t)below(r, 4), some,
                                          some ? 16 : 0, &count);
    }
    case 14: {
        flint_rt_model_info info = {.struct_size = below(r, 8) ? sizeof info : below(r, 9)};
        return flint_rt_model_info_get(any(it, MODEL), &info);
    }
    case 15: {
        flint_rt_model_stats stats = {.struct_size = sizeof stats};
        return flint_rt_model_stats_get(any(it, MODEL), below(r, 8) ? &stats : NULL);
    }
    case 16: case 17:
        if (__atomic_sub_fetch(&tokens_left, 1, __ATOMIC_RELAXED) < 0) {
            return FLINT_RT_OK;
        }
        return flint_rt_session_feed(any(it, SESSION), some, given);
    case 18: {
        flint_rt_generate_options options;
        flint_rt_generate_result result = {.struct_size = sizeof result};
        if (__atomic_sub_fetch(&tokens_left, 2, __ATOMIC_RELAXED) < 0) {
            return FLINT_RT_OK;
        }
        flint_rt_generate_options_init(&options, sizeof options);
        options.tokens_max = 1 + below(r, 3);
        options.token = count_down;
        options.user_data = r;
        return flint_rt_session_generate(any(it, SESSION), below(r, 2) ? any(it, SAMPLER) : NULL, some, given,
                                         &options, below(r, 2) ? &result : NULL);
    }
    case 19:
        return flint_rt_session_logits(any(it, SESSION), &lent, below(r, 8) ? &count : NULL);
    case 20: case 21:
        return flint_rt_session_sample(any(it, SESSION), any(it, SAMPLER), &token);
    case 22:
        return flint_rt_session_tokens(any(it, SESSION), tokens, below(r, 17), &count);
    case 23:
        return flint_rt_session_room(any(it, SESSION), &room);
    case 24:
        return flint_rt_session_truncate(any(it, SESSION), below(r, 8), &count);
    case 25:
        return flint_rt_session_cancel(any(it, SESSION));
    case 26:
        return flint_rt_sampler_choose(any(it, SAMPLER), logits, below(r, 5), &token);
    case 27:
        return flint_rt_sampler_start(any(it, SAMPLER), some, given);
    case 28: {
        flint_rt_store_info info = {.struct_size = sizeof info};
        return flint_rt_store_info_get(any(it, STORE), &info);
    }
    case 29:
        return flint_rt_store_layers(any(it, STORE), tokens, below(r, 17), &count);
    case 30:
        return flint_rt_store_pool_bytes(any(it, STORE), below(r, 9), &count);
    case 31: case 32: {
        uint64_t number_of_it = 0;
        for (size_t at = 0; at < 4; at++) {
            tokens[at] = below(r, 18);
        }
        status = flint_rt_pool_request(any(it, POOL), below(r, 8), some, given, (int32_t)below(r, 3),
                                       below(r, 4) ? &number_of_it : NULL);
        if (number_of_it) {
            __atomic_store_n(&requests[below(r, HANDLES)], number_of_it, __ATOMIC_RELAXED);
        }
        return status;
    }
    case 33:
        return flint_rt_pool_poll(any(it, POOL), request, below(r, 4) ? &number : NULL);
    case 34:
        return flint_rt_pool_wait(any(it, POOL), request, below(r, 8) ? 5 : 0);
    case 35:
        return flint_rt_pool_experts(any(it, POOL), request, experts, below(r, 5), &count);
    case 36: case 37:
        return flint_rt_pool_release(any(it, POOL), request);
    case 38:
        return below(r, 2) ? flint_rt_pool_residency(any(it, POOL), below(r, 8), tokens, given, states, 4, &count)
                           : flint_rt_pool_eventfd(any(it, POOL), &number);
    case 39: {
        if (!device || __atomic_sub_fetch(&tokens_left, 2, __ATOMIC_RELAXED) < 0) {
            return FLINT_RT_OK;
        }
        flint_rt_feed feeds[3] = {{any(it, SESSION), some, given, 0, 0}, {any(it, SESSION), tokens, 1, 0, 0}};
        return flint_rt_step(below(r, 8) ? feeds : NULL, below(r, 4));
    }
    case 40:
        status = flint_rt_session_clone(any(it, SESSION), (flint_rt_session **)&made);
        keep(it, SESSION, made);
        return status;
    case 41:
        return below(r, 2) ? flint_rt_session_save(any(it, SESSION), "/nowhere/session")
                           : flint_rt_session_restore(any(it, SESSION), model_path);
    default: {
        status = flint_rt_last_error(any(it, (int)below(r, KINDS)), text, below(r, sizeof text), &count);
        return status;
    }
    }
}

static void *sequence(void *given) {
    Thread *it = given;
    for (int at = 0; at < CALLS; at++) {
        flint_rt_status status = call(it);
        it->calls++;
        it->good += status == FLINT_RT_OK;
        HOLDS(status <= 0 && status >= FLINT_RT_ERR_OTHER);
        HOLDS(status != FLINT_RT_ERR_PANIC);
    }
    return NULL;
}

static void release_all(void) {
    for (int kind = KINDS - 1; kind >= 0; kind--) {
        for (int at = 0; at < HANDLES; at++) {
            release(kind, handles[kind][at]);
            handles[kind][at] = NULL;
        }
    }
}

int main(int argc, char **argv) {
    HOLDS(argc > 4);
    model_path = argv[1];
    uint64_t seed = strtoull(argv[2], NULL, 10);
    unsigned long sequences = strtoul(argv[3], NULL, 10);
    device = strcmp(argv[4], "-") ? argv[4] : NULL;
    Thread one = {.random = seed * 2 + 1}, two = {.random = seed * 2 + 1000001};
    if (device) {
        flint_rt_model_options options;
        flint_rt_model_options_init(&options, sizeof options);
        options.device = device;
        options.context_len = 64;
        WORKS(NULL, flint_rt_model_open(model_path, &options, &shared_model));
    }
    long begun_kib = 0;
    for (unsigned long at = 0; at < sequences; at++) {
        pthread_t thread;
        tokens_left = 8;
        HOLDS(pthread_create(&thread, NULL, sequence, &two) == 0);
        sequence(&one);
        pthread_join(thread, NULL);
        /* Not after each, so that objects of one sequence are met by the next. */
        if (at % 8 == 7 || at + 1 == sequences) {
            release_all();
        }
        if (at == sequences / 4) {
            malloc_trim(0);
            begun_kib = status_kib("VmRSS");
        }
    }
    WORKS(NULL, flint_rt_model_close(shared_model));
    malloc_trim(0);
    printf("%llu calls, %llu of them good; %ld KiB after a quarter, %ld KiB at the end\n", one.calls + two.calls,
           one.good + two.good, begun_kib, status_kib("VmRSS"));
    return 0;
}

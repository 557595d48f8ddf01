/* Four threads on one model and one pool at a time, for races: threads MODEL DEVICE ("-": the pool alone)
 *
 * Every thread finds the tokens that it would find alone, and the bytes that the file has.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "check.h"

#define THREADS 4
#define TOKENS 6
#define ROUNDS 60

static flint_rt_model *model;
static flint_rt_pool *pool;
/* Shared, so that those who generate and those who sample wait for it. */
static flint_rt_sampler *greedy;
static flint_rt_store_info info = {.struct_size = sizeof info};
static uint32_t prompt[32], alone[TOKENS];
static size_t prompt_count;
static uint64_t sums[64][256];

static int32_t keep(void *user_data, uint32_t token, const char *text, size_t text_bytes) {
    uint32_t **at = user_data;
    (void)text, (void)text_bytes;
    if (token != FLINT_RT_NO_TOKEN) {
        *(*at)++ = token;
    }
    return 0;
}

static void generate(flint_rt_session *session, uint32_t *tokens) {
    flint_rt_generate_options options;
    WORKS(NULL, flint_rt_generate_options_init(&options, sizeof options));
    options.tokens_max = TOKENS;
    options.ignore_stops = 1;
    options.token = keep;
    options.user_data = &tokens;
    WORKS(session, flint_rt_session_generate(session, greedy, prompt, prompt_count, &options, NULL));
}

static void *reply(void *given) {
    (void)given;
    flint_rt_session *session;
    uint32_t tokens[TOKENS], token;
    size_t count;
    char text[64];
    for (int round = 0; round < 4; round++) {
        WORKS(model, flint_rt_session_create(model, &session));
        generate(session, tokens);
        HOLDS(memcmp(tokens, alone, sizeof tokens) == 0);
        WORKS(session, flint_rt_session_set_prompt(session, prompt, prompt_count, NULL));
        for (int at = 0; at < TOKENS; at++) {
            WORKS(session, flint_rt_session_sample(session, greedy, &token));
            HOLDS(token == alone[at]);
            WORKS(model, flint_rt_model_detokenize(model, &token, 1, text, sizeof text, &count));
            WORKS(session, flint_rt_session_feed(session, &token, 1));
        }
        WORKS(NULL, flint_rt_session_free(session));
    }
    return NULL;
}

static uint64_t sum_of(const flint_rt_expert *expert) {
    uint64_t sum = 0;
    const uint32_t *words[] = {expert->gate, expert->up, expert->down};
    uint64_t bytes[] = {info.gate_bytes, info.up_bytes, info.down_bytes};
    for (int matrix = 0; matrix < 3; matrix++) {
        for (uint64_t at = 0; at < bytes[matrix] / 4; at++) {
            sum = sum * 31 + words[matrix][at];
        }
    }
    return sum;
}

static void *stream(void *given) {
    uint64_t random = (uintptr_t)given;
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t layer = below(&random, info.layer_count), ids[3];
        flint_rt_expert experts[3];
        uint64_t request;
        size_t count;
        for (int at = 0; at < 3; at++) {
            ids[at] = below(&random, info.expert_count);
        }
        flint_rt_status status = flint_rt_pool_request(pool, info.layer_first + layer, ids, 3,
                                                       (int32_t)below(&random, 2), &request);
        if (status == FLINT_RT_ERR_POOL_FULL) {
            continue;
        }
        WORKS(pool, status);
        if (below(&random, 4)) {
            WORKS(pool, flint_rt_pool_wait(pool, request, 60000));
            WORKS(pool, flint_rt_pool_experts(pool, request, experts, 3, &count));
            for (int at = 0; at < 3; at++) {
                uint64_t sum = sum_of(&experts[at]), before = 0;
                uint64_t *known = &sums[layer][ids[at]];
                /* Whoever sees an expert first says what it is. */
                HOLDS(__atomic_compare_exchange_n(known, &before, sum, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)
                      || before == sum);
            }
        }
        WORKS(pool, flint_rt_pool_release(pool, request));
    }
    return NULL;
}

static void all(void *(*work)(void *)) {
    pthread_t threads[THREADS];
    for (uintptr_t at = 0; at < THREADS; at++) {
        HOLDS(pthread_create(&threads[at], NULL, work, (void *)(at + 1)) == 0);
    }
    for (int at = 0; at < THREADS; at++) {
        pthread_join(threads[at], NULL);
    }
}

int main(int argc, char **argv) {
    HOLDS(argc > 2);
    flint_rt_store *store;
    flint_rt_pool_options how;
    WORKS(NULL, flint_rt_store_open(argv[1], &store));
    WORKS(store, flint_rt_store_info_get(store, &info));
    HOLDS(info.layer_count <= 64 && info.expert_count <= 256);
    for (int path = FLINT_RT_READ_RING_PLAIN; path <= FLINT_RT_READ_THREADS; path++) {
        WORKS(NULL, flint_rt_pool_options_init(&how, sizeof how));
        how.slots = 10;
        how.read_path = path;
        if (flint_rt_pool_create(store, &how, &pool) != FLINT_RT_OK) {
            continue; /* No ring here. */
        }
        all(stream);
        WORKS(NULL, flint_rt_pool_free(pool));
    }
    WORKS(NULL, flint_rt_store_close(store));

    if (strcmp(argv[2], "-")) {
        flint_rt_model_options options;
        flint_rt_session *session;
        WORKS(NULL, flint_rt_model_options_init(&options, sizeof options));
        options.device = argv[2];
        options.context_len = 64;
        options.sessions = THREADS;
        WORKS(NULL, flint_rt_model_open(argv[1], &options, &model));
        WORKS(model, flint_rt_model_tokenize(model, "def is_even(n):", 15, FLINT_RT_TOKENIZE_BEGIN, prompt, 32,
                                             &prompt_count));
        WORKS(model, flint_rt_sampler_create(model, NULL, &greedy));
        WORKS(model, flint_rt_session_create(model, &session));
        generate(session, alone);
        WORKS(NULL, flint_rt_session_free(session));
        all(reply);
        WORKS(NULL, flint_rt_sampler_free(greedy));
        WORKS(NULL, flint_rt_model_close(model));
    }
    puts("holds");
    return 0;
}

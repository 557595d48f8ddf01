/* What the header promises, call by call: behaviour MODEL DEVICE FOLDER, which is written to */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "check.h"

#define TOKENS 24

static const char *model_path, *device;
static flint_rt_model *model;

static flint_rt_model_options model_options(void) {
    flint_rt_model_options options;
    WORKS(NULL, flint_rt_model_options_init(&options, sizeof options));
    options.device = device;
    options.context_len = 256;
    options.sessions = 4;
    options.host_memory_bytes = FLINT_RT_NO_HOST_MEMORY;
    return options;
}

static uint32_t prompt[32];
static size_t prompt_count;

/* ------------------------------------------------------------------------------- versions, handles, structs, texts --- */

static void versions(void) {
    char text[128];
    size_t needed = 0;
    HOLDS(flint_rt_abi_version() == FLINT_RT_ABI_VERSION);
    WORKS(NULL, flint_rt_check_abi(FLINT_RT_ABI_VERSION));
    HOLDS(flint_rt_check_abi(FLINT_RT_ABI_VERSION + 7) == FLINT_RT_ERR_ABI);
    WORKS(NULL, flint_rt_last_error(NULL, text, sizeof text, &needed));
    HOLDS(needed == strlen(text) + 1 && strstr(text, "7"));
    /* What fits is there, and ends in NUL. */
    HOLDS(flint_rt_last_error(NULL, text, 6, &needed) == FLINT_RT_ERR_BUFFER && strlen(text) == 5 && needed > 6);
    HOLDS(flint_rt_last_error(NULL, NULL, 0, &needed) == FLINT_RT_ERR_BUFFER && needed > 6);
    for (int status = 5; status > -40; status--) {
        HOLDS(strlen(flint_rt_status_string(status)) > 3);
    }
}

static void bad_handles(void) {
    int on_the_stack = 0;
    flint_rt_session *session = NULL;
    flint_rt_sampler *sampler = NULL;
    flint_rt_model_info info = {.struct_size = sizeof info};
    const float *logits;
    size_t count;
    /* NULL, an address, a number made up. */
    flint_rt_session *bad[] = {NULL, (flint_rt_session *)&on_the_stack, (flint_rt_session *)0x8f17000000ffffff};
    for (size_t at = 0; at < sizeof bad / sizeof *bad; at++) {
        HOLDS(flint_rt_session_feed(bad[at], prompt, prompt_count) == FLINT_RT_ERR_HANDLE);
        HOLDS(flint_rt_session_logits(bad[at], &logits, &count) == FLINT_RT_ERR_HANDLE);
        HOLDS(flint_rt_session_cancel(bad[at]) == FLINT_RT_ERR_HANDLE);
        HOLDS(at == 0 || flint_rt_session_free(bad[at]) == FLINT_RT_ERR_HANDLE);
        HOLDS(at == 0 || flint_rt_last_error(bad[at], NULL, 0, NULL) == FLINT_RT_ERR_HANDLE);
    }
    WORKS(NULL, flint_rt_session_free(NULL));
    WORKS(NULL, flint_rt_model_close(NULL));
    WORKS(NULL, flint_rt_pool_free(NULL));

    /* Freed, twice freed, of another kind. */
    WORKS(model, flint_rt_session_create(model, &session));
    WORKS(model, flint_rt_sampler_create(model, NULL, &sampler));
    HOLDS(flint_rt_model_info_get((flint_rt_model *)session, &info) == FLINT_RT_ERR_HANDLE);
    HOLDS(flint_rt_session_feed((flint_rt_session *)sampler, prompt, 1) == FLINT_RT_ERR_HANDLE);
    HOLDS(flint_rt_sampler_free((flint_rt_sampler *)session) == FLINT_RT_ERR_HANDLE);
    WORKS(NULL, flint_rt_session_free(session));
    HOLDS(flint_rt_session_free(session) == FLINT_RT_ERR_HANDLE);
    HOLDS(flint_rt_session_feed(session, prompt, 1) == FLINT_RT_ERR_HANDLE);
    WORKS(NULL, flint_rt_sampler_free(sampler));
}

static void structs_of_other_versions(void) {
    struct {
        flint_rt_generate_options known;
        uint64_t later;
    } options = {0};
    struct {
        size_t struct_size;
        uint32_t vocabulary;
        uint32_t untouched;
    } shorter = {offsetof(flint_rt_model_info, context_len), 0, 77};
    flint_rt_session *session;
    WORKS(model, flint_rt_session_create(model, &session));
    /* A later header: what it added does no harm as long as it is not used. */
    WORKS(NULL, flint_rt_generate_options_init(&options.known, sizeof options));
    HOLDS(options.known.struct_size == sizeof options && options.later == 0);
    options.known.tokens_max = 1;
    WORKS(session, flint_rt_session_generate(session, NULL, prompt, prompt_count, &options.known, NULL));
    options.later = 1;
    GIVES(FLINT_RT_ERR_ABI, session,
          flint_rt_session_generate(session, NULL, prompt, prompt_count, &options.known, NULL));
    /* An earlier one: no byte behind its struct is written. */
    WORKS(model, flint_rt_model_info_get(model, (flint_rt_model_info *)&shorter));
    HOLDS(shorter.vocabulary > 0 && shorter.untouched == 77);
    options.known.struct_size = 1;
    GIVES(FLINT_RT_ERR_ARGUMENT, session,
          flint_rt_session_generate(session, NULL, prompt, prompt_count, &options.known, NULL));
    options.known.struct_size = (size_t)-1;
    GIVES(FLINT_RT_ERR_ARGUMENT, session,
          flint_rt_session_generate(session, NULL, prompt, prompt_count, &options.known, NULL));
    /* An answer that cannot be written is told before anything is computed. */
    flint_rt_generate_result result = {0};
    uint32_t token;
    size_t count = 9;
    WORKS(session, flint_rt_session_truncate(session, 0, NULL));
    GIVES(FLINT_RT_ERR_ARGUMENT, session,
          flint_rt_session_generate(session, NULL, prompt, prompt_count, NULL, &result));
    WORKS(session, flint_rt_session_tokens(session, &token, 1, &count));
    HOLDS(count == 0);
    WORKS(NULL, flint_rt_session_free(session));
}

static void texts(void) {
    static const char said[] = "na\xc3\xafve \xe2\x9c\x93";
    uint32_t tokens[64];
    char text[64];
    size_t count, bytes;
    int32_t is_stop = 7;
    flint_rt_model_info info = {.struct_size = sizeof info};
    WORKS(model, flint_rt_model_tokenize(model, said, strlen(said), 0, tokens, 64, &count));
    HOLDS(count > 1);
    GIVES(FLINT_RT_ERR_BUFFER, model, flint_rt_model_tokenize(model, said, strlen(said), 0, tokens, count - 1, &bytes));
    HOLDS(bytes == count);
    WORKS(model, flint_rt_model_detokenize(model, tokens, count, text, sizeof text, &bytes));
    HOLDS(bytes == strlen(said) && strcmp(text, said) == 0);
    GIVES(FLINT_RT_ERR_BUFFER, model, flint_rt_model_detokenize(model, tokens, count, text, 3, &bytes));
    HOLDS(bytes == strlen(said));
    GIVES(FLINT_RT_ERR_ARGUMENT, model, flint_rt_model_tokenize(model, "\xff", 1, 0, tokens, 64, &count));
    GIVES(FLINT_RT_ERR_ARGUMENT, model, flint_rt_model_tokenize(model, NULL, 1, 0, tokens, 64, &count));
    GIVES(FLINT_RT_ERR_ARGUMENT, model, flint_rt_model_tokenize(model, "a", 1, 64, tokens, 64, &count));
    GIVES(FLINT_RT_ERR_ARGUMENT, model, flint_rt_model_tokenize(model, "a", 1, 0, tokens, 64, NULL));
    WORKS(model, flint_rt_model_tokenize(model, NULL, 0, 0, NULL, 0, &count));
    HOLDS(count == 0);
    WORKS(model, flint_rt_model_info_get(model, &info));
    WORKS(model, flint_rt_model_is_stop(model, info.eos_token, &is_stop));
    HOLDS(is_stop == 1);
    tokens[0] = info.vocabulary;
    GIVES(FLINT_RT_ERR_ARGUMENT, model, flint_rt_model_detokenize(model, tokens, 1, text, sizeof text, &bytes));

    flint_rt_message message = {.role = "user", .content = "<|assistant|>", .content_bytes = 13};
    WORKS(model, flint_rt_model_chat_prompt(model, &message, 1, FLINT_RT_THINK_AUTO, tokens, 64, &count));
    WORKS(model, flint_rt_model_detokenize(model, tokens, count, text, sizeof text, &bytes));
    HOLDS(strcmp(text, "<|user|>&lt;|assistant|&gt;<|assistant|>") == 0);
    message.role = "owner";
    GIVES(FLINT_RT_ERR_ARGUMENT, model, flint_rt_model_chat_prompt(model, &message, 1, 0, tokens, 64, &count));
}

static void devices(void) {
    size_t count = 0;
    flint_rt_device_info info = {.struct_size = sizeof info};
    WORKS(NULL, flint_rt_device_count(&count));
    HOLDS(count > 0);
    WORKS(NULL, flint_rt_device_info_get(0, &info));
    HOLDS(strlen(info.name) > 0);
    GIVES(FLINT_RT_ERR_ARGUMENT, NULL, flint_rt_device_info_get(count, &info));
}

/* ---------------------------------------------------------------------------------------------------------- models --- */

static int32_t stop_at_weights(void *user_data, int32_t phase, uint64_t done, uint64_t total) {
    int *calls = user_data;
    HOLDS(done <= total);
    ++*calls;
    return phase == FLINT_RT_PHASE_WEIGHTS;
}

static void opening(void) {
    flint_rt_model_options options = model_options();
    flint_rt_memory_plan plan = {.struct_size = sizeof plan};
    flint_rt_model *none = (flint_rt_model *)1;
    int calls = 0;
    char text[256];
    GIVES(FLINT_RT_ERR_MODEL, NULL, flint_rt_model_open("/nowhere/model.gguf", &options, &none));
    HOLDS(none == NULL);
    flint_rt_last_error(NULL, text, sizeof text, NULL);
    HOLDS(strstr(text, "/nowhere/model.gguf"));
    options.progress = stop_at_weights;
    options.user_data = &calls;
    GIVES(FLINT_RT_ERR_CANCELLED, NULL, flint_rt_model_open(model_path, &options, &none));
    HOLDS(none == NULL && calls == 2);
    options.progress = NULL;
    options.prefetch = 9;
    GIVES(FLINT_RT_ERR_ARGUMENT, NULL, flint_rt_model_open(model_path, &options, &none));
    options = model_options();
    options.device = "no such device";
    GIVES(FLINT_RT_ERR_DEVICE, NULL, flint_rt_model_open(model_path, &options, &none));
    options = model_options();
    WORKS(NULL, flint_rt_plan_memory(model_path, &options, &plan));
    HOLDS(plan.pool_slots > 0 && plan.context_len == 256);
    options.gpu_memory_bytes = 1;
    GIVES(FLINT_RT_ERR_MEMORY, NULL, flint_rt_plan_memory(model_path, &options, &plan));
}

/* -------------------------------------------------------------------------------------------------------- sessions --- */

typedef struct {
    flint_rt_session *session, *other;
    uint32_t tokens[TOKENS];
    uint32_t count;
    uint32_t stop_after;
    int tries_everything;
} Reply;

static int32_t on_token(void *user_data, uint32_t token, const char *text, size_t text_bytes) {
    Reply *reply = user_data;
    (void)text, (void)text_bytes;
    if (token != FLINT_RT_NO_TOKEN) {
        HOLDS(reply->count < TOKENS);
        reply->tokens[reply->count++] = token;
    }
    if (reply->tries_everything) {
        const float *logits;
        size_t count;
        uint32_t id;
        char said[64];
        flint_rt_model_stats stats = {.struct_size = sizeof stats};
        flint_rt_session *made = NULL;
        /* What uses the session or its model is refused, and says so. */
        GIVES(FLINT_RT_ERR_REENTRANT, reply->session, flint_rt_session_feed(reply->session, &token, 1));
        GIVES(FLINT_RT_ERR_REENTRANT, reply->session, flint_rt_session_logits(reply->session, &logits, &count));
        GIVES(FLINT_RT_ERR_REENTRANT, reply->session,
              flint_rt_session_generate(reply->session, NULL, prompt, prompt_count, NULL, NULL));
        GIVES(FLINT_RT_ERR_REENTRANT, NULL, flint_rt_session_free(reply->session));
        GIVES(FLINT_RT_ERR_REENTRANT, reply->other, flint_rt_session_feed(reply->other, &token, 1));
        GIVES(FLINT_RT_ERR_REENTRANT, reply->other, flint_rt_session_tokens(reply->other, &id, 1, &count));
        GIVES(FLINT_RT_ERR_REENTRANT, NULL, flint_rt_session_free(reply->other));
        GIVES(FLINT_RT_ERR_REENTRANT, model, flint_rt_session_create(model, &made));
        GIVES(FLINT_RT_ERR_REENTRANT, model, flint_rt_model_stats_get(model, &stats));
        GIVES(FLINT_RT_ERR_REENTRANT, NULL, flint_rt_model_close(model));
        /* What never waits is not. */
        WORKS(model, flint_rt_model_tokenize(model, "a", 1, 0, &id, 1, &count));
        WORKS(model, flint_rt_model_detokenize(model, &id, 1, said, sizeof said, &count));
        WORKS(NULL, flint_rt_last_error(reply->session, said, 0, NULL) == FLINT_RT_ERR_BUFFER ? FLINT_RT_OK : 1);
    }
    return reply->count == reply->stop_after;
}

static flint_rt_generate_result generate(Reply *reply, flint_rt_sampler *sampler, uint32_t tokens_max) {
    flint_rt_generate_options options;
    flint_rt_generate_result result = {.struct_size = sizeof result};
    WORKS(NULL, flint_rt_generate_options_init(&options, sizeof options));
    options.tokens_max = tokens_max;
    options.ignore_stops = 1;
    options.token = on_token;
    options.user_data = reply;
    reply->count = 0;
    WORKS(reply->session,
          flint_rt_session_generate(reply->session, sampler, prompt, prompt_count, &options, &result));
    return result;
}

static void replies(void) {
    Reply whole = {0}, cut = {0}, within = {0};
    WORKS(model, flint_rt_session_create(model, &whole.session));
    WORKS(model, flint_rt_session_create(model, &within.other));
    cut.session = within.session = whole.session;
    flint_rt_generate_result result = generate(&whole, NULL, TOKENS);
    HOLDS(result.finish == FLINT_RT_FINISH_LENGTH && result.token_count == TOKENS && whole.count == TOKENS);
    HOLDS(result.prompt_fed == prompt_count && result.prompt_ns > 0);

    cut.stop_after = 3;
    result = generate(&cut, NULL, TOKENS);
    HOLDS(result.finish == FLINT_RT_FINISH_ABORTED && result.token_count == 3);
    HOLDS(memcmp(cut.tokens, whole.tokens, 3 * sizeof *cut.tokens) == 0);
    HOLDS(result.prompt_reused == prompt_count - 1);

    within.tries_everything = 1;
    result = generate(&within, NULL, 4);
    HOLDS(within.count == 4 && memcmp(within.tokens, whole.tokens, 4 * sizeof *within.tokens) == 0);
    WORKS(NULL, flint_rt_session_free(within.other));

    /* Token by token it is the same, by greedy sampling or by looking at the logits. */
    flint_rt_session *session;
    flint_rt_sampler *greedy;
    const float *logits;
    size_t vocabulary, count, kept = 0;
    uint32_t tokens[64], token, reused = 9, room = 0;
    WORKS(model, flint_rt_session_create(model, &session));
    WORKS(model, flint_rt_sampler_create(model, NULL, &greedy));
    GIVES(FLINT_RT_ERR_STATE, session, flint_rt_session_logits(session, &logits, &vocabulary));
    WORKS(session, flint_rt_session_feed(session, prompt, prompt_count));
    for (uint32_t at = 0; at < 6; at++) {
        uint32_t best = 0;
        WORKS(session, flint_rt_session_sample(session, greedy, &token));
        WORKS(session, flint_rt_session_logits(session, &logits, &vocabulary));
        for (uint32_t id = 0; id < vocabulary; id++) {
            best = logits[id] > logits[best] ? id : best;
        }
        HOLDS(token == whole.tokens[at] && best == token);
        WORKS(session, flint_rt_session_feed(session, &token, 1));
    }
    WORKS(session, flint_rt_session_tokens(session, tokens, 64, &count));
    HOLDS(count == prompt_count + 6 && memcmp(tokens, prompt, prompt_count * sizeof *tokens) == 0);
    WORKS(session, flint_rt_session_truncate(session, prompt_count + 2, &kept));
    HOLDS(kept == prompt_count + 2);
    GIVES(FLINT_RT_ERR_STATE, session, flint_rt_session_logits(session, &logits, &vocabulary));
    WORKS(session, flint_rt_session_feed(session, &whole.tokens[2], 1));
    WORKS(session, flint_rt_session_sample(session, greedy, &token));
    HOLDS(token == whole.tokens[3]);
    WORKS(session, flint_rt_session_set_prompt(session, prompt, prompt_count, &reused));
    HOLDS(reused == prompt_count - 1);
    WORKS(session, flint_rt_session_sample(session, greedy, &token));
    HOLDS(token == whole.tokens[0]);
    WORKS(session, flint_rt_session_room(session, &room));
    HOLDS(room == 256 - prompt_count);
    GIVES(FLINT_RT_ERR_ARGUMENT, session, flint_rt_session_feed(session, NULL, 0));
    token = UINT32_MAX;
    GIVES(FLINT_RT_ERR_ARGUMENT, session, flint_rt_session_set_prompt(session, &token, 1, NULL));
    WORKS(NULL, flint_rt_session_free(session));
    WORKS(NULL, flint_rt_session_free(whole.session));
    WORKS(NULL, flint_rt_sampler_free(greedy));
}

static void copies(const char *folder) {
    flint_rt_session *session, *clone, *restored;
    flint_rt_sampler *greedy;
    const float *logits, *same;
    size_t count, vocabulary;
    uint32_t tokens[64], one, two, more[2] = {9, 10};
    char path[512];
    snprintf(path, sizeof path, "%s/session", folder);
    WORKS(model, flint_rt_sampler_create(model, NULL, &greedy));
    WORKS(model, flint_rt_session_create(model, &session));
    WORKS(session, flint_rt_session_clone(session, &clone));
    WORKS(NULL, flint_rt_session_free(clone));
    GIVES(FLINT_RT_ERR_STATE, session, flint_rt_session_save(session, path));
    GIVES(FLINT_RT_ERR_IO, session, flint_rt_session_restore(session, "/nowhere/session"));
    GIVES(FLINT_RT_ERR_ARGUMENT, session, flint_rt_session_restore(session, model_path));
    WORKS(session, flint_rt_session_feed(session, prompt, prompt_count));
    WORKS(session, flint_rt_session_clone(session, &clone));
    WORKS(session, flint_rt_session_save(session, path));
    WORKS(session, flint_rt_session_logits(session, &logits, &vocabulary));
    WORKS(clone, flint_rt_session_logits(clone, &same, &count));
    HOLDS(count == vocabulary && logits != same && memcmp(logits, same, count * sizeof *same) == 0);
    WORKS(model, flint_rt_session_create(model, &restored));
    WORKS(restored, flint_rt_session_restore(restored, path));
    WORKS(restored, flint_rt_session_tokens(restored, tokens, 64, &count));
    HOLDS(count == prompt_count && memcmp(tokens, prompt, count * sizeof *tokens) == 0);
    GIVES(FLINT_RT_ERR_STATE, restored, flint_rt_session_logits(restored, &same, &count));

    /* All three go on in one step, and alike. */
    WORKS(session, flint_rt_session_sample(session, greedy, &one));
    flint_rt_feed feeds[] = {{session, &one, 1, 1, 0}, {restored, &one, 1, 1, 0}, {clone, &one, 1, 1, 0}};
    WORKS(NULL, flint_rt_step(feeds, 3));
    for (int at = 0; at < 3; at++) {
        HOLDS(feeds[at].status == FLINT_RT_OK);
        WORKS(feeds[at].session, flint_rt_session_sample(feeds[at].session, greedy, at ? &two : &one));
        HOLDS(at == 0 || one == two);
    }
    feeds[1].tokens = more;
    feeds[1].token_count = 2;
    WORKS(NULL, flint_rt_step(feeds, 2));
    WORKS(restored, flint_rt_session_tokens(restored, tokens, 64, &count));
    HOLDS(count == prompt_count + 3 && tokens[count - 1] == 10);
    GIVES(FLINT_RT_ERR_ARGUMENT, NULL, flint_rt_step(feeds, 0));
    GIVES(FLINT_RT_ERR_ARGUMENT, NULL, flint_rt_step(feeds, 33));
    /* What is no step changes nothing. */
    feeds[0].status = feeds[1].status = 77;
    feeds[1].token_count = 0;
    GIVES(FLINT_RT_ERR_ARGUMENT, NULL, flint_rt_step(feeds, 2));
    HOLDS(feeds[0].status == 77 && feeds[1].status == 77);
    WORKS(session, flint_rt_session_logits(session, &logits, &count));
    WORKS(restored, flint_rt_session_logits(restored, &logits, &count));
    feeds[1] = feeds[0];
    GIVES(FLINT_RT_ERR_ARGUMENT, NULL, flint_rt_step(feeds, 2));
    WORKS(NULL, flint_rt_session_free(clone));
    GIVES(FLINT_RT_ERR_HANDLE, NULL, flint_rt_step(feeds + 2, 1));
    /* One that is full does not keep the other from going on. */
    while (flint_rt_session_feed(restored, more, 2) == FLINT_RT_OK) {
    }
    uint32_t room = 9;
    WORKS(restored, flint_rt_session_room(restored, &room));
    HOLDS(room < 2);
    feeds[1] = (flint_rt_feed){restored, more, room + 1, 1, 0};
    WORKS(NULL, flint_rt_step(feeds, 2));
    HOLDS(feeds[0].status == FLINT_RT_OK && feeds[1].status == FLINT_RT_ERR_CONTEXT);
    WORKS(NULL, flint_rt_session_free(session));
    WORKS(NULL, flint_rt_session_free(restored));
    WORKS(NULL, flint_rt_sampler_free(greedy));
}

static void samplers(void) {
    flint_rt_sampler_options options;
    flint_rt_sampler *one, *two;
    flint_rt_logit_bias bias = {.token = 5, .bias = 1000};
    float logits[3] = {0};
    uint32_t token;
    Reply first = {0}, second = {0};
    WORKS(NULL, flint_rt_sampler_options_init(&options, sizeof options));
    HOLDS(options.top_p == 1 && options.temperature == 0 && options.penalty_last_n == 64);
    options.temperature = 1.5f;
    options.seed = 11;
    WORKS(model, flint_rt_sampler_create(model, &options, &one));
    WORKS(model, flint_rt_session_create(model, &first.session));
    second.session = first.session;
    generate(&first, one, 12);
    WORKS(one, flint_rt_sampler_reset(one));
    generate(&second, one, 12);
    HOLDS(memcmp(first.tokens, second.tokens, sizeof first.tokens) == 0);
    options.top_p = 2;
    GIVES(FLINT_RT_ERR_ARGUMENT, model, flint_rt_sampler_create(model, &options, &two));
    HOLDS(two == NULL);
    WORKS(NULL, flint_rt_sampler_options_init(&options, sizeof options));
    options.logit_bias = &bias;
    options.logit_bias_count = 1;
    WORKS(model, flint_rt_sampler_create(model, &options, &two));
    WORKS(first.session, flint_rt_session_set_prompt(first.session, prompt, prompt_count, NULL));
    WORKS(first.session, flint_rt_session_sample(first.session, two, &token));
    HOLDS(token == 5);
    GIVES(FLINT_RT_ERR_ARGUMENT, two, flint_rt_sampler_choose(two, logits, 3, &token));
    WORKS(NULL, flint_rt_sampler_free(one));
    WORKS(NULL, flint_rt_sampler_free(two));
    WORKS(NULL, flint_rt_session_free(first.session));
}

typedef struct {
    Reply reply;
    flint_rt_generate_result result;
    int is_begun;
} Long;

static int32_t on_long_token(void *user_data, uint32_t token, const char *text, size_t text_bytes) {
    (void)token, (void)text, (void)text_bytes;
    __atomic_add_fetch(&((Long *)user_data)->is_begun, 1, __ATOMIC_RELEASE);
    return 0;
}

static void *generate_long(void *given) {
    Long *it = given;
    flint_rt_generate_options options;
    it->result.struct_size = sizeof it->result;
    WORKS(NULL, flint_rt_generate_options_init(&options, sizeof options));
    options.ignore_stops = 1;
    options.token = on_long_token;
    options.user_data = it;
    WORKS(NULL, flint_rt_session_generate(it->reply.session, NULL, prompt, prompt_count, &options, &it->result));
    return NULL;
}

static void *join_begun(Long *it, pthread_t *thread) {
    HOLDS(pthread_create(thread, NULL, generate_long, it) == 0);
    while (__atomic_load_n(&it->is_begun, __ATOMIC_ACQUIRE) < 2) {
        sched_yield();
    }
    return NULL;
}

static void cancelling(void) {
    Long it = {0};
    pthread_t thread;
    WORKS(model, flint_rt_session_create(model, &it.reply.session));
    join_begun(&it, &thread);
    WORKS(NULL, flint_rt_session_cancel(it.reply.session));
    pthread_join(thread, NULL);
    HOLDS(it.result.finish == FLINT_RT_FINISH_ABORTED && it.result.token_count < 200);
    /* The session goes on, and a cancel that found nothing to cancel is over. */
    WORKS(NULL, flint_rt_session_cancel(it.reply.session));
    HOLDS(generate(&it.reply, NULL, 4).finish == FLINT_RT_FINISH_LENGTH);

    /* Freed within a call of another thread: gone at once, and the call ends well. */
    it.is_begun = 0;
    join_begun(&it, &thread);
    WORKS(NULL, flint_rt_session_cancel(it.reply.session));
    WORKS(NULL, flint_rt_session_free(it.reply.session));
    HOLDS(flint_rt_session_cancel(it.reply.session) == FLINT_RT_ERR_HANDLE);
    pthread_join(thread, NULL);
}

static void closing(void) {
    flint_rt_model_options options = model_options();
    flint_rt_model *short_lived;
    flint_rt_model_info info = {.struct_size = sizeof info};
    flint_rt_session *session;
    const float *logits;
    size_t count;
    WORKS(NULL, flint_rt_model_open(model_path, &options, &short_lived));
    WORKS(short_lived, flint_rt_session_create(short_lived, &session));
    WORKS(NULL, flint_rt_model_close(short_lived));
    HOLDS(flint_rt_model_info_get(short_lived, &info) == FLINT_RT_ERR_HANDLE);
    WORKS(session, flint_rt_session_feed(session, prompt, prompt_count));
    WORKS(session, flint_rt_session_logits(session, &logits, &count));
    WORKS(NULL, flint_rt_session_free(session));
}

/* ------------------------------------------------------------------------------------------------ experts alone --- */

static void pools(void) {
    flint_rt_store *store;
    flint_rt_pool *pool = NULL;
    flint_rt_store_info info = {.struct_size = sizeof info};
    flint_rt_pool_options options;
    flint_rt_pool_stats stats = {.struct_size = sizeof stats};
    flint_rt_expert experts[4];
    uint32_t ids[4] = {0, 1, 2, 3}, layers[64];
    int32_t states[4], ready = 0;
    uint64_t one, two;
    size_t count, bytes = 0;
    GIVES(FLINT_RT_ERR_MODEL, NULL, flint_rt_store_open("/nowhere/store", &store));
    HOLDS(store == NULL);
    WORKS(NULL, flint_rt_store_open(model_path, &store));
    WORKS(store, flint_rt_store_info_get(store, &info));
    HOLDS(info.record_bytes == info.gate_bytes + info.up_bytes + info.down_bytes);
    HOLDS(strcmp(info.block_format, "Q4_1") == 0);
    WORKS(store, flint_rt_store_layers(store, layers, 64, &count));
    HOLDS(count == info.layer_count && layers[0] == info.layer_first);

    WORKS(NULL, flint_rt_pool_options_init(&options, sizeof options));
    GIVES(FLINT_RT_ERR_ARGUMENT, store, flint_rt_pool_create(store, &options, &pool));
    options.slots = 4;
    WORKS(store, flint_rt_store_pool_bytes(store, 4, &bytes));
    options.memory = (void *)((uintptr_t)8);
    options.memory_bytes = bytes;
    GIVES(FLINT_RT_ERR_ARGUMENT, store, flint_rt_pool_create(store, &options, &pool));
    HOLDS(pool == NULL);
    options.memory = NULL;
    WORKS(store, flint_rt_pool_create(store, &options, &pool));
    /* The pool keeps what it needs of the store. */
    WORKS(NULL, flint_rt_store_close(store));

    WORKS(pool, flint_rt_pool_request(pool, info.layer_first, ids, 4, FLINT_RT_NEEDED, &one));
    GIVES(FLINT_RT_ERR_POOL_FULL, pool,
          flint_rt_pool_request(pool, info.layer_first + 1, ids, 1, FLINT_RT_NEEDED, &two));
    WORKS(pool, flint_rt_pool_wait(pool, one, 60000));
    WORKS(pool, flint_rt_pool_poll(pool, one, &ready));
    HOLDS(ready == 1);
    GIVES(FLINT_RT_ERR_BUFFER, pool, flint_rt_pool_experts(pool, one, experts, 3, &count));
    WORKS(pool, flint_rt_pool_experts(pool, one, experts, 4, &count));
    HOLDS(count == 4 && experts[0].gate && experts[3].down);
    /* Held by two: let go by one it stays. */
    WORKS(pool, flint_rt_pool_request(pool, info.layer_first, ids, 2, FLINT_RT_GUESS, &two));
    WORKS(pool, flint_rt_pool_release(pool, one));
    GIVES(FLINT_RT_ERR_ARGUMENT, pool, flint_rt_pool_release(pool, one));
    GIVES(FLINT_RT_ERR_ARGUMENT, pool, flint_rt_pool_wait(pool, one, 0));
    WORKS(pool, flint_rt_pool_request(pool, info.layer_first + 1, ids, 2, FLINT_RT_NEEDED, NULL));
    WORKS(pool, flint_rt_pool_residency(pool, info.layer_first, ids, 4, states, 4, &count));
    HOLDS(states[0] == FLINT_RT_RESIDENT && states[1] == FLINT_RT_RESIDENT && states[2] == FLINT_RT_ABSENT);
    for (ready = 0; !ready;) {
        WORKS(pool, flint_rt_pool_poll(pool, 0, &ready));
    }
    WORKS(pool, flint_rt_pool_residency(pool, info.layer_first + 1, ids, 4, states, 4, &count));
    HOLDS(states[0] == FLINT_RT_RESIDENT && states[2] == FLINT_RT_ABSENT);
    ids[0] = info.expert_count;
    GIVES(FLINT_RT_ERR_ARGUMENT, pool, flint_rt_pool_request(pool, info.layer_first, ids, 1, 0, &one));
    GIVES(FLINT_RT_ERR_ARGUMENT, pool, flint_rt_pool_request(pool, 0, ids + 1, 1, 0, &one));
    WORKS(pool, flint_rt_pool_stats_get(pool, &stats));
    HOLDS(stats.requests == 1 && stats.hits == 2 && stats.misses == 6 && stats.evictions == 2 && stats.resident == 4);
    WORKS(NULL, flint_rt_pool_free(pool));
}

int main(int argc, char **argv) {
    HOLDS(argc > 3);
    model_path = argv[1];
    device = argv[2];
    versions();
    pools();
    opening();
    devices();
    flint_rt_model_options options = model_options();
    WORKS(NULL, flint_rt_model_open(model_path, &options, &model));
    WORKS(model, flint_rt_model_tokenize(model, "def is_even(n):", 15, FLINT_RT_TOKENIZE_BEGIN, prompt, 32,
                                         &prompt_count));
    bad_handles();
    structs_of_other_versions();
    texts();
    replies();
    copies(argv[3]);
    samplers();
    cancelling();
    closing();
    WORKS(NULL, flint_rt_model_close(model));
    puts("holds");
    return 0;
}

/* What a step takes of the heap: allocations MODEL DEVICE
 *
 * malloc and its kin are counted by who calls them: the library, or what it stands on (the driver, the C library). Each way of making
 * tokens is gone twice, with the same tokens, so that the second time their experts are on the device; a line each time says what the
 * library took, after the first four tokens.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>

#include "check.h"

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static uintptr_t library_first, library_end;
static unsigned long ours, all;

static void count(const void *caller) {
    uintptr_t at = (uintptr_t)caller;
    __atomic_add_fetch(&all, 1, __ATOMIC_RELAXED);
    if (at >= library_first && at < library_end) {
        __atomic_add_fetch(&ours, 1, __ATOMIC_RELAXED);
    }
}

void *malloc(size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

void *calloc(size_t number, size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_calloc(number, bytes);
}

void *realloc(void *old, size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_realloc(old, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes) {
    count(__builtin_return_address(0));
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : 12;
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

static int find_library(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size, (void)data;
    if (strstr(info->dlpi_name, "libflint_rt")) {
        library_first = info->dlpi_addr;
        for (int at = 0; at < info->dlpi_phnum; at++) {
            uintptr_t end = info->dlpi_addr + info->dlpi_phdr[at].p_vaddr + info->dlpi_phdr[at].p_memsz;
            library_end = info->dlpi_phdr[at].p_type == PT_LOAD && end > library_end ? end : library_end;
        }
    }
    return 0;
}

static int32_t on_token(void *user_data, uint32_t token, const char *text, size_t text_bytes) {
    (void)token, (void)text, (void)text_bytes;
    unsigned long *marks = user_data;
    /* The first four tokens may take what later ones use again. */
    if (++marks[0] == 4) {
        marks[1] = ours;
        marks[2] = all;
    }
    return 0;
}

int main(int argc, char **argv) {
    enum { TOKENS = 36, COUNTED = TOKENS - 4 };
    HOLDS(argc > 2);
    dl_iterate_phdr(find_library, NULL);
    HOLDS(library_first < library_end);
    flint_rt_model_options options;
    flint_rt_model *model;
    flint_rt_session *session;
    flint_rt_sampler *sampler;
    flint_rt_sampler_options sampling;
    uint32_t prompt[32], token;
    size_t prompt_count;
    WORKS(NULL, flint_rt_model_options_init(&options, sizeof options));
    options.device = argv[2];
    options.context_len = 256;
    WORKS(NULL, flint_rt_model_open(argv[1], &options, &model));
    HOLDS(ours > 0);
    WORKS(model, flint_rt_session_create(model, &session));
    WORKS(NULL, flint_rt_sampler_options_init(&sampling, sizeof sampling));
    sampling.temperature = 1;
    sampling.top_k = 20;
    WORKS(model, flint_rt_sampler_create(model, &sampling, &sampler));
    WORKS(model, flint_rt_model_tokenize(model, "def is_even(n):", 15, FLINT_RT_TOKENIZE_BEGIN, prompt, 32,
                                         &prompt_count));
    for (int round = 0; round < 4; round++) {
        int has_sampler = round / 2;
        WORKS(sampler, flint_rt_sampler_reset(sampler));
        unsigned long marks[3] = {0};
        flint_rt_generate_options how;
        WORKS(NULL, flint_rt_generate_options_init(&how, sizeof how));
        how.tokens_max = TOKENS;
        how.ignore_stops = 1;
        how.token = on_token;
        how.user_data = marks;
        WORKS(session, flint_rt_session_generate(session, has_sampler ? sampler : NULL, prompt, prompt_count, &how, NULL));
        printf("generate, %s: %lu in %d tokens, %lu with the driver's\n", has_sampler ? "sampled" : "greedy",
               ours - marks[1], COUNTED, all - marks[2]);
    }
    for (int round = 0; round < 2; round++) {
        unsigned long before = 0, before_all = 0;
        WORKS(sampler, flint_rt_sampler_reset(sampler));
        WORKS(session, flint_rt_session_set_prompt(session, prompt, prompt_count, NULL));
        for (int at = 0; at < TOKENS; at++) {
            if (at == 4) {
                before = ours;
                before_all = all;
            }
            WORKS(session, flint_rt_session_sample(session, sampler, &token));
            WORKS(session, flint_rt_session_feed(session, &token, 1));
        }
        printf("sample and feed: %lu in %d tokens, %lu with the driver's\n", ours - before, COUNTED, all - before_all);
    }
    WORKS(NULL, flint_rt_sampler_free(sampler));
    WORKS(NULL, flint_rt_session_free(session));
    WORKS(NULL, flint_rt_model_close(model));
    return 0;
}

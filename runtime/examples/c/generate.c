/* Continues a text, and writes it as it comes: generate MODEL PROMPT [TOKENS [DEVICE]]
 *
 * cc generate.c $(pkg-config --cflags --libs flint_rt) -o generate
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <flint_rt.h>

static void check(flint_rt_status status, const void *handle, const char *what) {
    char text[512];
    if (status == FLINT_RT_OK) {
        return;
    }
    flint_rt_last_error(handle, text, sizeof text, NULL);
    fprintf(stderr, "%s: %s: %s\n", what, flint_rt_status_string(status), text);
    exit(1);
}

static int32_t on_progress(void *user_data, int32_t phase, uint64_t done, uint64_t total) {
    (void)user_data;
    if (phase == FLINT_RT_PHASE_WEIGHTS && done == total) {
        fprintf(stderr, "%.1f MB of weights\n", (double)total / 1e6);
    }
    return 0;
}

static void on_log(void *user_data, int32_t level, const char *text, size_t text_bytes) {
    (void)user_data;
    fprintf(stderr, "%s%.*s\n", level == FLINT_RT_LOG_WARNING ? "warning: " : "", (int)text_bytes, text);
}

static int32_t on_token(void *user_data, uint32_t token, const char *text, size_t text_bytes) {
    (void)token;
    fwrite(text, 1, text_bytes, (FILE *)user_data);
    return fflush((FILE *)user_data) != 0; /* Nobody reads any more: end the reply. */
}

int main(int argc, char **argv) {
    flint_rt_model_options options;
    flint_rt_generate_options how;
    flint_rt_generate_result result = {0};
    flint_rt_model *model = NULL;
    flint_rt_session *session = NULL;
    uint32_t *prompt;
    size_t count = 0;

    if (argc < 3) {
        fprintf(stderr, "usage: generate MODEL PROMPT [TOKENS [DEVICE]]\n");
        return 2;
    }
    check(flint_rt_check_abi(FLINT_RT_ABI_VERSION), NULL, "libflint_rt");

    flint_rt_model_options_init(&options, sizeof options);
    options.device = argc > 4 ? argv[4] : NULL;
    options.progress = on_progress;
    options.log = on_log;
    check(flint_rt_model_open(argv[1], &options, &model), NULL, argv[1]);
    check(flint_rt_session_create(model, &session), model, "session");

    /* The count first, then the tokens. */
    flint_rt_model_tokenize(model, argv[2], strlen(argv[2]), FLINT_RT_TOKENIZE_BEGIN, NULL, 0, &count);
    prompt = malloc(count * sizeof *prompt);
    check(flint_rt_model_tokenize(model, argv[2], strlen(argv[2]), FLINT_RT_TOKENIZE_BEGIN, prompt, count, &count),
          model, "prompt");

    flint_rt_generate_options_init(&how, sizeof how);
    how.tokens_max = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
    how.token = on_token;
    how.user_data = stdout;
    result.struct_size = sizeof result;
    check(flint_rt_session_generate(session, NULL, prompt, count, &how, &result), session, "generate");
    printf("\n");
    if (result.token_count > 1) {
        fprintf(stderr, "%u tokens, %.2f tok/s\n", result.token_count,
                (result.token_count - 1) / ((double)result.reply_ns / 1e9));
    }

    free(prompt);
    flint_rt_session_free(session);
    flint_rt_model_close(model);
    return 0;
}

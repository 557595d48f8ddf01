/* flint_rt.h - run the Flint mixture-of-experts model, or only stream its experts, from C.
 *
 * Version 0.1.0, ABI 0. Linux, 64 bits. C99 and C++.
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * ERRORS
 *   Every call that can fail returns a flint_rt_status: FLINT_RT_OK, or one of FLINT_RT_ERR_*. flint_rt_last_error() gives
 *   the text, which names the thing, what was wanted and what was found. The text belongs to the handle that was
 *   given first; where there is none yet (open, create) or it is not good, to the calling thread.
 *   Where a call fails, what its pointers point at is unchanged, unless the function says otherwise; a handle that was to be
 *   made is NULL.
 *   A fault of the library itself is FLINT_RT_ERR_PANIC: what was being used is then closed for further calls and can only be
 *   freed. No call ends the process, but for memory that the system refuses in small pieces, as malloc's callers know it.
 *
 * HANDLES
 *   A handle is a number in a pointer's clothes: never follow it. NULL, freed, made-up and foreign handles, and those of
 *   another kind, are FLINT_RT_ERR_HANDLE. Freeing NULL is FLINT_RT_OK and does nothing. A handle that is freed while
 *   another thread is in a call on it is gone at once; the object ends with that call. Sessions keep their model's memory,
 *   and pools their store's files, after the model or store was closed.
 *
 * STRUCTS
 *   Options: call the _init function, then set what you want; pass the address, or NULL for the defaults. Answers: set
 *   struct_size to sizeof, the rest is filled in. Structs grow only at their end, within one ABI; what a library does not know
 *   is FLINT_RT_ERR_ABI if it is set.
 *
 * TEXT
 *   UTF-8. `const char *` with a count of bytes beside it needs no NUL; without one it ends in NUL. Buffers that are filled are
 *   yours: with one that is too small the call returns FLINT_RT_ERR_BUFFER, writes nothing but the count that is needed,
 *   and can be made again. Counts are written in any case where the call succeeds; a capacity of 0 asks for the count alone.
 *
 * THREADS
 *   Any function may be called from any thread. Calls on one handle from several threads wait for one another; so do calls
 *   that compute (feed, generate, truncate, create a session) on sessions of one model, as there is one device. Never waiting
 *   are: flint_rt_session_cancel, flint_rt_last_error, tokenize, detokenize, chat_prompt, _info_get and _plan_get of a model,
 *   everything of a store. flint_rt_pool_wait lets other threads use the pool while it waits. Do not use the library in a child
 *   of fork. dlclose takes the library out of memory when the threads that called it have ended; before, it may stay.
 *
 * MEMORY
 *   Nothing has to be freed but handles. A token that is fed or generated takes nothing of the heap where its experts are on the
 *   device; where some must be read, a few short lists. Requests to a pool take two each.
 *
 * CALLBACKS
 *   They run in the thread of the call that they belong to. Those of generate may call what never waits, and what is of samplers,
 *   stores and pools, but for the sampler that is in use; a sampler that a call of another thread is using then is
 *   FLINT_RT_ERR_REENTRANT instead of waited for, as that call's callback may want this one's. What needs a session or what a
 *   model computes with is FLINT_RT_ERR_REENTRANT, whichever session or model it is. They must not throw, longjmp or end the thread.
 */
#ifndef FLINT_RT_H
#define FLINT_RT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FLINT_RT_API __attribute__((visibility("default")))
#else
#define FLINT_RT_API
#endif

/* ------------------------------------------------------------------------------------------------ versions, errors --- */

#define FLINT_RT_VERSION_MAJOR 0
#define FLINT_RT_VERSION_MINOR 1
#define FLINT_RT_VERSION_PATCH 0
/* Raised when programs must be built anew; also the number of the shared library, libflint_rt.so.0. */
#define FLINT_RT_ABI_VERSION 0

typedef int32_t flint_rt_status;

#define FLINT_RT_OK 0
#define FLINT_RT_ERR_ARGUMENT (-1)   /* an argument makes no sense */
#define FLINT_RT_ERR_HANDLE (-2)     /* no such handle */
#define FLINT_RT_ERR_ABI (-3)        /* library and caller are of different versions */
#define FLINT_RT_ERR_REENTRANT (-4)  /* called from a callback that must not call it; see CALLBACKS */
#define FLINT_RT_ERR_BUFFER (-5)     /* the buffer is too small; the count that is needed was written */
#define FLINT_RT_ERR_CANCELLED (-6)  /* stopped by a callback or by flint_rt_session_cancel */
#define FLINT_RT_ERR_STATE (-7)      /* not possible now, for example: logits before anything was fed */
#define FLINT_RT_ERR_MODEL (-8)      /* the model is missing, unfinished, or not one that runs here */
#define FLINT_RT_ERR_DAMAGED (-9)    /* bytes are not what they should be: run `flint-rt verify` */
#define FLINT_RT_ERR_DEVICE (-10)    /* no suitable device, or it failed */
#define FLINT_RT_ERR_MEMORY (-11)    /* not enough memory on host or device */
#define FLINT_RT_ERR_IO (-12)        /* a read failed */
#define FLINT_RT_ERR_CONTEXT (-13)   /* the session has no room for these tokens */
#define FLINT_RT_ERR_POOL_FULL (-14) /* every slot is held */
#define FLINT_RT_ERR_TIMEOUT (-15)   /* the time is over, the thing is not done */
#define FLINT_RT_ERR_PANIC (-16)     /* a fault of the library; see ERRORS */
#define FLINT_RT_ERR_OTHER (-17)

/* No token has this number. */
#define FLINT_RT_NO_TOKEN UINT32_MAX

typedef struct flint_rt_model flint_rt_model;
typedef struct flint_rt_session flint_rt_session;
typedef struct flint_rt_sampler flint_rt_sampler;
typedef struct flint_rt_store flint_rt_store;
typedef struct flint_rt_pool flint_rt_pool;

/* The library's version, "0.1.0". Static. Since 0.1. */
FLINT_RT_API const char *flint_rt_version(void);

/* The library's ABI. Since 0.1. */
FLINT_RT_API uint32_t flint_rt_abi_version(void);

/* Call flint_rt_check_abi(FLINT_RT_ABI_VERSION) first: FLINT_RT_ERR_ABI if the library that was loaded is not one for this
 * header. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_check_abi(uint32_t abi_version);

/* A status in a few words. Static, never NULL. Since 0.1. */
FLINT_RT_API const char *flint_rt_status_string(flint_rt_status status);

/* The text of the last call that failed on `handle`, a handle of any kind; NULL: of this thread's last call that failed with no
 * good handle. Writes as much as `capacity` bytes hold, NUL included, and to `needed`, unless NULL, the bytes that all of it
 * takes with its NUL. An empty text if none has failed.
 * Errors: FLINT_RT_ERR_BUFFER (what fits was written), FLINT_RT_ERR_HANDLE. Changes no text. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_last_error(const void *handle, char *text, size_t capacity, size_t *needed);

/* --------------------------------------------------------------------------------------------------------- devices --- */

#define FLINT_RT_DEVICE_OTHER 0
#define FLINT_RT_DEVICE_DISCRETE 1
#define FLINT_RT_DEVICE_INTEGRATED 2
#define FLINT_RT_DEVICE_VIRTUAL 3
#define FLINT_RT_DEVICE_SOFTWARE 4

typedef struct flint_rt_device_info {
    size_t struct_size;
    uint32_t index;            /* as flint_rt_model_options.device takes it, in decimal */
    int32_t kind;              /* FLINT_RT_DEVICE_* */
    int32_t is_usable;         /* 0: lacks something that the kernels need */
    uint32_t subgroup_size;    /* lanes */
    uint64_t own_memory_bytes; /* in all, not what is free */
    char name[256];
    char driver[256];
} flint_rt_device_info;

/* How many Vulkan devices there are. Errors: FLINT_RT_ERR_DEVICE where there is no Vulkan loader. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_device_count(size_t *count);

/* Device `index`, counted from 0, the best first. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_device_info_get(size_t index, flint_rt_device_info *info);

/* ---------------------------------------------------------------------------------------------------------- models --- */

#define FLINT_RT_PHASE_KERNELS 1 /* done and total are 0 */
#define FLINT_RT_PHASE_WEIGHTS 2 /* done and total are bytes */

/* How far opening is. Return 0 to go on, anything else to cancel. */
typedef int32_t (*flint_rt_progress_fn)(void *user_data, int32_t phase, uint64_t done, uint64_t total);

#define FLINT_RT_LOG_INFO 1
#define FLINT_RT_LOG_WARNING 2

/* A line of what the library chose, and what it lost. `text` has `text_bytes` bytes, no NUL, and ends with the callback. */
typedef void (*flint_rt_log_fn)(void *user_data, int32_t level, const char *text, size_t text_bytes);

#define FLINT_RT_CHOOSE 0
#define FLINT_RT_ON 1
#define FLINT_RT_OFF 2

#define FLINT_RT_READ_RING 1       /* io_uring with registered buffers */
#define FLINT_RT_READ_RING_PLAIN 2 /* io_uring */
#define FLINT_RT_READ_THREADS 3    /* pread threads */

/* For flint_rt_model_options.host_memory_bytes. */
#define FLINT_RT_NO_HOST_MEMORY UINT64_MAX

/* 0 and NULL choose. */
typedef struct flint_rt_model_options {
    size_t struct_size;
    const char *device;         /* a device's number, or part of its name */
    const char *cache_dir;      /* where compiled kernels are kept between runs; NULL: nowhere */
    uint32_t context_len;       /* tokens of a session */
    uint32_t sessions;          /* that are to be open at a time; the plan sets memory aside for them */
    uint32_t pool_slots;        /* experts in device memory */
    uint32_t prefill_chunk;     /* tokens of a prompt that are computed together */
    uint64_t gpu_memory_bytes;  /* device memory in all */
    uint64_t host_memory_bytes; /* for experts beside the device's; FLINT_RT_NO_HOST_MEMORY */
    uint64_t memory_bytes;      /* both together, at most */
    int32_t prefetch;           /* FLINT_RT_CHOOSE, _ON, _OFF: reads ahead of need */
    int32_t read_path;          /* FLINT_RT_READ_*, or 0 */
    int32_t skip_checks;        /* not 0: what is read is not compared with a store's checksums */
    int32_t validation;         /* not 0: with Vulkan's validation layers */
    flint_rt_progress_fn progress; /* only during the call that opens; NULL for none */
    flint_rt_log_fn log;           /* only during the call that opens; NULL for none */
    void *user_data;               /* for both */
} flint_rt_model_options;

typedef struct flint_rt_model_info {
    size_t struct_size;
    uint32_t vocabulary;          /* tokens are 0 to vocabulary - 1; logits are as many */
    uint32_t context_len;         /* tokens of a session */
    uint32_t context_len_trained; /* the most that the model was trained for */
    uint32_t layer_count;
    uint32_t expert_layer_count;
    uint32_t expert_count; /* of a layer */
    uint32_t experts_used; /* by a token in a layer */
    uint32_t embed_dim;
    uint32_t bos_token;    /* or FLINT_RT_NO_TOKEN */
    uint32_t eos_token;    /* or FLINT_RT_NO_TOKEN */
    int32_t is_store;      /* 1: a store; 0: a GGUF in place */
    int32_t is_checked;    /* 1: what is read is compared with checksums */
    char device[256];      /* name and driver */
} flint_rt_model_info;

/* What goes where in memory. Bytes of the device but for the last three. */
typedef struct flint_rt_memory_plan {
    size_t struct_size;
    uint64_t budget_bytes;   /* what may be used */
    uint64_t resident_bytes; /* weights that stay */
    uint64_t kv_bytes;       /* caches of all sessions */
    uint64_t scratch_bytes;
    uint64_t pool_bytes;     /* slots of experts */
    uint64_t staging_bytes;  /* host: what reads pass through */
    uint64_t host_bytes;     /* host: experts that are kept there */
    uint64_t experts_bytes;  /* drive: all experts */
    uint32_t pool_slots;
    uint32_t host_slots;
    uint32_t expert_total;
    uint32_t experts_a_token; /* over all layers */
    uint32_t context_len;
    uint32_t prefill_chunk;
} flint_rt_memory_plan;

/* Counted since the model was opened. Times in nanoseconds. */
typedef struct flint_rt_model_stats {
    size_t struct_size;
    uint64_t expert_hits;      /* uses that found their expert on the device */
    uint64_t expert_misses;    /* uses that did not */
    uint64_t expert_evictions; /* experts that left the device for another */
    uint64_t read_bytes;       /* of experts, from the drive */
    uint64_t load_ns;          /* spent reading and submitting copies */
    uint64_t demand_reads;     /* experts read because a step waited */
    uint64_t guesses_issued;   /* experts read ahead of need */
    uint64_t guesses_used;     /* of them, those that lay there when they were wanted */
    uint64_t guesses_used_late;/* those that were still being read */
    uint64_t guesses_wasted;   /* those that nobody wanted */
    uint64_t host_hits;        /* uses that found their expert in host memory */
    uint64_t host_kept;        /* experts copied there from the device */
    uint64_t drive_reads;
    uint64_t drive_failed;
    uint64_t drive_retries;
    uint64_t drive_read_bytes; /* rounding included */
    uint64_t drive_busy_ns;    /* at least one read under way */
    uint64_t checked_bytes;    /* compared with checksums */
    uint64_t second_reads;     /* experts whose bytes were wrong once */
} flint_rt_model_stats;

/* Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_model_options_init(flint_rt_model_options *options, size_t struct_size);

/* What opening would take, without loading: FLINT_RT_ERR_MEMORY if it does not fit, with the sum as the text. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_plan_memory(const char *path, const flint_rt_model_options *options,
                                                  flint_rt_memory_plan *plan);

/* Opens a GGUF file or the folder of a store. Takes seconds; `progress` can cancel it: FLINT_RT_ERR_CANCELLED.
 * Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_model_open(const char *path, const flint_rt_model_options *options,
                                                 flint_rt_model **model);

/* Its memory is given back when its last session is freed. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_model_close(flint_rt_model *model);

/* Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_model_info_get(const flint_rt_model *model, flint_rt_model_info *info);

/* Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_model_plan_get(const flint_rt_model *model, flint_rt_memory_plan *plan);

/* Waits for a call that computes. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_model_stats_get(const flint_rt_model *model, flint_rt_model_stats *stats);

/* Gives host memory back that others need more. Every step does; call it about once a second while none are made. Waits for a
 * call that computes. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_model_look_after_memory(flint_rt_model *model);

/* ------------------------------------------------------------------------------------------------------------ text --- */

#define FLINT_RT_TOKENIZE_SPECIAL 1u /* the spelling of a special token means the token; not for text of others */
#define FLINT_RT_TOKENIZE_BEGIN 2u   /* with the token that begins a text in front */

/* Text to tokens. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_model_tokenize(const flint_rt_model *model, const char *text, size_t text_bytes,
                                                     uint32_t flags, uint32_t *tokens, size_t capacity, size_t *count);

/* Tokens to text; bytes that are no UTF-8 become U+FFFD. `text_bytes` gets the bytes without a NUL; with room for one more, a NUL
 * follows. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_model_detokenize(const flint_rt_model *model, const uint32_t *tokens,
                                                       size_t token_count, char *text, size_t capacity,
                                                       size_t *text_bytes);

/* The bytes that one token stands for, which may be part of a character. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_model_token_bytes(const flint_rt_model *model, uint32_t token, uint8_t *bytes,
                                                        size_t capacity, size_t *count);

/* Whether a token ends a reply: `is_stop` gets 0 or 1. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_model_is_stop(const flint_rt_model *model, uint32_t token, int32_t *is_stop);

/* Never grows. */
typedef struct flint_rt_message {
    const char *role; /* "system", "developer", "user", "assistant" or "tool", with a NUL */
    const char *content;
    size_t content_bytes;
    const char *reasoning; /* the thought before an assistant's content, or NULL */
    size_t reasoning_bytes;
} flint_rt_message;

#define FLINT_RT_THINK_AUTO 0 /* the model decides */
#define FLINT_RT_THINK_ON 1
#define FLINT_RT_THINK_OFF 2

/* The tokens of a conversation in the model's chat form, ready for the reply; where the last message is the assistant's, it is
 * continued. Nothing in a message becomes a special token. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_model_chat_prompt(const flint_rt_model *model, const flint_rt_message *messages,
                                                        size_t message_count, int32_t thinking, uint32_t *tokens,
                                                        size_t capacity, size_t *count);

/* -------------------------------------------------------------------------------------------------------- sessions --- */

/* An empty conversation, with device memory for context_len tokens. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_session_create(flint_rt_model *model, flint_rt_session **session);

/* Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_session_free(flint_rt_session *session);

/* Adds tokens, and computes the logits behind the last. When it fails, the session holds the tokens of the chunks that were
 * finished, and has no logits. Errors: FLINT_RT_ERR_CONTEXT, FLINT_RT_ERR_CANCELLED. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_session_feed(flint_rt_session *session, const uint32_t *tokens,
                                                   size_t token_count);

/* Makes the session hold exactly these tokens, and computes the logits behind the last: keeps what it holds of their beginning,
 * forgets the rest. `reused`, unless NULL, gets how many were kept. Fails as flint_rt_session_feed does. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_session_set_prompt(flint_rt_session *session, const uint32_t *tokens,
                                                         size_t token_count, uint32_t *reused);

/* The logits behind the last token that was fed: `count` floats that are the library's, to be read until feed, set_prompt,
 * flint_rt_step, truncate, restore or generate is called with this session, whether that works or not, or it is freed.
 * Errors: FLINT_RT_ERR_STATE when there are none: nothing was fed, or since then generate was called, tokens were forgotten
 * by truncate, restore was not refused, or feed, set_prompt or flint_rt_step did not work; a step that failed by an
 * argument changed nothing. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_session_logits(flint_rt_session *session, const float **logits, size_t *count);

/* Chooses a token by the logits, which stay as they are, and counts it among the sampler's recent tokens. The token is not
 * fed. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_session_sample(flint_rt_session *session, flint_rt_sampler *sampler,
                                                     uint32_t *token);

/* What the session holds. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_session_tokens(flint_rt_session *session, uint32_t *tokens, size_t capacity,
                                                     size_t *count);

/* How many more tokens it can hold. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_session_room(flint_rt_session *session, uint32_t *room);

/* Keeps the first `token_count` tokens and forgets the rest; where the cache cannot go back so far, forgets everything. `kept`,
 * unless NULL, gets how many are left. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_session_truncate(flint_rt_session *session, size_t token_count, size_t *kept);

/* Ends the call that is computing on this session now, before its next token or the next layer of its prompt; without one,
 * nothing. For any thread, any callback; not for a signal handler. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_session_cancel(flint_rt_session *session);

/* A session that holds the same tokens and logits, by a copy of its cache. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_session_clone(flint_rt_session *session, flint_rt_session **clone);

/* Writes what the session holds to a file, for flint_rt_session_restore of this model, in whatever context fits it. What was at
 * `path` is replaced, and stays where writing fails. Errors: FLINT_RT_ERR_STATE for an empty session, FLINT_RT_ERR_CANCELLED.
 * Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_session_save(flint_rt_session *session, const char *path);

/* Makes the session hold what was saved; it then has no logits: feed the next token. A file that cannot be used leaves the session
 * its tokens and logits; a device that fails leaves it empty. Errors: FLINT_RT_ERR_ARGUMENT for a file of another model,
 * FLINT_RT_ERR_DAMAGED, FLINT_RT_ERR_CONTEXT when it does not fit. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_session_restore(flint_rt_session *session, const char *path);

/* Never grows. */
typedef struct flint_rt_feed {
    flint_rt_session *session;
    const uint32_t *tokens; /* what is added to it, at least one */
    size_t token_count;
    flint_rt_status status; /* written where the step is FLINT_RT_OK: how it went for this session */
    uint32_t reserved;
} flint_rt_feed;

/* Feeds several sessions of one model in one step, in which each expert is loaded once for all of them; each has its logits
 * afterwards. At most 32 sessions, and together as many tokens as a prefill chunk. Where the call is FLINT_RT_OK each
 * feed's status counts: a session that is full, for one, does not keep others from going on. Where it is not, no
 * session was fed. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_step(flint_rt_feed *feeds, size_t feed_count);

/* A token of the reply, and the text that it completes: whole characters, maybe none. Last, with FLINT_RT_NO_TOKEN, U+FFFD for a
 * character that the reply began and did not end. Return 0 to go on, anything else to end the reply: then it is not called
 * again. */
typedef int32_t (*flint_rt_token_fn)(void *user_data, uint32_t token, const char *text, size_t text_bytes);

/* Tokens of the prompt that are fed, of how many. Return 0 to go on, anything else to stop. */
typedef int32_t (*flint_rt_prompt_fn)(void *user_data, uint32_t done, uint32_t total);

typedef struct flint_rt_generate_options {
    size_t struct_size;
    uint32_t tokens_max;      /* of the reply; 0: as many as there is room for */
    int32_t ignore_stops;     /* not 0: tokens that end a reply are ordinary ones */
    flint_rt_token_fn token;  /* or NULL */
    flint_rt_prompt_fn prompt;/* or NULL */
    void *user_data;          /* for both */
} flint_rt_generate_options;

#define FLINT_RT_FINISH_STOP 1    /* the model ended it */
#define FLINT_RT_FINISH_LENGTH 2  /* tokens_max */
#define FLINT_RT_FINISH_CONTEXT 3 /* the session is full */
#define FLINT_RT_FINISH_ABORTED 4 /* a callback or flint_rt_session_cancel */

typedef struct flint_rt_generate_result {
    size_t struct_size;
    int32_t finish;         /* FLINT_RT_FINISH_* */
    uint32_t stop_token;    /* which is no part of the reply; or FLINT_RT_NO_TOKEN */
    uint32_t token_count;   /* of the reply */
    uint32_t prompt_fed;    /* tokens of the prompt that were computed */
    uint32_t prompt_reused; /* those that the session held */
    uint32_t reserved;
    uint64_t prompt_ns;     /* to the first token */
    uint64_t reply_ns;      /* from the first token to the end */
} flint_rt_generate_result;

/* Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_generate_options_init(flint_rt_generate_options *options, size_t struct_size);

/* Makes the session hold `prompt`, of which it may hold a beginning, and generates a reply, a callback a token. `sampler` may be
 * NULL: always the best token. The reply's tokens stay in the session but for the last, which is not fed. An aborted reply is
 * FLINT_RT_OK; the session can be used further. `result` may be NULL. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_session_generate(flint_rt_session *session, flint_rt_sampler *sampler,
                                                       const uint32_t *prompt, size_t prompt_count,
                                                       const flint_rt_generate_options *options,
                                                       flint_rt_generate_result *result);

/* -------------------------------------------------------------------------------------------------------- samplers --- */

/* Never grows. */
typedef struct flint_rt_logit_bias {
    uint32_t token;
    float bias; /* added to its logit; minus infinity forbids it */
} flint_rt_logit_bias;

/* _init gives the greedy sampler: temperature 0, all else off. Applied in this order: penalties, bias, top_k, temperature, top_p,
 * min_p, one draw. Equal logits, options, seed and history give equal tokens. */
typedef struct flint_rt_sampler_options {
    size_t struct_size;
    float temperature;        /* 0: greedy */
    uint32_t top_k;           /* 0: off */
    float top_p;              /* 1: off */
    float min_p;              /* 0: off */
    float repetition_penalty; /* 1: off */
    float presence_penalty;   /* -2 to 2; 0: off */
    float frequency_penalty;  /* -2 to 2; 0: off */
    uint32_t penalty_last_n;  /* tokens that count as recent */
    uint64_t seed;
    const flint_rt_logit_bias *logit_bias; /* copied */
    size_t logit_bias_count;
} flint_rt_sampler_options;

/* Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_sampler_options_init(flint_rt_sampler_options *options, size_t struct_size);

/* For logits of `model`, which it does not keep open. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_sampler_create(const flint_rt_model *model,
                                                     const flint_rt_sampler_options *options,
                                                     flint_rt_sampler **sampler);

/* Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_sampler_free(flint_rt_sampler *sampler);

/* Begins again: the seed's first draw, no recent tokens. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_sampler_reset(flint_rt_sampler *sampler);

/* These are the recent tokens now; draws go on. flint_rt_session_generate does this with the prompt. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_sampler_start(flint_rt_sampler *sampler, const uint32_t *tokens,
                                                    size_t token_count);

/* Chooses by a row of logits of the caller, which is changed, and counts the token among the recent ones. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_sampler_choose(flint_rt_sampler *sampler, float *logits, size_t count,
                                                     uint32_t *token);

/* ----------------------------------------------------------------------------------------- the streaming layer alone ---
 * For programs with kernels of their own: where experts lie, and a pool of host memory into which they are read. No device
 * is needed. Memory that a device reads (pinned, or of a unified device) can be given to the pool, so that what lands there
 * needs no further copy. */

typedef struct flint_rt_store_info {
    size_t struct_size;
    uint32_t layer_first;    /* the first layer with experts */
    uint32_t layer_count;    /* layers with experts */
    uint32_t expert_count;   /* of a layer */
    uint32_t experts_used;   /* by a token in a layer */
    uint32_t embed_dim;
    uint32_t expert_ffn_dim;
    int32_t is_store;        /* 1: a store, whose reads are checked; 0: a GGUF in place */
    uint32_t file_count;
    uint64_t record_bytes;   /* of an expert: the sum of the next three */
    uint64_t gate_bytes;     /* [expert_ffn_dim, embed_dim], row-major, in blocks of block_format */
    uint64_t up_bytes;       /* [expert_ffn_dim, embed_dim] */
    uint64_t down_bytes;     /* [embed_dim, expert_ffn_dim] */
    char block_format[64];   /* GGUF's name of it */
} flint_rt_store_info;

/* Opens a GGUF file or the folder of a store; reads headers only. While a store is open it cannot be changed. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_store_open(const char *path, flint_rt_store **store);

/* Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_store_close(flint_rt_store *store);

/* Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_store_info_get(const flint_rt_store *store, flint_rt_store_info *info);

/* The layers that have experts, ascending. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_store_layers(const flint_rt_store *store, uint32_t *layers, size_t capacity,
                                                   size_t *count);

/* Bytes that a pool of `slots` experts takes: for memory of one's own. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_store_pool_bytes(const flint_rt_store *store, uint32_t slots, size_t *bytes);

typedef struct flint_rt_pool_options {
    size_t struct_size;
    uint32_t slots;      /* experts that it holds; needed */
    uint32_t depth;      /* reads under way at most; 0 chooses */
    int32_t read_path;   /* FLINT_RT_READ_*, or 0 */
    int32_t skip_checks; /* not 0: nothing is compared with a store's checksums */
    void *memory;        /* yours, beginning at a page, readable and writable; NULL: the pool takes its own. It is the pool's
                            until flint_rt_pool_free was FLINT_RT_OK and no call on the pool is left: only what held requests
                            give may be read, nothing written */
    size_t memory_bytes; /* of it; at least what flint_rt_store_pool_bytes says */
} flint_rt_pool_options;

typedef struct flint_rt_pool_stats {
    size_t struct_size;
    uint64_t hits;      /* experts asked for that were there */
    uint64_t misses;    /* those that were not */
    uint64_t evictions; /* experts that left for another */
    uint64_t requests;  /* held now */
    uint64_t resident;  /* experts there now */
    uint64_t drive_reads;
    uint64_t drive_failed;
    uint64_t drive_retries;
    uint64_t drive_read_bytes; /* rounding included */
    uint64_t drive_busy_ns;    /* at least one read under way */
    uint64_t checked_bytes;    /* compared with checksums */
    uint64_t second_reads;     /* experts whose bytes were wrong once */
} flint_rt_pool_stats;

/* Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_pool_options_init(flint_rt_pool_options *options, size_t struct_size);

/* Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_pool_create(const flint_rt_store *store, const flint_rt_pool_options *options,
                                                  flint_rt_pool **pool);

/* Waits for reads under way. What its requests gave is no longer there, and the pool is gone in any case but of
 * FLINT_RT_ERR_HANDLE. Errors: FLINT_RT_ERR_TIMEOUT, from here or from the last call of another thread on this pool, when a drive
 * does not answer for a minute: a read may then still write into options.memory, which must stay mapped and must never be
 * used again, and the library must stay loaded. The same holds for FLINT_RT_ERR_PANIC. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_pool_free(flint_rt_pool *pool);

#define FLINT_RT_NEEDED 0 /* somebody waits for it: read first */
#define FLINT_RT_GUESS 1  /* read when nothing is needed */

/* Asks for experts of a layer. What is not there is read, begun by this call as far as the depth allows; the further reads are
 * begun by later calls on the pool, of any thread. `request` gets a number, never 0, that holds the experts until it is
 * released; NULL: nothing is held, they are only brought nearer.
 * Errors: FLINT_RT_ERR_POOL_FULL: nothing was held, reads that were begun go on. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_pool_request(flint_rt_pool *pool, uint32_t layer, const uint32_t *experts,
                                                   size_t expert_count, int32_t priority, uint64_t *request);

/* Takes in what was read and begins more; waits for nothing. `is_ready`, unless NULL, gets 1 when all experts of the request are
 * there, else 0; with `request` 0, when nothing is being read. Errors: what happened to an expert of the request, for
 * example FLINT_RT_ERR_IO, FLINT_RT_ERR_DAMAGED; it is still to be released. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_pool_poll(flint_rt_pool *pool, uint64_t request, int32_t *is_ready);

/* Waits until all experts of the request are there, at most `timeout_ms` milliseconds: FLINT_RT_ERR_TIMEOUT. Negative: without
 * end. Errors as of flint_rt_pool_poll. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_pool_wait(flint_rt_pool *pool, uint64_t request, int64_t timeout_ms);

/* Never grows. Where an expert's matrices lie; how long they are, flint_rt_store_info says. Aligned to 4 bytes. */
typedef struct flint_rt_expert {
    const void *gate;
    const void *up;
    const void *down;
} flint_rt_expert;

/* The experts of a request, in the order in which they were asked for; to be read until it is released.
 * Errors: FLINT_RT_ERR_STATE while some are being read. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_pool_experts(flint_rt_pool *pool, uint64_t request, flint_rt_expert *experts,
                                                   size_t capacity, size_t *count);

/* Lets go of a request, ready or not. Its experts stay until their slots are needed. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_pool_release(flint_rt_pool *pool, uint64_t request);

/* A descriptor for poll, select or epoll, that is readable when a read has ended: then call flint_rt_pool_poll. It is the pool's:
 * do not read, write or close it. For one thread: any call on the pool may make it unreadable, so with several wait with a
 * timeout or by flint_rt_pool_wait. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_pool_eventfd(flint_rt_pool *pool, int32_t *descriptor);

#define FLINT_RT_ABSENT 0
#define FLINT_RT_READING 1
#define FLINT_RT_RESIDENT 2

/* What the pool has of each of `experts`. Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_pool_residency(flint_rt_pool *pool, uint32_t layer, const uint32_t *experts,
                                                     size_t expert_count, int32_t *states, size_t capacity,
                                                     size_t *count);

/* Since 0.1. */
FLINT_RT_API flint_rt_status flint_rt_pool_stats_get(flint_rt_pool *pool, flint_rt_pool_stats *stats);

#ifdef __cplusplus
}
#endif

#endif

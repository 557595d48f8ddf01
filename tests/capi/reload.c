/* The library loaded and unloaded, over and over, with work in between: reload LIBRARY MODEL TIMES DEVICE ("-": none)
 *
 * Where the thread that called it has ended, it is really gone each time; where that thread goes on, it may stay. In both cases the
 * process does not grow. With a device the driver is part of what is loaded.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include "check.h"

static int is_mapped(void) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        found |= strstr(line, "libflint_rt") != NULL;
    }
    if (maps) {
        fclose(maps);
    }
    return found;
}

#define FUNCTION(name) __typeof__(&name) name##_ = (__typeof__(&name))dlsym(library, #name); HOLDS(name##_)
#define DOES(call) HOLDS((call) == FLINT_RT_OK)

typedef struct {
    const char *path, *model_path, *device;
    void *library;
} Load;

static void *use(void *given) {
    Load *it = given;
    const char *model_path = it->model_path, *device = it->device;
    void *library = it->library = dlopen(it->path, RTLD_NOW | RTLD_LOCAL);
    HOLDS(library || (fprintf(stderr, "%s\n", dlerror()), 0));
    FUNCTION(flint_rt_check_abi);
    FUNCTION(flint_rt_store_open);
    FUNCTION(flint_rt_store_close);
    FUNCTION(flint_rt_store_info_get);
    FUNCTION(flint_rt_pool_options_init);
    FUNCTION(flint_rt_pool_create);
    FUNCTION(flint_rt_pool_request);
    FUNCTION(flint_rt_pool_wait);
    FUNCTION(flint_rt_pool_free);
    FUNCTION(flint_rt_model_options_init);
    FUNCTION(flint_rt_model_open);
    FUNCTION(flint_rt_model_close);
    FUNCTION(flint_rt_session_create);
    FUNCTION(flint_rt_session_feed);
    FUNCTION(flint_rt_session_free);
    FUNCTION(flint_rt_last_error);
    DOES(flint_rt_check_abi_(FLINT_RT_ABI_VERSION));
    flint_rt_store *store;
    flint_rt_store_info info = {.struct_size = sizeof info};
    /* A fault, whose text the library keeps. */
    HOLDS(flint_rt_store_open_("/nowhere", &store) == FLINT_RT_ERR_MODEL);
    DOES(flint_rt_store_open_(model_path, &store));
    DOES(flint_rt_store_info_get_(store, &info));
    for (int path_number = 0; path_number <= FLINT_RT_READ_THREADS; path_number += FLINT_RT_READ_THREADS) {
        flint_rt_pool *pool;
        flint_rt_pool_options options;
        uint32_t ids[] = {0, 1, 2};
        uint64_t request;
        DOES(flint_rt_pool_options_init_(&options, sizeof options));
        options.slots = 4;
        options.read_path = path_number;
        DOES(flint_rt_pool_create_(store, &options, &pool));
        DOES(flint_rt_pool_request_(pool, info.layer_first, ids, 3, FLINT_RT_NEEDED, &request));
        DOES(flint_rt_pool_wait_(pool, request, -1));
        DOES(flint_rt_pool_free_(pool));
    }
    DOES(flint_rt_store_close_(store));
    if (strcmp(device, "-")) {
        flint_rt_model_options options;
        flint_rt_model *model;
        flint_rt_session *session;
        uint32_t token = 3;
        DOES(flint_rt_model_options_init_(&options, sizeof options));
        options.device = device;
        options.context_len = 64;
        DOES(flint_rt_model_open_(model_path, &options, &model));
        DOES(flint_rt_session_create_(model, &session));
        DOES(flint_rt_session_feed_(session, &token, 1));
        DOES(flint_rt_session_free_(session));
        DOES(flint_rt_model_close_(model));
    }
    return NULL;
}

static void once(Load *it, int in_a_thread) {
    if (in_a_thread) {
        pthread_t thread;
        HOLDS(pthread_create(&thread, NULL, use, it) == 0);
        pthread_join(thread, NULL);
    } else {
        use(it);
    }
    HOLDS(dlclose(it->library) == 0);
    HOLDS(!in_a_thread || !is_mapped());
}

static void all(Load *it, int times, int in_a_thread) {
    long begun_kib = 0, begun_heap = 0;
    for (int at = 0; at < times; at++) {
        once(it, in_a_thread);
        malloc_trim(0);
        if (at + 1 == (times + 4) / 5) {
            begun_kib = status_kib("VmRSS");
            begun_heap = (long)mallinfo2().uordblks;
        }
    }
    long grown_kib = status_kib("VmRSS") - begun_kib, grown = (long)mallinfo2().uordblks - begun_heap;
    printf("%s: grown by %ld KiB and %ld heap bytes from a fifth of %d times on\n",
           in_a_thread ? "in threads that end" : "in a thread that goes on", grown_kib, grown, times);
}

int main(int argc, char **argv) {
    HOLDS(argc > 4);
    Load it = {argv[1], argv[2], argv[4], NULL};
    all(&it, atoi(argv[3]), 1);
    all(&it, atoi(argv[3]), 0);
    return 0;
}

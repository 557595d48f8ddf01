// C++17: handles that free themselves, faults as exceptions, callbacks as lambdas: generate MODEL PROMPT [TOKENS [DEVICE]]
//
// c++ -std=c++17 generate.cpp $(pkg-config --cflags --libs flint_rt) -o generate
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <flint_rt.h>

namespace flint {

inline void check(flint_rt_status status, const void *handle = nullptr) {
    if (status == FLINT_RT_OK) return;
    char text[512];
    flint_rt_last_error(handle, text, sizeof text, nullptr);
    throw std::runtime_error(std::string(flint_rt_status_string(status)) + ": " + text);
}

template <auto Free> struct Freed {
    template <class T> void operator()(T *handle) const { Free(handle); }
};
using Model = std::unique_ptr<flint_rt_model, Freed<flint_rt_model_close>>;
using Session = std::unique_ptr<flint_rt_session, Freed<flint_rt_session_free>>;

inline Model open(const std::string &path, const char *device = nullptr) {
    flint_rt_model_options options;
    check(flint_rt_model_options_init(&options, sizeof options));
    options.device = device;
    flint_rt_model *model = nullptr;
    check(flint_rt_model_open(path.c_str(), &options, &model));
    return Model(model);
}

inline Session session(const Model &model) {
    flint_rt_session *session = nullptr;
    check(flint_rt_session_create(model.get(), &session), model.get());
    return Session(session);
}

inline std::vector<uint32_t> tokens(const Model &model, const std::string &text, uint32_t flags) {
    std::vector<uint32_t> tokens(text.size() + 1);  // A token has a byte at least.
    size_t count = 0;
    check(flint_rt_model_tokenize(model.get(), text.data(), text.size(), flags, tokens.data(), tokens.size(), &count),
          model.get());
    tokens.resize(count);
    return tokens;
}

using OnText = std::function<bool(const std::string &)>;  // false ends the reply

inline flint_rt_generate_result generate(const Session &session, const std::vector<uint32_t> &prompt,
                                         uint32_t tokens_max, OnText on_text) {
    flint_rt_generate_options options;
    check(flint_rt_generate_options_init(&options, sizeof options));
    options.tokens_max = tokens_max;
    options.user_data = &on_text;
    options.token = [](void *on_text, uint32_t, const char *text, size_t bytes) -> int32_t {
        return !(*static_cast<OnText *>(on_text))(std::string(text, bytes));
    };
    flint_rt_generate_result result{};
    result.struct_size = sizeof result;
    check(flint_rt_session_generate(session.get(), nullptr, prompt.data(), prompt.size(), &options, &result),
          session.get());
    return result;
}

}  // namespace flint

int main(int argc, char **argv) try {
    if (argc < 3) return std::fprintf(stderr, "usage: generate MODEL PROMPT [TOKENS [DEVICE]]\n"), 2;
    flint::check(flint_rt_check_abi(FLINT_RT_ABI_VERSION));
    auto model = flint::open(argv[1], argc > 4 ? argv[4] : nullptr);
    auto session = flint::session(model);
    auto prompt = flint::tokens(model, argv[2], FLINT_RT_TOKENIZE_BEGIN);
    uint32_t tokens_max = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 0;
    flint::generate(session, prompt, tokens_max, [](const std::string &text) {
        std::fputs(text.c_str(), stdout);
        return std::fflush(stdout) == 0;
    });
    std::puts("");
} catch (const std::exception &error) {
    return std::fprintf(stderr, "generate: %s\n", error.what()), 1;
}

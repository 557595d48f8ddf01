"""flint_rt by ctypes: nothing is compiled. A chat, or the best next tokens by the logits.

    python3 flint_rt.py chat MODEL [--device NAME] [--tokens N]      a line is a request
    python3 flint_rt.py next MODEL TEXT [--device NAME] [--top N]    logits, by numpy where there is one

The library is found where the dynamic linker looks, or where FLINT_RT_LIBRARY says.
"""

import argparse
import ctypes as c
import os
import sys

ABI = 0
TOKENIZE_BEGIN = 2
NO_TOKEN = 2**32 - 1

ProgressFn = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int32, c.c_uint64, c.c_uint64)
LogFn = c.CFUNCTYPE(None, c.c_void_p, c.c_int32, c.POINTER(c.c_char), c.c_size_t)
TokenFn = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_uint32, c.POINTER(c.c_char), c.c_size_t)
PromptFn = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_uint32, c.c_uint32)


class ModelOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("device", c.c_char_p), ("cache_dir", c.c_char_p), ("context_len", c.c_uint32),
        ("sessions", c.c_uint32), ("pool_slots", c.c_uint32), ("prefill_chunk", c.c_uint32),
        ("gpu_memory_bytes", c.c_uint64), ("host_memory_bytes", c.c_uint64), ("memory_bytes", c.c_uint64),
        ("prefetch", c.c_int32), ("read_path", c.c_int32), ("skip_checks", c.c_int32), ("validation", c.c_int32),
        ("progress", ProgressFn), ("log", LogFn), ("user_data", c.c_void_p),
    ]


class GenerateOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("tokens_max", c.c_uint32), ("ignore_stops", c.c_int32), ("token", TokenFn),
        ("prompt", PromptFn), ("user_data", c.c_void_p),
    ]


class Message(c.Structure):
    _fields_ = [
        ("role", c.c_char_p), ("content", c.c_char_p), ("content_bytes", c.c_size_t), ("reasoning", c.c_char_p),
        ("reasoning_bytes", c.c_size_t),
    ]


class FlintError(Exception):
    """A call that failed: the status in words, and the library's text."""


def load():
    library = c.CDLL(os.environ.get("FLINT_RT_LIBRARY", f"libflint_rt.so.{ABI}"))
    library.flint_rt_status_string.restype = c.c_char_p
    check(library, library.flint_rt_check_abi(ABI))
    return library


def check(library, status, handle=None):
    if status != 0:
        text = c.create_string_buffer(512)
        library.flint_rt_last_error(handle, text, c.c_size_t(len(text)), None)
        raise FlintError(f"{library.flint_rt_status_string(status).decode()}: {text.value.decode()}")


class Model:
    """An open model with one session."""

    def __init__(self, path, device=None):
        self.library = load()
        self.handle, self.session = c.c_void_p(), c.c_void_p()
        options = ModelOptions()
        self.library.flint_rt_model_options_init(c.byref(options), c.c_size_t(c.sizeof(options)))
        options.device = device.encode() if device else None
        self.call("model_open", os.fsencode(path), c.byref(options), c.byref(self.handle))
        self.call("session_create", self.handle, c.byref(self.session), on=self.handle)

    def call(self, name, *arguments, on=None):
        check(self.library, getattr(self.library, "flint_rt_" + name)(*arguments), on)

    def close(self):
        self.library.flint_rt_session_free(self.session)
        self.library.flint_rt_model_close(self.handle)

    def tokens(self, name, *arguments):
        """What `name` gives as tokens: the count first, then they."""
        count = c.c_size_t()
        function = getattr(self.library, "flint_rt_model_" + name)
        function(self.handle, *arguments, None, c.c_size_t(0), c.byref(count))
        tokens = (c.c_uint32 * count.value)()
        check(self.library, function(self.handle, *arguments, tokens, count, c.byref(count)), self.handle)
        return tokens

    def tokenize(self, text, flags=TOKENIZE_BEGIN):
        data = text.encode()
        return self.tokens("tokenize", data, c.c_size_t(len(data)), c.c_uint32(flags))

    def chat_prompt(self, messages):
        given = (Message * len(messages))()
        for place, (role, content) in zip(given, messages):
            data = content.encode()
            place.role, place.content, place.content_bytes = role.encode(), data, len(data)
        return self.tokens("chat_prompt", given, c.c_size_t(len(messages)), c.c_int32(0))

    def token_text(self, token):
        data, count = c.create_string_buffer(256), c.c_size_t()
        self.call("model_token_bytes", self.handle, c.c_uint32(token), data, c.c_size_t(256), c.byref(count),
                  on=self.handle)
        return data.raw[:count.value].decode(errors="replace")

    def generate(self, prompt, tokens_max, on_text):
        """Calls on_text with each piece; its true answer ends the reply. An exception in it comes out here."""
        failure = []

        def token(_user_data, _token, text, text_bytes):
            try:
                return 1 if on_text(c.string_at(text, text_bytes).decode()) else 0
            except BaseException as error:  # ctypes cannot carry it through the library
                failure.append(error)
                return 1

        options = GenerateOptions()
        self.library.flint_rt_generate_options_init(c.byref(options), c.c_size_t(c.sizeof(options)))
        options.tokens_max, options.token = tokens_max, TokenFn(token)
        self.call("session_generate", self.session, None, prompt, c.c_size_t(len(prompt)), c.byref(options), None,
                  on=self.session)
        if failure:
            raise failure[0]

    def logits(self, tokens):
        """The logits behind `tokens`, copied: a numpy array, or without numpy a list."""
        found, count = c.POINTER(c.c_float)(), c.c_size_t()
        self.call("session_set_prompt", self.session, tokens, c.c_size_t(len(tokens)), None, on=self.session)
        self.call("session_logits", self.session, c.byref(found), c.byref(count), on=self.session)
        try:
            import numpy
        except ImportError:
            return found[:count.value]
        return numpy.ctypeslib.as_array(found, (count.value,)).copy()


def chat(model, tokens_max):
    messages = []
    for line in sys.stdin:
        messages.append(("user", line.rstrip("\n")))
        reply = []

        def on_text(text):
            reply.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()

        model.generate(model.chat_prompt(messages), tokens_max, on_text)
        sys.stdout.write("\n")
        messages.append(("assistant", "".join(reply)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["chat", "next"])
    parser.add_argument("model")
    parser.add_argument("text", nargs="?", default="")
    parser.add_argument("--device")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--top", type=int, default=5)
    given = parser.parse_args()
    try:
        model = Model(given.model, given.device)
        if given.what == "chat":
            chat(model, given.tokens)
        else:
            logits = model.logits(model.tokenize(given.text))
            best = sorted(range(len(logits)), key=lambda token: -logits[token])[:given.top]
            for token in best:
                print(token, f"{float(logits[token]):.4f}", repr(model.token_text(token)))
        model.close()
    except FlintError as error:
        sys.exit(f"flint_rt.py: {error}")


if __name__ == "__main__":
    main()

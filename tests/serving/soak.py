#!/usr/bin/env python3
"""A server under mixed load for some minutes: nothing grows, nothing is left behind.

    tests/serving/soak.py [--binary target/release/flint-rt] [--device NAME] [--minutes 10] [--clients 6]

Clients ask for whole answers, streams, tools and schemas, send nonsense, go away at any point, close their sending side. Then the
server has to be idle; its memory and its descriptors are compared with those after a first half minute. Needs only Python's standard
library. Exits 1 if memory grew by more than a tenth and 16 MiB, if a descriptor is left, or if an answer was none that is due.
"""
import argparse
import json
import random
import socket
import sys
import threading
import time

from common import Server, add_flags

WARM_UP_S = 30


def chat(draw, **more):
    text = " ".join(draw.choice(["write", "a", "loop", "in", "Python", "that", "adds", "numbers"]) for _ in range(draw.randint(3, 60)))
    return {"messages": [{"role": "user", "content": text}], "max_tokens": draw.randint(1, 40), "seed": draw.randint(0, 1 << 30), **more}


def whole(server, draw):
    path = draw.choice(["/v1/chat/completions", "/v1/messages", "/v1/chat/completions"])
    return server.ask("POST", path, chat(draw))[0] in (200, 429)


def stream(server, draw):
    status, text = server.ask("POST", "/v1/chat/completions", chat(draw, stream=True))
    return status == 429 or (status == 200 and text.endswith("data: [DONE]\n\n"))


def tool(server, draw):
    function = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}
    body = chat(draw, tools=[{"type": "function", "function": function}], tool_choice="required", max_tokens=60)
    return server.ask("POST", "/v1/chat/completions", body)[0] in (200, 429)


def schema(server, draw):
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {f"k{draw.randint(0, 99)}": {"type": "boolean"}}}}}
    return server.ask("POST", "/v1/chat/completions", chat(draw, response_format=form, max_tokens=60))[0] in (200, 429)


def nonsense(server, draw):
    body = draw.choice([{"messages": 5}, {"messages": [{"role": "user", "content": "x " * 60000}]}, {"prompt": [1 << 40]}, {"tools": [None], "messages": []}])
    return 400 <= server.ask("POST", draw.choice(["/v1/chat/completions", "/v1/completions"]), body)[0] < 500


def vanish(server, draw):
    body = json.dumps(chat(draw, stream=draw.random() < 0.5, max_tokens=200)).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body))
        sock.sendall(body[: draw.choice([0, len(body) // 2, len(body)])])
        time.sleep(draw.random() * 0.3)
    return True


def half_close(server, draw):
    body = json.dumps(chat(draw)).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := sock.recv(65536):
            answer += chunk
    return b"chat.completion" in answer or b" 429 " in answer


WAYS = [whole, stream, tool, schema, nonsense, vanish, half_close]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=6)
    args = parser.parse_args()
    wrong, counts, lock = [], dict.fromkeys((way.__name__ for way in WAYS), 0), threading.Lock()
    # Conversations are kept on purpose: so few that there are no more after the first half minute.
    kept = ["--prompt-cache-memory", "16MiB"]
    with Server(args, ["--parallel", "3", "--queue", "4", "--log", "off", *kept]) as server:

        def client(seed, until):
            draw = random.Random(seed)
            while time.monotonic() < until:
                way = draw.choice(WAYS)
                try:
                    is_right = way(server, draw)
                except OSError as error:
                    is_right = False
                    way.__doc__ = str(error)
                with lock:
                    counts[way.__name__] += 1
                    if not is_right:
                        wrong.append(f"{way.__name__} {way.__doc__ or ''}")

        def load(seconds, seed):
            until = time.monotonic() + seconds
            threads = [threading.Thread(target=client, args=(seed + number, until)) for number in range(args.clients)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            # What was given up ends within a step; the system closes what was left open.
            limit = time.monotonic() + 10
            while any(slot["is_processing"] for slot in json.loads(server.ask("GET", "/slots")[1])):
                if time.monotonic() > limit:
                    raise SystemExit("a slot still works though nobody asks")
                time.sleep(0.1)
            time.sleep(4)
            return server.resident_kib(), server.descriptors()

        idle = server.descriptors()
        before = load(WARM_UP_S, 1000)
        after = load(args.minutes * 60, 2000)
    print(f"requests {counts}, wrong {len(wrong)} {wrong[:3]}")
    print(f"memory {before[0]} -> {after[0]} KiB, descriptors {idle} idle, {before[1]} -> {after[1]}")
    grew = after[0] - before[0] > before[0] // 10 + (16 << 10)
    sys.exit(1 if wrong or grew or after[1] > idle + 2 else 0)


if __name__ == "__main__":
    main()

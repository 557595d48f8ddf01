#!/usr/bin/env python3
"""Every way through the engine gives the same bits: all combinations of pool size, source, read path and host path.

    tests/matrix.py [--binary target/release/flint-rt] [--model tools/flint-nano-q4_1.gguf] [--device NAME] [--chunks 48,512]

Runs `flint-rt eval` once a combination and compares ids, greedy tokens, routes and every logit (as printed, which is exact
for f32) with the first. Needs only Python's standard library. Exits 1 if anything differs.
"""
import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time

TEXT = "def parse_duration(text):\n    total = 0.0\n    for part in text.split():\n        total +="


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/flint-rt")
    parser.add_argument("--model", default="tools/flint-nano-q4_1.gguf")
    parser.add_argument("--device")
    parser.add_argument("--slots", default="4,5,24,95,96", help="pool sizes, the smallest to all")
    parser.add_argument("--chunks", default="1,48", help="prefill chunks; bits are compared within one")
    parser.add_argument("--greedy", default="24")
    parser.add_argument("--top", default="3072", help="logits compared: the whole vocabulary of the bundled model")
    args = parser.parse_args()

    sources = ["store", "gguf"]
    reads = ["ring", "ring-plain", "pool"]
    hosts = ["import", "mapped", "copy"]
    slots = args.slots.split(",")
    chunks = args.chunks.split(",")
    passed = failed = 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, FLINT_RT_STORE_DIR=folder)
        for chunk in chunks:
            wanted = None
            for way in itertools.product(sources, slots, reads, hosts):
                source, count, read, host = way
                command = [args.binary, "eval", "--model", args.model, "--prompt", TEXT, "--json",
                           "--greedy", args.greedy, "--top", args.top, "--routes", "--prefill-chunk", chunk,
                           "--pool-slots", count, "--read-path", read, "--host-path", host, "--source", source]
                if args.device:
                    command += ["--device", args.device]
                run = subprocess.run(command, env=environment, capture_output=True, text=True)
                name = f"chunk {chunk} source {source} slots {count} read {read} host {host}"
                if run.returncode != 0:
                    print(f"FAILED {name}: {run.stderr.strip().splitlines()[-1:]}")
                    failed += 1
                    continue
                result = json.loads(run.stdout)
                got = {key: result[key] for key in ("ids", "top", "argmax", "routes", "greedy")}
                wanted = wanted or got
                if got == wanted:
                    passed += 1
                else:
                    failed += 1
                    print(f"FAILED {name}: {[key for key in got if got[key] != wanted[key]]} differ")
    print(f"{time.monotonic() - started:.0f} s")
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()

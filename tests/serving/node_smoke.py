#!/usr/bin/env python3
"""The libraries that people use in Node, against the real binary: OpenAI's, Anthropic's and the AI SDK.

    tests/serving/node_smoke.py [--binary target/release/flint-rt] [--device NAME] [--folder target/node-smoke]

Installs them into the folder where they are not there yet (some 40 MB, from the registry that npm is set up for) in versions that run on
Node 20, and runs node_smoke.mjs there. Exits 1 if a check fails.
"""
import argparse
import os
import shutil
import subprocess
import sys

from common import Server, add_flags

PACKAGES = ["openai@6", "@anthropic-ai/sdk@1", "ai@6", "@ai-sdk/openai-compatible@2"]
KEY = "smoke-key"
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "node_smoke.mjs")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    parser.add_argument("--folder", default="target/node-smoke")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    if not os.path.exists(os.path.join(args.folder, "node_modules", "openai")):
        subprocess.run(["npm", "install", "--prefix", args.folder, "--no-audit", "--no-fund", "--silent", *PACKAGES], check=True)
    # Node looks for packages beside the script.
    script = shutil.copy(SCRIPT, args.folder)
    with Server(args, ["--api-key", KEY]) as server:
        code = subprocess.run(["node", script, server.root, KEY]).returncode
    sys.exit(code)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""llama.cpp's own tests of its server, unmodified, against the real binary. Nothing of them is in this tree.

    tests/serving/peer_suite.py [--binary target/release/flint-rt] [--device NAME] [--folder target/peer-suite] [--all] [FILE ...]

Fetches the source package of llama-cpp-python, in which the tests are (77 MB, from the package index that pip is set up for), makes a
virtual environment for them, and has them start this file in place of llama-server: it maps the flags and becomes `flint-rt serve` with
the bundled model. What cannot pass is left out by `peer_suite_deselect.txt`, with a reason a line; --all runs that, too.
"""
import argparse
import glob
import os
import subprocess
import sys
import tarfile
import venv

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = "llama-cpp-python==0.3.36"
# Tokens that the bundled model was trained for.
CONTEXT_MAX = 4096
FILES = [
    "test_basic", "test_chat_completion", "test_compat_anthropic", "test_compat_oai_responses", "test_completion",
    "test_ignore_eos", "test_metrics", "test_security", "test_template", "test_tokenize", "test_tool_call",
]
# Flags of llama-server that are the same here, and those that have a value and no meaning here.
SAME = {"--host", "--port", "--temp", "--seed", "--alias", "--api-key", "--cors-origins", "--parallel"}
WITH_VALUE = {
    "--model", "--model-url", "--hf-repo", "--hf-file", "--model-draft", "--models-dir", "--models-max", "--models-preset",
    "--batch-size", "--ubatch-size", "--threads", "--n-gpu-layers", "--pooling", "--tags", "-ctk", "-ctv", "-fa",
    "--slot-save-path", "--grp-attn-n", "--grp-attn-w", "--lora", "--spec-type", "--spec-draft-n-max",
    "--spec-draft-n-min", "--spec-synth-len", "--spec-synth-rates", "--chat-template", "--media-path", "--sleep-idle-seconds",
    "--cache-ram", "--log-file",
}


def become_server(flags):
    """Maps llama-server's flags, and becomes the server."""
    # By its file, so that there is a path to tell.
    model = os.path.join(HERE, "..", "..", "tools", "flint-nano-q4_1.gguf")
    command = [os.environ["PEER_BINARY"], "serve", "--ping", "30", "--model", model]
    values, flags = {}, iter(flags)
    for flag in flags:
        if flag in SAME:
            command += [flag, next(flags)]
            values[flag] = command[-1]
        elif flag in ("--ctx-size", "--n-predict", "--chat-template-file", "--reasoning-format", "--reasoning"):
            values[flag] = next(flags)
        elif flag in WITH_VALUE:
            next(flags)
    # There it is of all slots together; the bundled model has no longer one.
    if "--ctx-size" in values:
        tokens = int(values["--ctx-size"]) // int(values.get("--parallel", "2"))
        command += ["--ctx-size", str(min(tokens, CONTEXT_MAX))]
    if int(values.get("--n-predict", "-1")) > 0:
        command += ["--predict", values["--n-predict"]]
    if "--chat-template-file" in values:
        command += ["--chat-template", values["--chat-template-file"]]
    if values.get("--reasoning-format") == "none":
        command += ["--reasoning", "inline"]
    # The model of its tests does not think unless it is told to.
    command += ["--think", "on" if values.get("--reasoning") == "on" else "off"]
    # It reflects every origin unless it is told otherwise; its tests look for that.
    if "--cors-origins" not in values:
        command += ["--cors-origins", "*"]
    os.execv(command[0], command)


def fetched(folder):
    """The folder of the tests, and the Python that runs them."""
    python = os.path.join(folder, "venv", "bin", "python")
    pattern = os.path.join(folder, "llama_cpp_python-*", "vendor", "llama.cpp", "tools", "server", "tests")
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(python):
        venv.create(os.path.join(folder, "venv"), with_pip=True)
    if not glob.glob(pattern):
        pip = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", PACKAGE]
        subprocess.run([*pip, "--dest", folder], check=True)
        with tarfile.open(glob.glob(os.path.join(folder, "llama_cpp_python-*.tar.gz"))[0]) as archive:
            wanted = ("vendor/llama.cpp/tools/server/tests/", "vendor/llama.cpp/models/templates/")
            members = [member for member in archive if any(part in member.name for part in wanted)]
            archive.extractall(folder, members, filter="data")
    tests = glob.glob(pattern)[0]
    if subprocess.run([python, "-c", "import pytest, pytest_timeout"], stderr=subprocess.DEVNULL).returncode:
        requirements = os.path.join(tests, "requirements.txt")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", requirements, "pytest-timeout"], check=True)
    return tests, os.path.abspath(python)


def deselected():
    with open(os.path.join(HERE, "peer_suite_deselect.txt")) as lines:
        names = (line.split("  #")[0].strip() for line in lines)
        return [name for name in names if name and not name.startswith("#")]


def main():
    if "PEER_BINARY" in os.environ:
        become_server(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/flint-rt")
    parser.add_argument("--device")
    parser.add_argument("--folder", default="target/peer-suite")
    parser.add_argument("--all", action="store_true", help="also what cannot pass")
    parser.add_argument("files", nargs="*", default=FILES)
    args = parser.parse_args()
    tests, python = fetched(args.folder)
    environment = dict(os.environ, PEER_BINARY=os.path.abspath(args.binary), LLAMA_SERVER_BIN_PATH=os.path.abspath(__file__))
    if args.device:
        environment["FLINT_RT_DEVICE"] = args.device
    # The presets fetch a model each; the server here has its own.
    command = [python, "-m", "pytest", "-q", "--timeout=120", "-p", "no:cacheprovider", "-m", "not slow"]
    command += [f"unit/{name}.py" for name in args.files]
    command += [] if args.all else [f"--deselect={name}" for name in deselected()]
    sys.exit(subprocess.run(command, cwd=tests, env=environment).returncode)


if __name__ == "__main__":
    main()

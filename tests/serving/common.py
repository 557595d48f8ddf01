"""What the scripts here share: a server of the real binary, and plain requests to it. Python's standard library alone."""
import http.client
import json
import os
import signal
import subprocess
import tempfile
import threading


def add_flags(parser):
    parser.add_argument("--binary", default="target/release/flint-rt")
    parser.add_argument("--model", help="the bundled model when left out")
    parser.add_argument("--device", help="Vulkan device, as flint-rt takes it")


class Server:
    """`flint-rt serve` on a free port, until the end of the `with`."""

    def __init__(self, args, flags=()):
        self.command = [args.binary, "serve", "--port", "0", *flags]
        self.command += ["--model", args.model] if args.model else []
        self.command += ["--device", args.device] if args.device else []

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        environment = dict(os.environ, XDG_DATA_HOME=self.folder.name)
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, env=environment)
        self.said = []
        for line in self.process.stderr:
            self.said.append(line)
            if "listening on http://" in line:
                self.port = int(line.rsplit(":", 1)[1])
            if line.startswith("flint-rt: ready"):
                threading.Thread(target=self._drain, daemon=True).start()
                return self
        raise SystemExit("the server ended: " + "".join(self.said))

    def _drain(self):
        for line in self.process.stderr:
            self.said.append(line)
            del self.said[:-50]

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise SystemExit("the server did not end within 30 s of SIGTERM")
        if code != 0:
            raise SystemExit(f"the server ended with {code}: " + "".join(self.said[-5:]))
        self.folder.cleanup()

    @property
    def root(self):
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method, path, body=None, timeout=300):
        """Status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def resident_kib(self):
        with open(f"/proc/{self.process.pid}/status") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

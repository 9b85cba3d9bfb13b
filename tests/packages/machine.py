"""A broker and its clients inside another root directory, with a network of their own."""

import signal
import subprocess
import threading

from broker import PATIENCE_SECS


class Machine:
    """Runs `quelea serve` as installed, on its own ports: no other process sees this network."""

    def __init__(self, root, user, *arguments, environment=None):
        self.root = root
        self.user = user
        self.log = []
        self._ready = threading.Event()
        self._reloaded = threading.Event()
        variables = [f"{name}={value}" for name, value in (environment or {}).items()]
        command = ["/usr/bin/quelea", "serve", "--log-format=json", *arguments]
        self.process = subprocess.Popen(
            [
                "unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh",
                "env", "-i", *variables, "/usr/sbin/chroot", f"--userspec={user}", str(root), *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(PATIENCE_SECS) and self.process.poll() is None, self.text()

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)
            if '"ready"' in line:
                self._ready.set()
            if "reloaded" in line:
                self._reloaded.set()
        self._ready.set()

    def text(self):
        return "".join(self.log)

    def client(self, *arguments):
        """Runs `quelea ARGUMENTS` in the network of the broker; what it prints."""
        done = self.attempt(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr + self.text()
        return done.stdout

    def attempt(self, command, *arguments):
        # A root directory without /etc/hosts cannot resolve `localhost`.
        host = ["-h", "127.0.0.1"] if command in ("pub", "sub") else []
        return subprocess.run(
            [
                "nsenter", f"--net=/proc/{self.process.pid}/ns/net", "/usr/sbin/chroot",
                f"--userspec={self.user}", str(self.root), "/usr/bin/quelea", command, *host,
                *arguments,
            ],
            capture_output=True, text=True, timeout=PATIENCE_SECS, check=False,
        )

    def reload(self):
        """SIGHUP; returns when the broker has reloaded its files."""
        self._reloaded.clear()
        self.process.send_signal(signal.SIGHUP)
        assert self._reloaded.wait(PATIENCE_SECS), self.text()

    def stop(self):
        """The exit code after SIGTERM."""
        self.process.terminate()
        code = self.process.wait(PATIENCE_SECS)
        self._reader.join(PATIENCE_SECS)
        return code

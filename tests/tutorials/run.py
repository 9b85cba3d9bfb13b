#!/usr/bin/env python3
"""Runs the commands of the tutorials as a reader would, and compares what they print.

`tests/tutorials/run.py` runs all pages of docs/tutorials and the marked blocks of README.md,
`tests/tutorials/run.py PAGE...` only these. The last line is `tutorials: N passed, N failed`. Each page runs in an empty directory, in
namespaces of its own: the ports that the page names are free, and nothing outlives it.

A page has these blocks:

- `sh`: a script. It must end without an error.
- `console`: lines that begin with `$ ` are commands, the lines below are what the command prints.
  `...` in a line stands for any text, a line `...` for any lines.

A comment ahead of a block changes that:

- `<!-- terminal NAME -->`: the block belongs to another terminal. Its last command keeps running;
  the lines below it must come, and others may come between them.
- `<!-- output NAME -->`: a block of what the command that runs in this terminal prints next.
- `<!-- stop NAME -->`: the reader presses Ctrl-C there. It needs no block.
- `<!-- wait SECS -->`: the commands of the block are repeated for so long, until their output fits.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/tutorials"
QUELEA = Path(os.environ.get("QUELEA_BIN", ROOT / "target/debug/quelea"))
NATS = Path(os.environ.get("QUELEA_NATS_SERVER", ROOT / "target/nats/nats-server"))

COMMAND_SECS = 120
PATIENCE_SECS = 30
INSIDE = "QUELEA_TUTORIAL_INSIDE"
NAMESPACES = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


class Wrong(Exception):
    """The page and the programs disagree."""


@dataclass
class Step:
    """What a page asks for: `kind` is sh, console, output or stop."""

    kind: str
    line: int
    text: str = ""
    terminal: str | None = None
    wait_secs: float = 0
    indent: str = ""


MARK = re.compile(r"<!-- (terminal|output|stop|wait) (\S+) -->$")
RUN_KINDS = ("sh", "console")


def steps(text):
    """The steps of a page. A comment applies to the block that follows."""
    found, marks, block = [], {}, None
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if block is not None:
            if stripped == "```":
                close(found, block, marks)
                marks, block = {}, None
            else:
                block.text += line.removeprefix(block.indent) + "\n"
        elif stripped.startswith("```"):
            indent = line[: len(line) - len(line.lstrip())]
            block = Step(stripped[3:], number, indent=indent)
        elif mark := MARK.match(stripped):
            if mark[1] == "stop":
                found.append(Step("stop", number, terminal=mark[2]))
            else:
                marks[mark[1]] = mark[2]
        elif stripped.startswith("<!--"):
            raise Wrong(f"line {number}: unknown comment: {stripped}")
    if marks:
        raise Wrong(f"comment without a block at the end: {marks}")
    return found


def close(found, block, marks):
    if "output" in marks:
        block.kind, block.terminal = "output", marks["output"]
    elif block.kind not in RUN_KINDS:
        if marks:
            raise Wrong(f"line {block.line}: a comment ahead of a block that is not run: {marks}")
        return
    else:
        block.terminal = marks.get("terminal")
    block.wait_secs = float(marks.get("wait", 0))
    found.append(block)


def commands(step):
    """The commands of a block, each with the lines that it prints. None: any."""
    if step.kind == "sh":
        return [(step.text, None)]
    found = []
    for line in step.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.startswith("> ") and found and not found[-1][1]:
            found[-1] = (found[-1][0] + "\n" + line[2:], [])
        elif found:
            found[-1][1].append(line)
        else:
            raise Wrong(f"line {step.line}: output ahead of the first command")
    return found


def pattern(line):
    return ".*".join(re.escape(part) for part in line.rstrip().split("..."))


def is_printed(expected, printed):
    """Is it exactly what a command printed?"""
    parts = ["(?:[^\n]*\n)*" if line.strip() == "..." else pattern(line) + "[ ]*\n"
             for line in expected]
    text = "".join(line.rstrip() + "\n" for line in printed)
    return re.fullmatch("".join(parts), text) is not None


class Terminal:
    """A shell, and what its commands print."""

    def __init__(self, directory, environment):
        self.shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], cwd=directory, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True, bufsize=1,
            # Ignored if this was started in the background of a shell.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.lines, self.read, self.changed = [], 0, threading.Condition()
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self):
        for line in self.shell.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.lines.append(None)
            self.changed.notify_all()

    def begin(self, command):
        self.shell.stdin.write(f"{{ {command}\n}} </dev/null\n")
        self.shell.stdin.flush()

    def run(self, command):
        """What it prints, and its exit code."""
        self.begin(command)
        self.shell.stdin.write('printf "\\n<end %s>\\n" $?\n')
        self.shell.stdin.flush()
        end = self.await_line(r"<end \d+>", COMMAND_SECS, command)
        printed = self.lines[self.read : end]
        code = int(self.lines[end][5:-1])
        self.read = end + 1
        # The line break of the mark.
        if printed and printed[-1] == "":
            printed.pop()
        return printed, code

    def await_line(self, wanted, secs, what):
        """The number of the next line that fits."""
        deadline, at = time.monotonic() + secs, self.read
        with self.changed:
            while True:
                while at < len(self.lines) and self.lines[at] is not None:
                    if re.fullmatch(wanted, self.lines[at].rstrip()):
                        return at
                    at += 1
                left = deadline - time.monotonic()
                if left <= 0 or at < len(self.lines):
                    shown = "\n".join(map(str, self.lines[self.read :]))
                    raise Wrong(f"{what}\n  did not print: {wanted}\n  but:\n{shown}")
                self.changed.wait(left)

    def expect(self, lines, what):
        for line in lines:
            if line.strip() != "...":
                self.read = self.await_line(pattern(line), PATIENCE_SECS, what) + 1

    def stop(self):
        """Ctrl-C, which ends the command and then the shell."""
        self.shell.stdin.close()
        os.killpg(self.shell.pid, signal.SIGINT)
        try:
            self.shell.wait(PATIENCE_SECS)
        except subprocess.TimeoutExpired:
            os.killpg(self.shell.pid, signal.SIGKILL)
            raise Wrong("it did not end after Ctrl-C") from None


class Reader:
    """Who follows a page."""

    def __init__(self, directory):
        self.directory = directory
        path = [str(QUELEA.parent), str(NATS.parent), os.environ["PATH"], "/usr/sbin"]
        self.environment = {"HOME": str(directory), "PATH": ":".join(path), "LANG": "C.UTF-8",
                            "FLOCK_BIN": str(QUELEA.with_name("flock"))}
        self.terminals = {}

    def terminal(self, name):
        if name not in self.terminals:
            self.terminals[name] = Terminal(self.directory, self.environment)
        return self.terminals[name]

    def take(self, step):
        if step.kind == "stop":
            self.terminals.pop(step.terminal).stop()
        elif step.kind == "output":
            if step.terminal not in self.terminals:
                raise Wrong(f"no command runs in the terminal {step.terminal}")
            what = f"terminal {step.terminal}"
            self.terminals[step.terminal].expect(step.text.splitlines(), what)
        elif step.terminal is None:
            for command, expected in commands(step):
                self.run(command, expected, step.wait_secs)
        else:
            *first, (last, expected) = commands(step)
            terminal = self.terminal(step.terminal)
            for command, printed in first:
                self.run(command, printed, 0, terminal)
            terminal.begin(last)
            terminal.expect(expected or [], last)

    def run(self, command, expected, wait_secs, terminal=None):
        deadline = time.monotonic() + wait_secs
        while True:
            printed, code = (terminal or self.terminal("main")).run(command)
            fits = is_printed(expected, printed) if expected is not None else code == 0
            if fits:
                return
            if time.monotonic() >= deadline:
                wanted = "exit code 0" if expected is None else "\n".join(expected)
                shown = "\n".join(printed)
                raise Wrong(f"{command}\n  expected:\n{wanted}\n  printed (exit {code}):\n{shown}")
            time.sleep(0.5)


def follow(page):
    """Takes all steps of a page; returns what is wrong, or None."""
    directory = Path(tempfile.mkdtemp(prefix="quelea-tutorial-"))
    reader = Reader(directory)
    step = None
    # Where README builds them.
    (directory / "target").mkdir()
    (directory / "target/quick").symlink_to(QUELEA.parent.resolve())
    try:
        for step in steps(page.read_text()):
            reader.take(step)
        if step is None:
            return "no commands"
    except Wrong as wrong:
        logs = "".join(f"\n--- terminal {name}:\n" + "\n".join(map(str, terminal.lines[-40:]))
                       for name, terminal in reader.terminals.items())
        return f"line {step.line if step else '?'}: {wrong}{logs}"
    finally:
        for terminal in reader.terminals.values():
            os.killpg(terminal.shell.pid, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
    return None


def inside(page):
    """In the namespaces: the loopback interface is down at first."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True,
                   env={"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"})
    fault = follow(page)
    if fault:
        print(f"{page.name}: {fault}", flush=True)
    return 1 if fault else 0


def namespaces():
    """The command that makes them, or None: this machine does not let us."""
    for command in (NAMESPACES, [*NAMESPACES, "--user", "--map-root-user"]):
        if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    return None


def main():
    chosen = [Path(argument) for argument in sys.argv[1:]]
    if os.environ.get(INSIDE):
        return inside(chosen[0])
    pages = chosen or [ROOT / "README.md", *sorted(PAGES.glob("*.md"))]
    prefix = namespaces()
    if prefix is None:
        print("tutorials: not run: this machine allows no namespaces (unshare --net --pid)")
        return 0
    passed = failed = 0
    for page in pages:
        if page.name == "cluster.md" and not NATS.exists():
            print("tutorials: cluster: not run: no nats-server (tests/nats)")
            continue
        started = time.monotonic()
        command = [*prefix, sys.executable, __file__, page.resolve()]
        code = subprocess.run(command, env={**os.environ, INSIDE: "1"}).returncode
        took = time.monotonic() - started
        print(f"tutorials: {page.stem}: {'FAILED' if code else 'passed'}, {took:.0f} s", flush=True)
        passed, failed = (passed, failed + 1) if code else (passed + 1, failed)
    print(f"tutorials: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

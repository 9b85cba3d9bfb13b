"""The runner of the tutorials: what it reads in a page, and that it finds what does not fit."""

import importlib.util
import shutil
import socket
import subprocess
import sys

import pytest
from conftest import ROOT

# tests/run.py has the same name.
_spec = importlib.util.spec_from_file_location("tutorials", ROOT / "tests/tutorials/run.py")
tutorials = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tutorials)

PAGE = """
Text.

```sh
x=1
```

```toml
not = "run"
```

<!-- terminal b -->
```console
$ true
$ printf 'ready\\nlater\\n'; sleep 1000
ready
```
   <!-- output b -->
   ```text
   lat...
   ```
<!-- stop b -->
```console
$ echo $x; echo two words
1
two ...
```
"""


def follow(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    return tutorials.follow(page)


def test_a_page_has_steps_in_its_order():
    found = tutorials.steps(PAGE)
    assert [(step.kind, step.terminal) for step in found] == [
        ("sh", None), ("console", "b"), ("output", "b"), ("stop", "b"), ("console", None)
    ]
    assert found[2].text == "lat...\n"
    assert tutorials.commands(found[4]) == [("echo $x; echo two words", ["1", "two ..."])]


def test_a_page_that_is_right_passes(tmp_path):
    assert follow(tmp_path, PAGE) is None


@pytest.mark.parametrize("text, fault", [
    ("```sh\nfalse\n```\n", "line 1: false"),
    ("```console\n$ echo one\ntwo\n```\n", "expected:\ntwo"),
    ("```console\n$ echo one; echo two\none\n```\n", "printed (exit 0):\none\ntwo"),
    ("```console\n$ true\none\n```\n", "expected:\none"),
    ("<!-- terminal a -->\n```console\n$ echo one; exit\ntwo\n```\n", "did not print: two"),
    ("<!-- output a -->\n```text\none\n```\n", "no command runs in the terminal a"),
    ("<!-- runs -->\n", "unknown comment"),
    ("<!-- terminal a -->\n```toml\n```\n", "a block that is not run"),
    ("no block", "no commands"),
])
def test_a_page_that_is_wrong_fails(tmp_path, text, fault):
    assert fault in follow(tmp_path, text)


def test_a_block_is_repeated_for_the_time_that_its_comment_says(tmp_path):
    text = "```sh\nn=0\n```\n<!-- wait 60 -->\n```console\n$ n=$((n + 1)); echo $n\n3\n```\n"
    assert follow(tmp_path, text) is None


def test_lines_stand_for_others():
    assert tutorials.is_printed(["a", "...", "z..."], ["a", "b", "c", "zebra"])
    assert tutorials.is_printed(["a", "...", "z"], ["a", "z"])
    assert not tutorials.is_printed(["a", "..."], ["b"])
    assert not tutorials.is_printed(["a.c"], ["abc"])


def test_each_page_runs_commands():
    pages = list(tutorials.PAGES.glob("*.md"))
    assert {page.stem for page in pages} >= {"home", "fleet", "cluster", "compare"}
    for page in pages:
        kinds = [step.kind for step in tutorials.steps(page.read_text())]
        assert len([kind for kind in kinds if kind in tutorials.RUN_KINDS]) >= 3, page


def test_a_page_runs_where_its_ports_are_free(tmp_path):
    prefix = tutorials.namespaces()
    if prefix is None:
        pytest.skip("this machine allows no namespaces")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        page = tmp_path / "page.md"
        listen = f"import socket; socket.create_server(('127.0.0.1', {port})); print('free')"
        page.write_text(f'```console\n$ {shutil.which("python3")} -c "{listen}"\nfree\n```\n')
        script = ROOT / "tests/tutorials/run.py"
        done = subprocess.run([sys.executable, script, page], capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed, 0 failed" in done.stdout, done.stdout

"""Libraries that are loaded before the C library, and stand between a broker and the system."""

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


@cache
def library(name):
    """Builds `name`.c, which lies beside this file; the path of the library."""
    directory = Path(tempfile.mkdtemp(prefix="quelea-preload-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    built = directory / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    command = ["cc", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-o", built, source, "-ldl"]
    subprocess.run(command, check=True)
    return str(built)

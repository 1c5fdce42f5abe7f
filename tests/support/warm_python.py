"""Interpreters that begin with numpy and torch imported, which is most of what a child takes."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path

# What is forked for a job has this as its main module, emptied, and ends as an interpreter does.
_SERVER = """
import gc, json, os, sys, warnings
import numpy, torch
gc.collect()
gc.freeze()  # a child need not look at what was imported, which would copy its pages
for _line in sys.stdin:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork() beside threads
        _child = os.fork()
    if _child == 0:
        break
    print(_child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(_child, 0)[1]), flush=True)
else:
    os._exit(0)
_job = json.loads(_line)
for _number, _name in enumerate((os.devnull, "stdout", "stderr")):
    _flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if _number else os.O_RDONLY
    os.dup2(os.open(os.path.join(_job["output"], _name), _flags), _number)
os.chdir(_job["folder"])
os.environ.clear()
os.environ.update(_job["environment"])
sys.argv = ["-c", *_job["arguments"]]
_code = compile(_job["code"], "<string>", "exec")
for _name in [name for name in globals() if name != "_code" and not name.startswith("__")]:
    globals().pop(_name)
exec(globals().pop("_code"))
"""


class WarmPython:
    """Runs code as `python -c` does, in a fork of a process that has imported numpy and torch.

    fastload has not been imported there, so that the child is as its users' are.
    """

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._server = subprocess.Popen([sys.executable, "-c", _SERVER], stdin=pipe, stdout=pipe)
        self._read = b""

    def run(
        self, code: str, *arguments: str, folder: Path, output: Path, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Runs it in a folder, and keeps what it says in another.

        Raises:
            subprocess.TimeoutExpired: it took longer than so many seconds, and was killed.
        """
        job = {"code": code, "arguments": arguments, "environment": dict(os.environ)}
        job |= {"folder": str(folder), "output": str(output)}
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(job).encode() + b"\n")
        self._server.stdin.flush()
        child = self._number(120)
        assert child is not None, "torch is not imported"
        status = self._number(timeout)
        if status is None:
            os.kill(child, signal.SIGKILL)
            self._number(60)
            raise subprocess.TimeoutExpired(code, timeout)
        said = [(output / name).read_text() for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess(code, status, *said)

    def close(self) -> None:
        """Ends it."""
        self._server.communicate()

    def _number(self, timeout: float) -> int | None:
        """The next one that the server tells, if it comes in time."""
        assert self._server.stdout is not None
        descriptor = self._server.stdout.fileno()
        with selectors.DefaultSelector() as ready:
            ready.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not ready.select(timeout):
                    return None
                found = os.read(descriptor, 4096)
                assert found, "the server has ended"
                self._read += found
        line, _, self._read = self._read.partition(b"\n")
        return int(line)

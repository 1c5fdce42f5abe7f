"""Files whose reads do not come back: Ctrl-C and the end of Python are not waited for long."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from paths import SUPPORT
from waiting import assert_takes_less

pytestmark = pytest.mark.slow

SHIM = SUPPORT / "stalling_pread.c"

# Prints how long the exception took after the signal.
SCRIPT = """
import io, os, sys, threading, time
import numpy as np
import fastload
from fastload import FastLoader

kind, workers, ending = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.makedirs("stalling", exist_ok=True)
options = {}
if kind == "numbers":
    np.save("stalling/a.npy", np.zeros((2000, 64), "f4"))
    data = fastload.open("stalling/a.npy")
elif kind == "ragged":
    fastload.pack([{"x": np.zeros(n % 5)} for n in range(2000)], "stalling/out", overwrite=True)
    data = fastload.open("stalling/out")
    options["transforms"] = {"x": fastload.AsList()}
else:
    from PIL import Image
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "png")
    fastload.pack([{"x": file.getvalue()}] * 2000, "stalling/out", overwrite=True)
    data = fastload.open("stalling/out")
    options["transforms"] = {"x": fastload.DecodeImage(size=(8, 8))}
loader = FastLoader(data, 4, num_workers=workers, io="pread", seed=0, **options)
assert loader.is_native

def interrupt():
    global sent
    time.sleep(0.2)
    sent = time.monotonic()
    os.kill(os.getpid(), 2)

try:
    for number, _batch in enumerate(loader):
        if number == 2:
            open("stall", "w").close()
            if ending == "break":
                sent = time.monotonic()
                break
            threading.Thread(target=interrupt, daemon=True).start()
    else:
        sys.exit("the epoch came to its end")
except KeyboardInterrupt:
    pass
del _batch
print(time.monotonic() - sent, time.monotonic(), flush=True)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that is loaded before libc."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("shim") / "stalling_pread.so"
    subprocess.run([compiler, "-shared", "-fPIC", SHIM, "-o", library, "-ldl"], check=True)
    return library


@pytest.mark.parametrize(
    ("kind", "workers", "ending"),
    [
        ("numbers", 0, "signal"),
        ("numbers", 2, "signal"),
        ("ragged", 2, "signal"),
        ("images", 0, "signal"),
        ("images", 2, "signal"),
        ("numbers", 2, "break"),
    ],
)
def test_ctrl_c_takes_effect_and_python_ends(
    kind: str, workers: int, ending: str, shim: Path, tmp_path: Path
) -> None:
    def attempt() -> float:
        """The larger share of a limit that was used: 1 s for the exception, 5 s for the exit."""
        (tmp_path / "stall").unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, kind, str(workers), ending],
            env={
                **os.environ,
                "LD_PRELOAD": str(shim),
                "FASTLOAD_TEST_STALL": str(tmp_path / "stall"),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        ended = time.monotonic()
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        interrupt_s, printed = map(float, done.stdout.split())
        return max(interrupt_s, (ended - printed) / 5)

    assert_takes_less(1.0, attempt, tries=3)

"""Makes pixels.ptx, the text of the kernels, which is committed: building needs no CUDA toolkit.

python csrc/device/make_ptx.py [--nvcc /usr/local/cuda/bin/nvcc]
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CSRC = Path(__file__).parents[1]
SOURCES = ("batch/pixel_body.h", "device/pixel_kernel.h", "device/pixels.cu", "device/make_ptx.py")
PTX = CSRC / "device/pixels.ptx"
# No contraction to fma (see pixel_body.h); sm_75 is the oldest GPU that nvcc 13 knows.
FLAGS = ("-ptx", "-std=c++17", "-arch=compute_75", "-fmad=false", f"-I{CSRC}")
# What the text says of itself instead. It uses nothing that came later, and drivers refuse what
# says that it is younger than they are: this is what those of CUDA 10.0 take, for every GPU that
# torch 2.4 knows.
VERSION, TARGET = "6.3", "sm_50"


def digest() -> str:
    """The SHA-256 of all that the text is made of."""
    sums = hashlib.sha256()
    for name in SOURCES:
        sums.update((CSRC / name).read_bytes())
    return sums.hexdigest()


def release(nvcc: str) -> str:
    """The version of a compiler, as "13.0.88"."""
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bV([\d.]+)", said)
    if found is None:
        raise RuntimeError(f"{nvcc} does not say its version: {said}")
    return found[1]


def make(nvcc: str) -> str:
    """The text, as that compiler makes it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "pixels.ptx"
        subprocess.run([nvcc, *FLAGS, str(CSRC / "device/pixels.cu"), "-o", str(out)], check=True)
        made = out.read_text()
    lines = [line.rstrip() for line in made.splitlines()]
    lines = [line for line in lines if line and not line.lstrip().startswith("//")]
    text = "\n".join(lines) + "\n"
    text = re.sub(r"^\.version .*$", f".version {VERSION}", text, flags=re.MULTILINE)
    text = re.sub(r"^\.target .*$", f".target {TARGET}", text, flags=re.MULTILINE)
    return f"// Made by make_ptx.py and nvcc {release(nvcc)}.\n// Sources: {digest()}\n{text}"


def main() -> None:
    """Writes the text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", default=shutil.which("nvcc"), help="default: the one on PATH")
    nvcc = parser.parse_args().nvcc
    if nvcc is None:
        sys.exit("there is no nvcc on PATH: give one by --nvcc")
    PTX.write_text(make(nvcc))


if __name__ == "__main__":
    main()

"""Writes a folder of images as MDS; run with an interpreter that has `streaming`.

    python mds_side.py FOLDER TARGET

Prints a line when ready. Then it reads lines `ENCODING PROCESSES` from standard input, writes the
folder, and prints the seconds. Several processes write a part each, whose indices are merged.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import time

from PIL import Image
from streaming import MDSWriter
from streaming.base.util import merge_index

Job = tuple[str, str, list[tuple[str, int]]]


def main() -> None:
    folder, target = sys.argv[1:]
    classes = sorted(os.listdir(folder))
    images = [
        (os.path.join(folder, name, file), label)
        for label, name in enumerate(classes)
        for file in sorted(os.listdir(os.path.join(folder, name)))
    ]
    print("ready", flush=True)
    for line in sys.stdin:
        encoding, processes = line.split()
        start = time.perf_counter()
        convert(images, target, encoding, int(processes))
        sync(target)
        print(time.perf_counter() - start, flush=True)
        shutil.rmtree(target)


def convert(images: list[tuple[str, int]], target: str, encoding: str, processes: int) -> None:
    if processes == 1:
        write((target, encoding, images))
        return
    each = -(-len(images) // processes)
    jobs: list[Job] = [
        (os.path.join(target, str(n)), encoding, images[n * each : (n + 1) * each])
        for n in range(processes)
    ]
    with multiprocessing.Pool(processes) as pool:
        pool.map(write, jobs)
    merge_index(target, keep_local=True)


def write(job: Job) -> None:
    target, encoding, images = job
    with MDSWriter(out=target, columns={"image": encoding, "label": "int"}) as writer:
        for path, label in images:
            writer.write({"image": content(path, encoding), "label": label})


def content(path: str, encoding: str) -> object:
    """Returns an opened image, as in the ImageNet converter; MDS keeps the bytes of a JPEG."""
    if encoding == "jpeg":
        return Image.open(path)
    with open(path, "rb") as file:
        return file.read()


def sync(target: str) -> None:
    """Waits until the files are on the disk, as `fastload.pack` does."""
    for folder, _, names in os.walk(target):
        for name in names:
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


if __name__ == "__main__":
    main()

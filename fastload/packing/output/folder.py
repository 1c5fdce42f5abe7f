"""The output folder: empty, an incomplete dataset, or a complete dataset, also after a crash."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import time
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from fastload.errors import refuse_pipe
from fastload.formats import is_packed
from fastload.formats.files import AnyPath, absolute
from fastload.formats.manifest import Manifest, shard_file
from fastload.formats.original_names import NAMES_FILE
from fastload.formats.packed import (
    MANIFEST,
    PLAN,
    WORK_FOLDER,
    incomplete,
    old_manifest,
    read_manifest,
)
from fastload.packing.output.differences import differences
from fastload.packing.output.files import TEMPORARY_PREFIX, new_file, sync_folder, write_all
from fastload.packing.output.journal import Journal, replay

SHARD_FILE = "shard-{:06d}.safetensors"

_JOURNAL = "journal.jsonl"
_REPLACEMENT = "new"
_OLD_MANIFEST = re.compile(r"fastload\.\d+\.json")
_LOCK_TIMEOUT_SECONDS = 2.0
_LOCKED = "another pack is writing to this folder"


class OutputFolder:
    """Output folder of one run, locked between `take` and `close`.

    From `start` to `commit`, the folder contains a plan and a journal of the run. In this time, a
    folder without a manifest is incomplete, and a folder with a manifest remains the old dataset.

    Args:
        path: Path of the folder; it need not exist.

    Attributes:
        path: Absolute path.
        lock: Descriptor that holds the lock; -1 if the folder is not locked.
        journal: Journal of the run, available after `start`.

    Example:
        >>> folder = OutputFolder("data/train")
        >>> folder.check_new(overwrite=False)  # raises if the folder may not be written
    """

    journal: Journal

    def __init__(self, path: AnyPath) -> None:
        self.path = absolute(path)
        self.lock = -1
        self._is_new = False
        self._stack = contextlib.ExitStack()

    # --- Checks -------------------------------------------------------------------------------

    def check_source(self, source: Any) -> None:
        """Raises ValueError if the folder lies inside the input folder."""
        if not isinstance(source, (str, bytes, os.PathLike)) or not os.path.exists(source):
            return
        source = absolute(source)
        real, above = os.path.realpath(self.path), os.path.realpath(source)
        if os.path.isdir(above) and os.path.commonpath([real, above]) == above:
            raise ValueError(f"{self.path}: the output lies inside the input {source}")

    def check_inputs(self, paths: Iterable[str]) -> None:
        """Raises ValueError if an input file lies in this folder, which is about to be replaced."""
        here = os.path.realpath(self.path)
        above: dict[str, str] = {}
        for path in paths:
            name = os.path.dirname(path)
            if name not in above:
                above[name] = os.path.realpath(name)
            if os.path.commonpath([here, above[name]]) == here:
                raise ValueError(
                    f"{path}: this input lies in the folder that would be replaced; write to "
                    "another folder"
                )

    def check_new(self, *, overwrite: bool, resume: bool = False) -> None:
        """Raises FileExistsError if no dataset may be written here; changes nothing.

        Args:
            overwrite: A dataset, complete or incomplete, may be replaced.
            resume: An incomplete dataset may be continued; the caller checks a complete one.
        """
        if not os.path.lexists(self.path):
            return
        if not os.path.isdir(self.path):
            raise FileExistsError(errno.EEXIST, "the output must be a folder", self.path)
        if not is_packed(self.path):
            with os.scandir(self.path) as entries:
                if next(entries, None) is not None:
                    what = "the folder is not empty and holds no packed dataset; choose another"
                    raise FileExistsError(errno.ENOTEMPTY, what, self.path)
        elif not overwrite and not resume:
            if self.has_manifest():
                what = "the folder holds a packed dataset; --overwrite (overwrite=True) replaces it"
            elif self.plan() is None:  # killed before it wrote its plan
                return
            elif self._is_locked():
                what = _LOCKED
            else:
                what = incomplete(self.path)
            raise FileExistsError(errno.EEXIST, what, self.path)

    def _is_locked(self) -> bool:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False

    def has_manifest(self) -> bool:
        """True if the folder holds a complete dataset."""
        return os.path.lexists(self._file(MANIFEST))

    def plan(self) -> dict[str, Any] | None:
        """Returns the plan of an interrupted run; None if there is none."""
        return _plan(self.path)

    def shard(self, file_name: str, number: int) -> str:
        """Returns the path of a shard."""
        return self._file(shard_file(file_name, number))

    # --- The run ------------------------------------------------------------------------------

    def take(self) -> None:
        """Creates and locks the folder; completes a replacement that was killed.

        Raises:
            FileExistsError: another run holds the lock.
        """
        self._is_new = not os.path.lexists(self.path)
        os.makedirs(self.path, exist_ok=True)
        self.lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._stack.callback(self._unlock)
        # Forked pool processes outlive a killed parent; they must not keep the lock.
        os.register_at_fork(after_in_child=partial(_unlock_in_child, weakref.ref(self)))
        # Worker processes of a killed run hold the lock until they notice that it ended, so this
        # waits a moment. They write nothing after they have released it.
        deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise FileExistsError(errno.EEXIST, _LOCKED, self.path) from None
                time.sleep(0.02)
            except OSError:  # the network file system does not support locks
                break
        fresh = self._file(WORK_FOLDER, _REPLACEMENT, MANIFEST)
        if not self.has_manifest() and os.path.lexists(fresh):  # killed during a replacement
            self._move_replacement_in()

    def _unlock(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def replacement(self) -> OutputFolder:
        """Returns a locked folder inside this one, for a dataset that will replace this one."""
        fresh = OutputFolder(self._file(WORK_FOLDER, _REPLACEMENT))
        fresh.take()
        self._stack.callback(fresh.close)
        return fresh

    def adopt(self, old_files: Iterable[str]) -> None:
        """Replaces the dataset by the one in `replacement`; if killed, the next `take` continues.

        Args:
            old_files: File names of the old shards to remove, with `{:06d}`.
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(MANIFEST))
        sync_folder(self.path)  # before the shards are removed
        self._clear_old_manifests()
        self._clear({"files": [SHARD_FILE, NAMES_FILE, *old_files]}, None)
        self._move_replacement_in()

    def _move_replacement_in(self) -> None:
        fresh = self._file(WORK_FOLDER, _REPLACEMENT)
        for name in sorted(os.listdir(fresh), key=lambda name: name == MANIFEST):  # last
            if name == WORK_FOLDER:  # a late attempt may still write a file there
                continue
            if name == MANIFEST:
                sync_folder(self.path)
            os.rename(os.path.join(fresh, name), self._file(name))
        sync_folder(self.path)
        # A run that was killed in `adopt` may have left old shards.
        self._clear({"files": [SHARD_FILE, NAMES_FILE]}, read_manifest(self.path))
        self.finish()

    def start(self, plan: dict[str, Any], keep: Manifest | None, *, resume: bool) -> None:
        """Writes the plan or resumes the existing one; removes other files of earlier runs.

        Args:
            plan: Plan in JSON types; "files" lists shard names, with `{:06d}`, that may be written
                or removed.
            keep: Dataset that stays until `commit`; None removes the existing one.
            resume: Continue with the shards that the same plan has written.

        Raises:
            ValueError: the existing plan differs.
        """
        self.clear_temporary()
        before = self.plan()
        if resume and before is not None:
            self._check_same(before, plan)
        else:
            self._write_plan(plan, before)
            if keep is None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._file(MANIFEST))
                sync_folder(self.path)  # before the shards are removed
                self._clear_old_manifests()
            self._clear(self.plan() or plan, keep)
        self.journal = Journal(self._file(WORK_FOLDER, _JOURNAL))
        self._stack.callback(self.journal.close)

    @contextlib.contextmanager
    def undone_if_refused(self, keep: Manifest | None = None, *, resume: bool) -> Iterator[None]:
        """Removes the output of the `with` block if the block refuses the input.

        A refused input (ValueError, TypeError, LookupError) cannot be resumed. The output of other
        failures stays, since it can be resumed, and so does the output of an earlier run.

        Args:
            keep: Dataset whose files stay.
            resume: The run continues an earlier one.
        """
        is_fresh = not resume or self.plan() is None
        try:
            yield
        except (ValueError, TypeError, LookupError):
            if is_fresh:
                with contextlib.suppress(OSError):  # the caller needs the refusal
                    self._clear(self.plan() or {}, keep)
                    self.finish()
                    if self._is_new:
                        os.rmdir(self.path)
                    if os.path.basename(above := os.path.dirname(self.path)) == WORK_FOLDER:
                        os.rmdir(above)  # the work folder of a replaced dataset
            raise

    def clear_temporary(self) -> None:
        """Removes temporary files of interrupted writes."""
        for folder in (self.path, self._file(WORK_FOLDER)):
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if name.startswith(TEMPORARY_PREFIX):
                    with contextlib.suppress(FileNotFoundError):  # its writer just removed it
                        os.unlink(os.path.join(folder, name))

    def commit(self, manifest: Manifest, writer: str, *, replaces: Manifest | None = None) -> None:
        """Writes the manifest, which makes the dataset complete.

        Args:
            manifest: Manifest of the dataset.
            writer: Name of the writing program.
            replaces: Previous generation, whose manifest stays readable under its own name.
        """
        sync_folder(self.path)
        if replaces is not None:
            with open(self._file(MANIFEST), "rb") as file:
                old = file.read()
            with new_file(self._file(old_manifest(replaces.generation))) as descriptor:
                write_all(descriptor, memoryview(old))
        with new_file(self._file(MANIFEST)) as descriptor:
            write_all(descriptor, memoryview(manifest.encode(writer)))
        sync_folder(self.path)
        self._clear(self.plan() or {}, manifest)
        self.finish()

    def finish(self) -> None:
        """Removes plan, journal and replacement folder."""
        self.clear_temporary()
        # The plan is removed last: while it exists, a resumed run can see that it had committed.
        for name in (_JOURNAL, PLAN):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file(WORK_FOLDER, name))
        shutil.rmtree(self._file(WORK_FOLDER, _REPLACEMENT), ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(self._file(WORK_FOLDER))

    def close(self) -> None:
        """Unlocks the folder and closes the journal."""
        self._stack.close()

    def _file(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    def _check_same(self, before: dict[str, Any], plan: dict[str, Any]) -> None:
        old, new = ({**p, "files": None} for p in (before, plan))
        if changed := list(differences(old, json.loads(json.dumps(new)))):
            advice = "--overwrite (overwrite=True) starts again"
            if plan["task"] != "pack":
                advice = "remove --resume (resume=True) to start again"
            raise ValueError(
                f"{self.path}: cannot be resumed, because input or options changed: "
                f"{'; '.join(changed)}; {advice}"
            )

    def _write_plan(self, plan: dict[str, Any], before: dict[str, Any] | None) -> None:
        work = self._file(WORK_FOLDER)
        os.makedirs(work, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(work, _JOURNAL))
        sync_folder(work)
        files = [*plan["files"], *(before or {}).get("files", [])]
        noted = {**plan, "files": list(dict.fromkeys(files))}
        with new_file(os.path.join(work, PLAN)) as descriptor:
            write_all(
                descriptor, memoryview(json.dumps(noted, indent=1, allow_nan=False).encode("ascii"))
            )
        sync_folder(work)
        sync_folder(self.path)

    def _clear(self, plan: dict[str, Any], keep: Manifest | None) -> None:
        """Removes files with shard names of the plan that do not belong to the kept dataset."""
        kept = set(keep.files()) if keep is not None else set()
        patterns = [_pattern(file_name) for file_name in plan.get("files", [])]
        for name in os.listdir(self.path):
            if name not in kept and any(pattern.fullmatch(name) for pattern in patterns):
                os.unlink(self._file(name))

    def _clear_old_manifests(self) -> None:
        for name in os.listdir(self.path):
            if _OLD_MANIFEST.fullmatch(name):
                os.unlink(self._file(name))


def _unlock_in_child(reference: weakref.ref[OutputFolder]) -> None:
    # Fork handlers cannot be unregistered, so this one holds only a weak reference.
    if (folder := reference()) is not None:
        folder._unlock()


def _pattern(file_name: str) -> re.Pattern[str]:
    before, _, after = file_name.partition("{:06d}")
    return re.compile(rf"{re.escape(before)}\d{{6,}}{re.escape(after)}")


def files_of(manifests: Iterable[Manifest]) -> list[str]:
    """Returns the shard file names, with `{:06d}`, of datasets."""
    return list(dict.fromkeys(g.file_name for manifest in manifests for g in manifest.groups))


def unfinished(path: AnyPath) -> tuple[int, int] | None:
    """Returns the finished and the planned shards of an interrupted run; None if there is none."""
    plan = _plan(absolute(path))
    if plan is None or "shards" not in plan:
        return None
    try:
        written, _ = replay(os.path.join(absolute(path), WORK_FOLDER, _JOURNAL))
    except OSError:
        return 0, plan["shards"]
    return len(written), plan["shards"]


def _plan(folder: str) -> dict[str, Any] | None:
    try:
        refuse_pipe(os.path.join(folder, WORK_FOLDER, PLAN))
        with open(os.path.join(folder, WORK_FOLDER, PLAN), "rb") as file:
            plan = json.load(file)
    except (OSError, ValueError):
        return None
    return plan if isinstance(plan, dict) else None

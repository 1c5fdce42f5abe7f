"""The folder that is written: empty, incomplete or a complete dataset, and nothing in between."""

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
_PATIENCE_SECONDS = 2.0
_HELD = "another pack is writing to this folder"


class OutputFolder:
    """Holds the folder for one run, between `take` and `close`.

    From `begin` to `commit` a plan and a journal in it tell what is being done. A folder without
    a manifest is incomplete for that time; one with a manifest stays what it was until `commit`.

    Args:
        path: Of the folder; it need not exist.

    Attributes:
        path: Absolute.
        lock: The descriptor that holds the lock.
        journal: Of the run, from `begin` on.

    Example:
        >>> folder = OutputFolder("data/train")
        >>> folder.check_new(overwrite=False)  # raises if there is something in the way
    """

    journal: Journal

    def __init__(self, path: AnyPath) -> None:
        self.path = absolute(path)
        self.lock = -1
        self._is_new = False
        self._stack = contextlib.ExitStack()

    # --- What is there ------------------------------------------------------------------------

    def check_source(self, source: Any) -> None:
        """Raises ValueError if the folder lies inside the input, should that be a folder, too."""
        if not isinstance(source, (str, bytes, os.PathLike)) or not os.path.exists(source):
            return
        source = absolute(source)
        real, above = os.path.realpath(self.path), os.path.realpath(source)
        if os.path.isdir(above) and os.path.commonpath([real, above]) == above:
            raise ValueError(f"{self.path}: the output lies inside the input {source}")

    def check_inputs(self, paths: Iterable[str]) -> None:
        """Raises ValueError if a file that is read lies in the folder, which would be emptied."""
        here = os.path.realpath(self.path)
        above: dict[str, str] = {}
        for path in paths:
            name = os.path.dirname(path)
            if name not in above:
                above[name] = os.path.realpath(name)
            if os.path.commonpath([here, above[name]]) == here:
                raise ValueError(
                    f"{path}: this input lies in the folder that is to be replaced; write to "
                    "another folder"
                )

    def check_new(self, *, overwrite: bool, resume: bool = False) -> None:
        """Raises FileExistsError unless a dataset may be written here; changes nothing.

        Args:
            overwrite: A dataset, also an incomplete one, may be replaced.
            resume: An incomplete one may be continued; the caller looks at a complete one.
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
            elif self.plan() is None:  # killed before it had written anything
                return
            elif self._is_held():
                what = _HELD
            else:
                what = incomplete(self.path)
            raise FileExistsError(errno.EEXIST, what, self.path)

    def _is_held(self) -> bool:
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
        """Whether it holds a complete dataset."""
        return os.path.lexists(self._file(MANIFEST))

    def plan(self) -> dict[str, Any] | None:
        """What a run that was broken off had planned."""
        return _plan(self.path)

    def shard(self, file_name: str, number: int) -> str:
        """The path of a shard."""
        return self._file(shard_file(file_name, number))

    # --- The run ------------------------------------------------------------------------------

    def take(self) -> None:
        """Makes the folder, and holds it until `close`; ends a replacement that was killed.

        Raises:
            FileExistsError: another run holds it.
        """
        self._is_new = not os.path.lexists(self.path)
        os.makedirs(self.path, exist_ok=True)
        self.lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._stack.callback(self._let_go)
        # A pool that forks leaves its processes behind when this one is killed.
        os.register_at_fork(after_in_child=partial(_let_go_of, weakref.ref(self)))
        # The processes of a run that was killed hold the lock, too, for the moment they need to
        # notice; nothing of theirs can appear after it is ours.
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise FileExistsError(errno.EEXIST, _HELD, self.path) from None
                time.sleep(0.02)
            except OSError:  # network file systems that cannot lock
                break
        fresh = self._file(WORK_FOLDER, _REPLACEMENT, MANIFEST)
        if not self.has_manifest() and os.path.lexists(fresh):  # killed while it was replaced
            self._move_in()

    def _let_go(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def replacement(self) -> OutputFolder:
        """A folder inside, held until `close`, for a dataset that is to replace this one."""
        fresh = OutputFolder(self._file(WORK_FOLDER, _REPLACEMENT))
        fresh.take()
        self._stack.callback(fresh.close)
        return fresh

    def adopt(self, old_files: Iterable[str]) -> None:
        """Replaces the dataset by the complete one in `replacement`; `take` ends what was begun.

        Args:
            old_files: The names of the shards that go, with `{:06d}`.
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(MANIFEST))
        sync_folder(self.path)  # before its shards go
        self._clear_old_manifests()
        self._clear({"files": [SHARD_FILE, NAMES_FILE, *old_files]}, None)
        self._move_in()

    def _move_in(self) -> None:
        fresh = self._file(WORK_FOLDER, _REPLACEMENT)
        for name in sorted(os.listdir(fresh), key=lambda name: name == MANIFEST):  # that one last
            if name == WORK_FOLDER:  # a late attempt may still have a file in it
                continue
            if name == MANIFEST:
                sync_folder(self.path)
            os.rename(os.path.join(fresh, name), self._file(name))
        sync_folder(self.path)
        # A run that was killed in `adopt` may have left some of the old ones.
        self._clear({"files": [SHARD_FILE, NAMES_FILE]}, read_manifest(self.path))
        self.finish()

    def begin(self, plan: dict[str, Any], keep: Manifest | None, *, resume: bool) -> None:
        """Notes the plan, or takes up the one that is there; clears what else earlier runs wrote.

        Args:
            plan: In JSON's types; "files" lists the names of shards, with `{:06d}`, that may be
                written or removed.
            keep: The dataset that stays until `commit`; None removes what is there.
            resume: Go on with what the same plan has written.

        Raises:
            ValueError: what is there was begun with another plan.
        """
        self.clear_temporary()
        before = self.plan()
        if resume and before is not None:
            self._check_same(before, plan)
        else:
            self._note(plan, before)
            if keep is None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._file(MANIFEST))
                sync_folder(self.path)  # before its shards go
                self._clear_old_manifests()
            self._clear(self.plan() or plan, keep)
        self.journal = Journal(self._file(WORK_FOLDER, _JOURNAL))
        self._stack.callback(self.journal.close)

    @contextlib.contextmanager
    def undone_if_refused(self, keep: Manifest | None = None, *, resume: bool) -> Iterator[None]:
        """Removes what the run inside writes if it refuses the input, which needs another run.

        What other failures leave can be resumed, and so can what was there before.

        Args:
            keep: The dataset that stays.
            resume: The run goes on with what is there.
        """
        is_fresh = not resume or self.plan() is None
        try:
            yield
        except (ValueError, TypeError, LookupError):
            if is_fresh:
                with contextlib.suppress(OSError):  # the refusal is what matters
                    self._clear(self.plan() or {}, keep)
                    self.finish()
                    if self._is_new:
                        os.rmdir(self.path)
                    if os.path.basename(above := os.path.dirname(self.path)) == WORK_FOLDER:
                        os.rmdir(above)  # of a replacement
            raise

    def clear_temporary(self) -> None:
        """Removes what was broken off."""
        for folder in (self.path, self._file(WORK_FOLDER)):
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if name.startswith(TEMPORARY_PREFIX):
                    with contextlib.suppress(FileNotFoundError):  # its attempt ends at this moment
                        os.unlink(os.path.join(folder, name))

    def commit(self, manifest: Manifest, writer: str, *, replaces: Manifest | None = None) -> None:
        """Makes the dataset complete.

        Args:
            manifest: Of the dataset.
            writer: Names the program.
            replaces: The generation before, which stays readable under a name of its own.
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
        """Removes plan and journal."""
        self.clear_temporary()
        # The plan last: as long as it is there, it tells what was committed.
        for name in (_JOURNAL, PLAN):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file(WORK_FOLDER, name))
        shutil.rmtree(self._file(WORK_FOLDER, _REPLACEMENT), ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(self._file(WORK_FOLDER))

    def close(self) -> None:
        """Lets the folder go."""
        self._stack.close()

    def _file(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    def _check_same(self, before: dict[str, Any], plan: dict[str, Any]) -> None:
        old, new = ({**p, "files": None} for p in (before, plan))
        if changed := list(differences(old, json.loads(json.dumps(new)))):
            again = "--overwrite (overwrite=True)"
            if plan["task"] != "pack":
                again = "without --resume it"
            raise ValueError(
                f"{self.path}: cannot be resumed, because input or options changed: "
                f"{'; '.join(changed)}; {again} begins again"
            )

    def _note(self, plan: dict[str, Any], before: dict[str, Any] | None) -> None:
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
        """Removes the shards that have one of the plan's names and are not of the dataset."""
        kept = set(keep.files()) if keep is not None else set()
        patterns = [_pattern(file_name) for file_name in plan.get("files", [])]
        for name in os.listdir(self.path):
            if name not in kept and any(pattern.fullmatch(name) for pattern in patterns):
                os.unlink(self._file(name))

    def _clear_old_manifests(self) -> None:
        for name in os.listdir(self.path):
            if _OLD_MANIFEST.fullmatch(name):
                os.unlink(self._file(name))


def _let_go_of(reference: weakref.ref[OutputFolder]) -> None:
    # Handlers cannot be taken back: this one keeps nothing alive.
    if (folder := reference()) is not None:
        folder._let_go()


def _pattern(file_name: str) -> re.Pattern[str]:
    before, _, behind = file_name.partition("{:06d}")
    return re.compile(rf"{re.escape(before)}\d{{6,}}{re.escape(behind)}")


def files_of(manifests: Iterable[Manifest]) -> list[str]:
    """The names of shards, with `{:06d}`, of datasets."""
    return list(dict.fromkeys(g.file_name for manifest in manifests for g in manifest.groups))


def unfinished(path: AnyPath) -> tuple[int, int] | None:
    """How many shards of how many a run that was broken off has finished; None if none was."""
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

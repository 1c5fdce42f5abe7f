"""Runs the test suites of torch and torchdata with FastLoader in place of DataLoader.

    python tests/suites.py --torch-tests DIR [--torchdata-tests DIR] [-k EXPRESSION]

DIR is the folder `test` of a checkout of torch in the installed version, and the folder
`test/stateful_dataloader` of torchdata's. Wanted are expecttest and psutil, for torchdata's suites
also torchdata and parameterized. What is known to differ, and why, stands in
`suites_expected.json`; anything else that fails, and what is said to fail and does not, ends the
program with status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import suites_inside

HERE = Path(__file__).parent
# The file, and the part of it that is about loaders.
SUITES = {
    "torch": {"test_dataloader.py": "", "test_utils.py": "TestDataLoaderUtils"},
    "torchdata": {"test_state_dict.py": "", "test_sampler.py": ""},
}


@dataclass
class Case:
    """One test as it went.

    Attributes:
        name: `file::Class::test`.
        outcome: "passed", "failed", "skipped" or "died" (with the process, or for want of time).
        detail: Why it failed or was skipped.
        native: Iterators of the engine that it made in the process of the tests.
        torch: Iterators of torch's, likewise.
    """

    name: str
    outcome: str
    detail: str = ""
    native: int = 0
    torch: int = 0


@dataclass
class Verdict:
    """The cases of one suite, by what is to be thought of them."""

    passed: list[Case] = field(default_factory=list)
    skipped: list[Case] = field(default_factory=list)
    expected: list[Case] = field(default_factory=list)
    unexplained: list[Case] = field(default_factory=list)
    unexpectedly_passed: list[Case] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.unexplained and not self.unexpectedly_passed


def judge(cases: Sequence[Case], reasons: dict[str, str]) -> Verdict:
    """Sorts cases; `reasons` says of those that may fail why."""
    verdict = Verdict()
    for case in cases:
        if case.outcome in ("failed", "died"):
            (verdict.expected if case.name in reasons else verdict.unexplained).append(case)
        elif case.outcome == "skipped":
            verdict.skipped.append(case)
        elif case.name in reasons:
            verdict.unexpectedly_passed.append(case)
        else:
            verdict.passed.append(case)
    return verdict


def read_reasons(path: Path) -> dict[str, dict[str, str]]:
    """For each suite: names of cases that may fail, and why."""
    return {
        suite: {name: entry["reason"] for entry in entries for name in entry["cases"]}
        for suite, entries in json.loads(path.read_text()).items()
    }


def run(
    library: str, file: Path, arguments: Sequence[str], limit: float, patience: float
) -> Iterator[Case]:
    """Runs the cases of a file; where the process dies, another one goes on with the rest."""
    done: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        inside, report, output = (Path(folder, name) for name in ("inside", "report", "output"))
        inside.mkdir()
        shutil.copy(suites_inside.__file__, inside)
        start = "import suites_inside\nsuites_inside.substitute()\n"
        (inside / "sitecustomize.py").write_text(start)
        paths = [str(inside), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTORCH_TEST_WITH_SLOW": "1",
            suites_inside.LIBRARY: library,
            suites_inside.REPORT: str(report),
            suites_inside.LIMIT: str(limit),
            suites_inside.PATIENCE: str(patience),
        }
        command = [sys.executable, "-m", "pytest", file.name, "-q", "-p", "suites_inside"]
        command += ["-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={file.parent}"]
        while True:
            report.write_text("")
            skip = [f"--deselect={name}" for name in done]
            with open(output, "w") as sink:
                process = subprocess.Popen(
                    [*command, *arguments, *skip],
                    cwd=file.parent,
                    env=environment,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                try:
                    status = process.wait()
                finally:  # what a case that went wrong has left behind goes, too
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                said = output.read_text(errors="replace")[-4000:]
            lines = [json.loads(line) for line in report.read_text().splitlines()]
            ended = [Case(line.pop("case"), **line) for line in lines if "outcome" in line]
            yield from ended
            if lines and "outcome" not in lines[-1]:
                name = lines[-1]["case"]
                ended.append(Case(name, "died", f"{status}: {said}"))
                yield ended[-1]
            elif status not in (0, 1, 5):  # 5: no case was selected
                yield Case(file.name, "died", said)
                return
            else:
                return
            done += [case.name for case in ended]


def show(title: str, verdict: Verdict, reasons: dict[str, str], seconds: float) -> None:
    """Prints what came of a suite."""
    ran = [*verdict.passed, *verdict.expected, *verdict.unexplained, *verdict.unexpectedly_passed]
    engine = [case for case in ran if case.native]
    print(f"{title}: {len(ran) + len(verdict.skipped)} cases, {seconds:.0f} s")
    print(f"  passed       {len(verdict.passed)}")
    print(f"  skipped      {len(verdict.skipped)} (by the suite itself)")
    print(f"  expected     {len(verdict.expected)}")
    print(f"  unexplained  {len(verdict.unexplained)}")
    native, torchs = sum(case.native for case in ran), sum(case.torch for case in ran)
    print(f"  natively     {len(engine)} cases; iterators: {native} native, {torchs} of torch's")
    for case in verdict.expected:
        print(f"  expected: {case.name}: {reasons[case.name]}")
    for case in verdict.unexpectedly_passed:
        print(f"  PASSED, but is said to fail: {case.name}")
    for case in verdict.unexplained:
        print(f"\n--- UNEXPLAINED: {case.name} {case.outcome}\n{case.detail}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line names; 0 if nothing is unexplained."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for library in SUITES:
        parser.add_argument(f"--{library}-tests", type=Path, metavar="DIR")
    parser.add_argument("-k", metavar="EXPRESSION", help="select cases, as in pytest")
    parser.add_argument("--limit", type=float, default=600, help="seconds per case (default: 600)")
    parser.add_argument(
        "--patience", type=float, default=1, help="factor for the time limits in torch's tests"
    )
    parser.add_argument("--expected", type=Path, default=HERE / "suites_expected.json")
    parser.add_argument("--json", type=Path, help="write the results of all cases to this file")
    options = parser.parse_args(arguments)
    folders = {library: getattr(options, f"{library}_tests") for library in SUITES}
    if not any(folders.values()):
        parser.error("name a folder of tests")
    reasons, cases, good = read_reasons(options.expected), list[Case](), True
    for library, folder in folders.items():
        for name, part in SUITES[library].items() if folder is not None else ():
            file = Path(folder, name).resolve()
            if not file.exists():
                print(f"{library} {name}: not in {folder}")
                good = good and name != next(iter(SUITES[library]))
                continue
            chosen = " and ".join(f"({word})" for word in (part, options.k) if word)
            began = time.monotonic()
            select = ["-k", chosen] if chosen else []
            found = list(run(library, file, select, options.limit, options.patience))
            verdict = judge(found, reasons.get(library, {}))
            seconds = time.monotonic() - began
            show(f"{library} {name}", verdict, reasons.get(library, {}), seconds)
            good = good and verdict.is_good and (bool(found) or bool(options.k))
            cases += found
    if options.json is not None:
        listed: list[Any] = [vars(case) for case in cases]
        options.json.write_text(json.dumps(listed, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

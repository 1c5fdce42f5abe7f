"""Each fault that `tests/support/seeded_faults.py` seeds can be seeded."""

from __future__ import annotations

import pytest
from faults import FAULTS, Fault
from paths import ROOT, TESTS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.file)
def test_the_text_that_a_fault_replaces_is_there_once(fault: Fault) -> None:
    fault.check()
    assert fault.old != fault.new


def test_the_tests_that_must_find_the_faults_exist() -> None:
    for fault in FAULTS:
        program = TESTS / "cpp" / f"{fault.tests}.cpp"
        assert (
            program.exists() if fault.file.startswith("csrc/") else (TESTS / fault.tests).exists()
        )


def test_each_room_has_a_fault() -> None:
    for package in (ROOT / "fastload", ROOT / "csrc"):
        rooms = {path.name for path in package.iterdir() if path.is_dir()}
        rooms -= {"__pycache__", "integrations", "base", "bindings"}
        seeded = {fault.file.split("/")[1] for fault in FAULTS}
        assert rooms <= seeded

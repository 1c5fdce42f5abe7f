"""README and docs: their Python blocks run, their links lead somewhere, the README is short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from paths import ROOT

TEST_COMMAND = "pip install '.[test]' && pytest"
SCRIPTS = ["README.md", "docs/guides/loading.md", "docs/guides/training.md"]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for folder in (".", "docs", "examples", "benchmarks")
    for path in (ROOT / folder).glob("**/*.md" if folder == "docs" else "*.md")
)


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", SCRIPTS)
def test_python_blocks_run_in_order(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(page, "python")
    assert found
    namespace: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(found, start=1):
        exec(compile(block, f"{page}, Python block {number}", "exec"), namespace)
    namespace.clear()  # functions refer to it: the collector would end open files in any order


def test_readme_has_at_most_120_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_test_command_is_the_one_ci_calls() -> None:
    assert any(TEST_COMMAND in block for block in blocks("CONTRIBUTING.md", "sh"))
    assert TEST_COMMAND in (ROOT / ".ci/run").read_text()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings_that_exist(page: str) -> None:
    text = re.sub(r"^ *```.*?^ *```$|`[^`\n]*`", "", (ROOT / page).read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        path, _, heading = target.partition("#")
        linked = (ROOT / page).parent / path if path else ROOT / page
        assert linked.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
            assert heading in anchors, target


def test_index_of_the_documentation_lists_each_page() -> None:
    index = (ROOT / "docs/README.md").read_text()
    for path in sorted((ROOT / "docs").glob("**/*.md")):
        name = str(path.relative_to(ROOT / "docs"))
        assert name == "README.md" or f"({name})" in index, name


def test_files_that_the_design_names_exist() -> None:
    folders = ("csrc", "fastload", "tests", "docs", "benchmarks", ".ci")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    known = [f"/{path.relative_to(ROOT)}" for path in paths if "__pycache__" not in path.parts]
    text = (ROOT / "docs/design.md").read_text()
    named = set(re.findall(r"`([.\w]+(?:/\w+)+(?:\.\w+)?|\w+\.(?:py|h|cpp|cu|ptx|cmake))`", text))
    assert len(named) > 50
    for name in sorted(named):
        ends = (f"/{name}", f"/{name}.h", f"/{name}.py")
        assert any(path.endswith(ends) for path in known), f"no file or folder is named {name}"

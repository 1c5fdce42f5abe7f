"""The blocks of docs/guides/recipes.md run, or are marked as not run and compile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import recipes
import torch.distributed.fsdp
from paths import ROOT


@pytest.mark.skipif(
    not hasattr(torch.distributed.fsdp, "fully_shard"), reason="FSDP2 came with torch 2.6"
)
@pytest.mark.filterwarnings("ignore")  # those of torch's sharding, which differ by version
def test_blocks_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = recipes.run("")
    assert {"freeze_statistics", "slow_down_statistics", "unsent", "policy"} <= set(names)
    made = {"plateau.pt", "plateau-scheduler.pt", "last.pt", "unsent-0.pt", "sharded.pt", "sharded"}
    assert {path.name for path in tmp_path.iterdir()} == made


def test_each_block_is_run_or_said_not_to_be() -> None:
    text = recipes.RECIPES.read_text()
    marks = re.findall(r"^```python ?(\w*)$", text, flags=re.MULTILINE)
    assert set(marks) == {"", "gpu", "deepspeed", "torchao"}
    assert marks.count("gpu") == text.count("**not run**")
    for line, code in recipes.blocks("gpu", "deepspeed", "torchao"):
        compile("\n" * (line - 1) + code, "docs/guides/recipes.md", "exec")
    for named in re.findall(r"`(tests/[\w/]+\.py)`", text):
        assert (ROOT / named).exists(), named

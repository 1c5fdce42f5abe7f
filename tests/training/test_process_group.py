"""The process group of one process; `rank_checks.py` and `torchrun_training.py` have more."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from fastload import distributed


def test_alone_it_is_a_group_of_one_until_the_end_of_the_block() -> None:
    with distributed() as process:
        assert process[:3] == (0, 1, 0)
        assert process.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
        assert dist.get_world_size() == 1
    assert not dist.is_initialized()
    for rank, world in ((0, 1), (None, None)):
        with pytest.raises(KeyError):
            with distributed(rank, world, device="cpu"):
                assert dist.get_backend() == "gloo"
                raise KeyError
        assert not dist.is_initialized()


def test_a_group_that_the_block_has_destroyed_is_left_alone() -> None:
    with distributed(device="cpu"):
        dist.destroy_process_group()
    assert not dist.is_initialized()


def test_places_that_do_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="rank 2 of 2"), distributed(2, 2, device="cpu"):
        pass
    for place in ({"rank": 2}, {"world": 2}):
        with (
            pytest.raises(ValueError, match="must be given together"),
            distributed(**place),
        ):
            pass
    with pytest.raises(TypeError, match="two integers"), distributed(0.5, 2):  # type: ignore[arg-type]
        pass
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="local rank 2 has no GPU: there are 2 on this host"):
        with distributed(0, 3, device="cuda"):
            pass

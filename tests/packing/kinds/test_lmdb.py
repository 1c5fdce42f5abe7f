"""`fastload.pack` of LMDB environments, written by the lmdb package."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from packing import damaged, same_bytes, samples_of

import fastload

lmdb = pytest.importorskip("lmdb", reason="pip install lmdb")
ROWS = 60


def write(path: Path, subdir: bool = True) -> list[dict[str, bytes]]:
    entries = {f"{n * 7 % ROWS:03d}".encode(): b"v" * (n % 3) + bytes([n]) for n in range(ROWS)}
    entries[b"z/big"] = b"x" * 20_000
    with lmdb.open(str(path), subdir=subdir, map_size=1 << 22) as environment:
        with environment.begin(write=True) as transaction:
            for key, value in entries.items():
                transaction.put(key, value)
    return [{"key": key, "value": entries[key]} for key in sorted(entries)]


@pytest.mark.parametrize("name", ["folder", "a.lmdb"])
def test_entries_come_back_in_the_order_of_their_keys(tmp_path: Path, name: str) -> None:
    want = write(tmp_path / name, subdir=name == "folder")
    fastload.pack(tmp_path / name, tmp_path / "1", workers=1, shard_size=500)
    assert samples_of(tmp_path / "1") == want
    if name == "folder":
        fastload.pack(tmp_path / name, tmp_path / "2", workers=2, shard_size=500)
        assert same_bytes(tmp_path / "1", tmp_path / "2")
        with ThreadPoolExecutor(4) as threads:  # an environment cannot be opened twice
            fastload.pack(tmp_path / name, tmp_path / "3", executor=threads, shard_size=500)
        assert same_bytes(tmp_path / "1", tmp_path / "3")


def test_a_decoder_makes_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = write(tmp_path / "in")[:-1]
    (tmp_path / "decoders_.py").write_text(
        "def decode(key, value):\n    return {'n': int(key), 'last': value[-1]}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    options: dict[str, Any] = {"decoder": "decoders_:decode", "workers": 1}
    report = fastload.pack(tmp_path / "in", tmp_path / "out", **options)
    assert [skipped.path for skipped in report.skipped] == ["key b'z/big'"]
    assert [skipped.reason.partition("(")[0] for skipped in report.skipped] == [
        "decoders_:decode: ValueError: invalid literal for int"
    ]
    assert samples_of(tmp_path / "out") == [
        {"n": int(sample["key"]), "last": sample["value"][-1]} for sample in want
    ]
    damaged(tmp_path / "in", tmp_path / "no", "key b'z/big'", strict=True, **options)
    with pytest.raises(AttributeError, match="nothing"):
        fastload.pack(tmp_path / "in", tmp_path / "new", decoder="decoders_:nothing")


def test_damage_ends_in_one_error(tmp_path: Path) -> None:
    write(tmp_path / "in")
    data = tmp_path / "in/data.mdb"
    content = data.read_bytes()
    for size in (0, 100, 4096, len(content) // 2, len(content) - 4096):
        data.write_bytes(content[:size])
        damaged(tmp_path / "in", tmp_path / "out", str(tmp_path / "in"))
    data.write_bytes(b"\0" * len(content))
    damaged(tmp_path / "in", tmp_path / "out", "no LMDB environment, or a damaged one")


# --- Named databases ----------------------------------------------------------------------------


def test_a_database_is_chosen_by_its_name_and_the_others_are_reported(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "in"), max_dbs=3) as environment:
        for name in (b"train", b"val"):
            database = environment.open_db(name)
            with environment.begin(write=True, db=database) as entries:
                for n in range(5):
                    entries.put(b"%d" % n, name)
        with environment.begin(write=True) as entries:
            entries.put(b"__len__", b"5")
            entries.put(b"zeros", bytes(48))  # as long as what describes a database
    damaged(tmp_path / "in", tmp_path / "no", "named databases: train, val; --database NAME")
    for options in ({"workers": 1}, {"workers": 2, "shard_size": 1}, {"shuffle": 1}):
        report = fastload.pack(
            tmp_path / "in", tmp_path / "out", database="val", overwrite=True, **options
        )
        found = samples_of(tmp_path / "out")
        assert sorted(found, key=lambda sample: sample["key"]) == [
            {"key": b"%d" % n, "value": b"val"} for n in range(5)
        ]
    assert {left.reason: left.paths for left in report.leftovers} == {
        "a database that was not chosen": ("data.mdb: train",),
        "an entry outside of the chosen database": (
            "data.mdb: key b'__len__'", "data.mdb: key b'zeros'",
        ),
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"no database 'test'; there are: train, val"):
        fastload.pack(tmp_path / "in", tmp_path / "no", database="test")
    with pytest.raises(ValueError, match=r"no database 'zeros'"):
        fastload.pack(tmp_path / "in", tmp_path / "no", database="zeros")


def test_values_as_long_as_the_description_of_a_database_are_values(tmp_path: Path) -> None:
    values = [bytes(48), b"q" * 48, bytes(40) + b"\xff" * 8, b"\0" * 6 + b"\1\0" + bytes(40)]
    with lmdb.open(str(tmp_path / "in")) as environment, environment.begin(write=True) as entries:
        for n, value in enumerate(values):
            entries.put(b"%d" % n, value)
    fastload.pack(tmp_path / "in", tmp_path / "out")
    assert [sample["value"] for sample in samples_of(tmp_path / "out")] == values


def test_keys_with_several_values_are_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "in"), max_dbs=1) as environment:
        database = environment.open_db(b"d", dupsort=True)
        with environment.begin(write=True, db=database) as entries:
            entries.put(b"0", b"a")
            entries.put(b"0", b"b")
    damaged(tmp_path / "in", tmp_path / "no", "several values", database="d")

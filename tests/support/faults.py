"""Mistakes that `seeded_faults.py` seeds in the product, at least one in each room."""

from __future__ import annotations

from typing import NamedTuple

from paths import ROOT


class Fault(NamedTuple):
    """A mistake in the product.

    Attributes:
        name: What goes wrong.
        file: Where it is seeded, below the project.
        old: The text that is replaced.
        new: The text in its place.
        tests: What must fail: a folder or file of tests/, or the program of a C++ test.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str

    def check(self) -> None:
        """Raises ValueError unless the old text is in its file exactly once."""
        count = (ROOT / self.file).read_text().count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: {self.file} has {count} times: {self.old}")


FAULTS = [
    Fault(
        "a second array in an .npy file is ignored",
        "fastload/formats/npy.py",
        "if size > expected and source.read(expected, len(MAGIC)) == MAGIC:",
        "if size < expected and source.read(expected, len(MAGIC)) == MAGIC:",
        "formats/test_npy.py",
    ),
    Fault(
        "a token equal to vocab_size is accepted",
        "fastload/formats/tokens.py",
        "if tokens.min() >= 0 and tokens.max() < vocab_size:",
        "if tokens.min() >= 0 and tokens.max() <= vocab_size:",
        "datasets/test_token_dataset.py",
    ),
    Fault(
        "fingerprints do not cover the lengths of ragged fields",
        "fastload/formats/fingerprint.py",
        "            _update(digest, where, at, 8 * (rows + 1))\n",
        "",
        "formats/test_extents.py",
    ),
    Fault(
        "a rank with the tail short gets one sample too few",
        "fastload/order/keyed_sampler.py",
        "share = rest // now.world + (now.rank < rest % now.world)",
        "share = rest // now.world",
        "order/test_keyed_sampler.py",
    ),
    Fault(
        "the mask of the last step counts one repeated sample as real",
        "fastload/order/masks.py",
        "np.arange(plan.batch_size(number)) < plan.real_count(number)",
        "np.arange(plan.batch_size(number)) <= plan.real_count(number)",
        "order/test_tails.py",
    ),
    Fault(
        "the number of draws of a WeightedSampler is ignored",
        "fastload/order/weighted_sampler.py",
        'self._draws = checked_int("num_samples", num_samples, least=1)',
        'checked_int("num_samples", num_samples, least=1)',
        "order/test_weighted_sampler.py",
    ),
    Fault(
        "offsets of documents may go backwards",
        "fastload/datasets/token_dataset.py",
        "if array[0] != 0 or array[-1] != file.count or (array[1:] < array[:-1]).any():",
        "if array[0] != 0 or array[-1] != file.count:",
        "datasets/test_token_dataset.py",
    ),
    Fault(
        "a mixture ignores the number of samples",
        "fastload/datasets/mixture.py",
        "self._map = _core.Mixture(sizes, weights, self.seed, self.exhausted, self.samples)",
        "self._map = _core.Mixture(sizes, weights, self.seed, self.exhausted, None)",
        "datasets/test_mixture.py",
    ),
    Fault(
        "a joined member of a batch takes the copies of another member",
        "fastload/batch/parts.py",
        "return member.make(*(next(copies) for _ in member.leaves))",
        "return member.make(*reversed([next(copies) for _ in member.leaves]))",
        "device/test_cuda.py",
    ),
    Fault(
        "images that differ in size change places when a sample is left out",
        "fastload/batch/images.py",
        "row - bisect.bisect(rows, row): image",
        "row: image",
        "loader/test_undecodable.py",
    ),
    Fault(
        "Normalize does not scale integers",
        "fastload/batch/pixels.py",
        "scale = 1.0 / largest",
        "scale = 1.0",
        "loader/test_pixels.py",
    ),
    Fault(
        "an array that stays on the host shares memory with the next batch",
        "fastload/batch/parts.py",
        "kept = data.copy() if isinstance(data, np.ndarray) else data",
        "kept = data",
        "batch/test_parts.py",
    ),
    Fault(
        "a batch that could not be loaded is raised for ever",
        "fastload/device/prefetcher.py",
        "            if isinstance(turn, Exception):\n                self._coming.popleft()\n",
        "            if isinstance(turn, Exception):\n",
        "device/test_prefetcher.py",
    ),
    Fault(
        "a group ends one batch late",
        "fastload/loader/groups.py",
        "end = min(end, ahead.batches)",
        "end = min(end + 1, ahead.batches)",
        "loader/test_groups.py",
    ),
    Fault(
        "a batch that failed is not counted as delivered",
        "fastload/loader/handover.py",
        "position.delivered = max(position.delivered, turn)",
        "position.delivered = position.delivered + 1",
        "contract/test_state.py",
    ),
    Fault(
        "failed waits are not part of the statistics",
        "fastload/loader/stats.py",
        "            stats.add_wait(wait_ns)\n            if batch",
        "            if batch",
        "loader/test_stats.py",
    ),
    Fault(
        "a group is not weighted by the ranks that share the data",
        "fastload/loader/groups.py",
        "return [size * self.shares / max(1, self.total) for size in self.sizes]",
        "return [size / max(1, self.total) for size in self.sizes]",
        "loader/test_groups.py",
    ),
    Fault(
        "gradients are communicated after the last batch instead of in it",
        "fastload/training/gradients.py",
        "return self._number + 2 >= len(self._weights)",
        "return self._number + 1 >= len(self._weights)",
        "training/test_step_ranks.py",
    ),
    Fault(
        "a checkpoint with a wrong checksum is loaded",
        "fastload/training/checkpoint.py",
        "damaged = archive.testzip()",
        "damaged = None",
        "training/test_step_errors.py",
    ),
    Fault(
        "a schedule of another optimizer is accepted",
        "fastload/training/schedules.py",
        "if groups is not None and not any(id(group) in own for group in groups):",
        "if groups is None and not any(id(group) in own for group in groups or ()):",
        "training/test_schedules.py",
    ),
    Fault(
        "large integers are cast to what they do not fit",
        "fastload/packing/cast.py",
        "fitting &= (block < float(most + 1)) if most > 1 else (block <= 1)",
        "fitting &= (block <= float(most + 1)) if most > 1 else (block <= 1)",
        "packing/test_cast.py",
    ),
    Fault(
        "records of a TFRecord file are not checked",
        "fastload/packing/kinds/tfrecord.py",
        'if masked_crc(data) != int.from_bytes(content[-_FOOT:], "little"):',
        "if False:",
        "packing/kinds/test_tfrecord.py",
    ),
    Fault(
        "an array in an MDS sample has its axes reversed",
        "fastload/packing/kinds/mds.py",
        'return np.frombuffer(content, dtype.newbyteorder("<"), offset=place).reshape(shape)',
        'return np.frombuffer(content, dtype.newbyteorder("<"), offset=place).reshape(shape[::-1])',
        "packing/kinds/test_mds.py",
    ),
    Fault(
        "a torn line of a journal counts",
        "fastload/packing/output/journal.py",
        '            if not line.endswith(b"\\n"):\n                break\n',
        "",
        "packing/output/test_resume.py",
    ),
    Fault(
        "rows after a hole are dropped",
        "fastload/packing/output/holes.py",
        "carried = [_joined([column[rows:]]) for column in joined]",
        "carried = [_joined([column[:0]]) for column in joined]",
        "packing/kinds/test_imagefolder.py",
    ),
    Fault(
        "the samples of a process that died are counted twice",
        "fastload/packing/jobs/workers.py",
        "            advance(-task.read)\n            how",
        "            how",
        "packing/kinds/test_mapstyle.py",
    ),
    Fault(
        "an error that cannot be pickled is lost on its way from a process",
        "fastload/packing/jobs/failures.py",
        'return cls(RuntimeError(f"{type(error).__name__}: {error}"), text)',
        "return cls(RuntimeError(), text)",
        "packing/jobs/test_failures.py",
    ),
    Fault(
        "numbers of classes are exported as text",
        "fastload/packing/export/tar.py",
        'return "cls", str(values).encode()',
        'return "txt", str(values).encode()',
        "packing/test_export.py",
    ),
    Fault(
        "a finished epoch needs more steps than the one before",
        "fastload/tools/report.py",
        "whole = whole or (isinstance(least, int) and len(steps) >= least > 0)",
        "whole = whole or (isinstance(least, int) and len(steps) > least > 0)",
        "tools/test_report.py",
    ),
    Fault(
        "a quotient of ranges divides the wrong bounds",
        "fastload/tools/measured.py",
        "return Range(self.low / max(tiny, other.high), self.high / max(tiny, other.low))",
        "return Range(self.low / max(tiny, other.low), self.high / max(tiny, other.high))",
        "tools/test_measured.py",
    ),
    Fault(
        "the command ends well although files are damaged",
        "fastload/cli/verify.py",
        '        write(strict_json.dumps(_in_json(report), indent=1) + "\\n")\n'
        "        return 0 if report.ok else _DAMAGED\n",
        '        write(strict_json.dumps(_in_json(report), indent=1) + "\\n")\n        return 0\n',
        "formats/test_verify.py",
    ),
    Fault(
        "a command that fails ends with the exit code of success",
        "fastload/cli/__init__.py",
        "return complain(explained(error), 1)",
        "return complain(explained(error), 0)",
        "cli/test_commands.py",
    ),
    Fault(
        "indices outside of the permutation are given",
        "csrc/order/permutation.cpp",
        "    value = small_ ? encrypt<kSmallRounds>(value) : encrypt<kRounds>(value);\n"
        "  } while (value >= n_);",
        "    value = small_ ? encrypt<kSmallRounds>(value) : encrypt<kRounds>(value);\n"
        "  } while (value > n_);",
        "permutation_test",
    ),
    Fault(
        "the last batch of an order is lost",
        "csrc/order/index_source.cpp",
        "count / batch + (!drop_last && count % batch != 0 ? 1 : 0)",
        "count / batch + (drop_last && count % batch != 0 ? 1 : 0)",
        "index_source_test",
    ),
    Fault(
        "memory of a slot counts as used for ever",
        "csrc/batch/slot_pool.cpp",
        "      used_bytes_ += lease.capacity_;\n",
        "",
        "slot_pool_test",
    ),
    Fault(
        "parts of pinned memory do not grow together again",
        "csrc/device/free_parts.cpp",
        "    bytes += next->second;\n    erase(next);",
        "    bytes += next->second;",
        "free_parts_test",
    ),
    Fault(
        "arrays with a negative stride are read from the wrong end",
        "csrc/storage/strides.cpp",
        "made.low = checked_add(made.low, std::min<std::int64_t>(reach, 0));",
        "made.low = checked_add(made.low, 0);",
        "copy_strided_test",
    ),
    Fault(
        "quantiles of waits are one bucket off",
        "csrc/engine/load_stats.cpp",
        "if (seen >= std::max<std::int64_t>(1, wanted)) return middle_of(i);",
        "if (seen > std::max<std::int64_t>(1, wanted)) return middle_of(i);",
        "load_stats_test",
    ),
]

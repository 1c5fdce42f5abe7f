"""
The data plane of fastload. Private: use the package.
"""
from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
import typing_extensions
__all__: list[str] = ['ArrayOrder', 'BatchBuilder', 'CudaDevice', 'Engine', 'EpochPlan', 'LoadStats', 'Mixture', 'Occurrences', 'Permutation', 'PixelPlan', 'PushedOrder', 'ShipmentForm', 'SlotPool', 'StreamTimes', 'Table', 'TableBuilder', 'Transfer', 'WeightTable', 'copy_kernels', 'crc32c', 'crc32c_combine', 'is_exiting', 'measure_gather', 'set_copy_kernel', 'start_writeback']
class Permutation:
    """
    A keyed bijection of [0, n) in O(1) memory.
    """
    def __init__(self, n: typing.SupportsInt | typing.SupportsIndex, seed: typing.SupportsInt | typing.SupportsIndex, epoch: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __len__(self) -> int:
        ...
    def at(self, position: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def indices(self, first: typing.SupportsInt | typing.SupportsIndex, count: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int64]:
        ...
class WeightTable:
    """
    Cumulated weights, from which indices are sampled.
    """
    def __getstate__(self) -> bytes:
        ...
    @typing.overload
    def __init__(self, weights: numpy.typing.NDArray[numpy.float64]) -> None:
        ...
    @typing.overload
    def __init__(self, weights: numpy.typing.NDArray[numpy.float32]) -> None:
        ...
    def __len__(self) -> int:
        ...
    def __setstate__(self, arg0: bytes) -> None:
        ...
    @property
    def fingerprint(self) -> int:
        ...
class EpochPlan:
    """
    Which samples each batch of an epoch holds.
    """
    def __init__(self, *, rows: typing.SupportsInt | typing.SupportsIndex, batch: typing.SupportsInt | typing.SupportsIndex, rank: typing.SupportsInt | typing.SupportsIndex = 0, world: typing.SupportsInt | typing.SupportsIndex = 1, seed: typing.SupportsInt | typing.SupportsIndex = 0, epoch: typing.SupportsInt | typing.SupportsIndex = 0, first_position: typing.SupportsInt | typing.SupportsIndex = 0, tail: str = 'short', order: str = 'full', block_rows: typing.SupportsInt | typing.SupportsIndex = 0, window_blocks: typing.SupportsInt | typing.SupportsIndex = 0, weights: WeightTable | None = None, index_offset: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
    def batch_size(self, batch: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def draws(self, batch: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int64]:
        """
        What random transforms of these samples are keyed by.
        """
    def indices(self, batch: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int64]:
        ...
    def real_count(self, batch: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    @property
    def batch_count(self) -> int:
        ...
class Mixture:
    """
    Indices of many datasets.
    """
    def __init__(self, sizes: numpy.typing.NDArray[numpy.int64], weights: numpy.typing.NDArray[numpy.int64], seed: typing.SupportsInt | typing.SupportsIndex | None, exhausted: str, samples: typing.SupportsInt | typing.SupportsIndex | None) -> None:
        ...
    def __len__(self) -> int:
        ...
    def counts(self, epoch: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int64]:
        """
        Samples of each source in an epoch.
        """
    def locate(self, indices: numpy.typing.NDArray[numpy.int64]) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
        """
        Sources, and their samples.
        """
    def rows(self, indices: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.int64]:
        """
        Samples counted through all sources.
        """
class Occurrences:
    """
    Which time it is in an epoch that an index comes.
    """
    def __init__(self, rows: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def count(self, indices: numpy.typing.NDArray[numpy.int64]) -> None:
        """
        Counts indices that come before those of an order.
        """
class ArrayOrder:
    """
    A whole order, cut into batches.
    """
    def __init__(self, indices: numpy.typing.NDArray[numpy.int64], batch_size: typing.SupportsInt | typing.SupportsIndex, drop_last: bool, repeats: Occurrences | None = None) -> None:
        ...
class PushedOrder:
    """
    Batches of indices, pushed one by one.
    """
    def __init__(self, repeats: Occurrences | None = None) -> None:
        ...
    def finish(self) -> None:
        ...
    def push(self, indices: numpy.typing.NDArray[numpy.int64], draws: typing.Annotated[numpy.typing.ArrayLike, numpy.int64] | None = None) -> None:
        ...
class Table:
    """
    Locates samples: columns over files and memory.
    """
    def gather(self, indices: numpy.typing.NDArray[numpy.int64], out: collections.abc.Sequence[numpy.ndarray]) -> None:
        ...
    def lengths(self, column: typing.SupportsInt | typing.SupportsIndex, indices: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.int64]:
        """
        Elements of each sample of a ragged column.
        """
    def mapping(self, source: typing.SupportsInt | typing.SupportsIndex) -> typing.Any:
        """
        The bytes of a source's file, read-only; None if it is read by pread.
        """
    @property
    def bad_blocks(self) -> list[str]:
        ...
    @property
    def column_count(self) -> int:
        ...
    @property
    def rows(self) -> int:
        ...
class TableBuilder:
    """
    Collects the extents of a table.
    """
    def __init__(self, io: str = 'auto') -> None:
        ...
    def add_checksums(self, source: typing.SupportsInt | typing.SupportsIndex, begin: typing.SupportsInt | typing.SupportsIndex, end: typing.SupportsInt | typing.SupportsIndex, block_bytes: typing.SupportsInt | typing.SupportsIndex, crcs: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def add_column(self, group: typing.SupportsInt | typing.SupportsIndex, name: str, row_bytes: typing.SupportsInt | typing.SupportsIndex, row_stride: typing.SupportsInt | typing.SupportsIndex, sources: numpy.typing.NDArray[numpy.int64], offsets: numpy.typing.NDArray[numpy.int64], boolean: bool = False, stored: str = '') -> None:
        ...
    def add_file(self, path: str | bytes, size_bytes: typing.SupportsInt | typing.SupportsIndex, identity: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex] | None = None) -> int:
        ...
    def add_group(self, shard_rows: numpy.typing.NDArray[numpy.int64], index_map: numpy.typing.NDArray[numpy.int64] | None = None) -> int:
        ...
    def add_memory(self, owner: typing.Any, address: typing.SupportsInt | typing.SupportsIndex, size_bytes: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def add_ragged_column(self, group: typing.SupportsInt | typing.SupportsIndex, name: str, element_bytes: typing.SupportsInt | typing.SupportsIndex, sources: numpy.typing.NDArray[numpy.int64], offsets: numpy.typing.NDArray[numpy.int64], bounds_sources: numpy.typing.NDArray[numpy.int64], bounds_offsets: numpy.typing.NDArray[numpy.int64], totals: numpy.typing.NDArray[numpy.int64], boolean: bool = False, stored: str = '') -> None:
        ...
    def add_strided_column(self, group: typing.SupportsInt | typing.SupportsIndex, name: str, shape: numpy.typing.NDArray[numpy.int64], item_bytes: typing.SupportsInt | typing.SupportsIndex, strides: numpy.typing.NDArray[numpy.int64], sources: numpy.typing.NDArray[numpy.int64], offsets: numpy.typing.NDArray[numpy.int64], boolean: bool = False) -> None:
        ...
    def build(self, index_map: typing.Any = None) -> Table:
        ...
class PixelPlan:
    """
    How the images of a field are delivered.
    """
    def __init__(self, *, item_bytes: typing.SupportsInt | typing.SupportsIndex, channels: typing.SupportsInt | typing.SupportsIndex = 1, planar: bool = False, conversion: tuple[str, str, bool, typing.SupportsFloat | typing.SupportsIndex, collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]] | None = None, crop: tuple[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], typing.SupportsInt | typing.SupportsIndex] | None = None, flip: tuple[typing.SupportsFloat | typing.SupportsIndex, bool, typing.SupportsInt | typing.SupportsIndex] | None = None) -> None:
        ...
    def deliver(self, image: numpy.ndarray, out: numpy.ndarray, seed: typing.SupportsInt | typing.SupportsIndex, epoch: typing.SupportsInt | typing.SupportsIndex, draw: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def out_size(self, height: typing.SupportsInt | typing.SupportsIndex, width: typing.SupportsInt | typing.SupportsIndex) -> tuple[int, int]:
        ...
    def raw_bytes(self, height: typing.SupportsInt | typing.SupportsIndex, width: typing.SupportsInt | typing.SupportsIndex, count: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Bytes on a GPU for the stored images of a batch and their windows.
        """
    def window(self, height: typing.SupportsInt | typing.SupportsIndex, width: typing.SupportsInt | typing.SupportsIndex, seed: typing.SupportsInt | typing.SupportsIndex, epoch: typing.SupportsInt | typing.SupportsIndex, draw: typing.SupportsInt | typing.SupportsIndex) -> tuple[int, int, bool]:
        """
        Window of one sample in its stored image: top, left, and whether it is mirrored.
        """
    @property
    def has_kernel(self) -> bool:
        """
        Whether a GPU can do it.
        """
class CudaDevice:
    """
    One GPU, as all loaders of this process share it.
    """
    def __init__(self, ordinal: typing.SupportsInt | typing.SupportsIndex, library: str = 'libcuda.so.1') -> None:
        ...
    def load_kernel(self, plan: PixelPlan) -> None:
        """
        Raises CudaError unless the driver accepts the kernel for this plan.
        """
    @property
    def driver_version(self) -> int:
        """
        CUDA version of the driver: 13000 is 13.0.
        """
    @property
    def numa_node(self) -> int:
        """
        NUMA node of the GPU; -1: unknown, or there is only one.
        """
    @property
    def ordinal(self) -> int:
        ...
class StreamTimes:
    """
    How long a GPU's streams took for the batches of a loader.
    """
    def __init__(self, device: CudaDevice) -> None:
        ...
    def read(self) -> dict[str, int]:
        """
        What has passed; nothing in a forked child.
        """
class ShipmentForm:
    """
    Layout of a shipment: which arrays of a batch are copied; small ones are packed.
    """
    def __init__(self, copies: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], packed: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> None:
        ...
class Transfer:
    """
    The copies of one iterator's batches to a GPU.
    """
    def __init__(self, device: CudaDevice, pool: typing.Any, times: StreamTimes) -> None:
        ...
    def ask(self, stream: typing.SupportsInt | typing.SupportsIndex) -> tuple[int, bool]:
        """
        From now on the stream has nothing to do, until it is handed a batch. Returns the first ticket that is not done, and whether a graph is captured from the stream.
        """
    def check(self, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Raises CudaError if nothing can be submitted now.
        """
    def deliver(self, ticket: typing.SupportsInt | typing.SupportsIndex, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Makes the batch visible to work that the stream gets from now on.
        """
    def done(self, ticket: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether memory on either side is no longer in use.
        """
    def stats(self) -> dict[str, int]:
        ...
    def submit(self, form: ShipmentForm, sources: list[typing.Any], targets: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], pixels: collections.abc.Sequence[tuple[PixelPlan, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.Annotated[numpy.typing.ArrayLike, numpy.int64], typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], stream: typing.SupportsInt | typing.SupportsIndex, first: typing.SupportsInt | typing.SupportsIndex = -1) -> int:
        """
        Enqueues the copies of a batch behind the stream's work and returns its ticket. Delivers the batch `first` before that, unless it is -1.
        """
    def wait(self, ticket: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Waits until that is so.
        """
class SlotPool:
    """
    The memory of a loader's batches.
    """
    def __init__(self, device: CudaDevice | None = None) -> None:
        ...
    def empty(self, bytes: typing.SupportsInt | typing.SupportsIndex) -> numpy.ndarray:
        """
        Returns memory of the pool as an array; it is returned when the array is freed.
        """
    def reserve(self, bytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Pins memory for this many bytes at once, if there is a device and less is free.
        """
    @property
    def allocation_count(self) -> int:
        ...
    @property
    def complaint(self) -> str:
        """
        Why some of the memory is not pinned, and what to do; empty if all is.
        """
    @property
    def free_bytes(self) -> int:
        ...
    @property
    def pinned_bytes(self) -> int:
        ...
    @property
    def used_bytes(self) -> int:
        ...
class BatchBuilder:
    """
    From the memory of a batch to tensors in their containers.
    """
    def __init__(self, make_tensor: typing.Any, tensors: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], bool]], structure: typing.Any, container_maker: typing.Any) -> None:
        ...
class LoadStats:
    """
    Figures of a loader in this process.
    """
    def __init__(self) -> None:
        ...
    def add_wait(self, wait_ns: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def count_batch(self) -> None:
        ...
    def count_missing(self, samples: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Counts samples that were removed from a batch after it was counted.
        """
    def count_wait(self, wait_ns: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def read(self) -> dict[str, int]:
        ...
class Engine:
    """
    Loads the batches of one iterator.
    """
    def __init__(self, table: typing.Any, pool: typing.Any, fields: collections.abc.Sequence[tuple[numpy.dtype[typing.Any], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]] | tuple[numpy.dtype[typing.Any], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], tuple[typing.SupportsInt | typing.SupportsIndex, bytes] | None] | tuple[numpy.dtype[typing.Any], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], tuple[PixelPlan, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]], order: typing.Any, num_workers: typing.SupportsInt | typing.SupportsIndex, depth: typing.SupportsInt | typing.SupportsIndex, on_error: str = 'raise', *, seed: typing.SupportsInt | typing.SupportsIndex = 0, epoch: typing.SupportsInt | typing.SupportsIndex = 0, with_number: bool = False, with_samples: bool = False, stats: typing.Any | None = None, counts_waits: bool = True, builder: typing.Any = None) -> None:
        ...
    def describe_due(self) -> str:
        ...
    def is_ready(self) -> bool:
        ...
    def next(self, timeout_s: typing.SupportsFloat | typing.SupportsIndex = 0.0) -> typing.Any:
        ...
    def next_batch(self, timeout_s: typing.SupportsFloat | typing.SupportsIndex = 0.0) -> typing.Any:
        ...
    def stats(self) -> dict[str, int]:
        ...
    def stop(self) -> None:
        ...
def copy_kernels() -> list[str]:
    """
    The copy kernels of this CPU, the fastest first.
    """
def crc32c(data: typing_extensions.Buffer, crc: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    """
    CRC32C of bytes, continuing from crc.
    """
def crc32c_combine(crc_a: typing.SupportsInt | typing.SupportsIndex, crc_b: typing.SupportsInt | typing.SupportsIndex, length_b: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    CRC32C of two parts, one after the other.
    """
def is_exiting() -> bool:
    """
    Whether Python has started to exit.
    """
def measure_gather(table: Table, indices: numpy.typing.NDArray[numpy.int64], batch: typing.SupportsInt | typing.SupportsIndex, threads: typing.SupportsInt | typing.SupportsIndex, seconds: typing.SupportsFloat | typing.SupportsIndex) -> float:
    """
    Measures the bytes per second that threads copy if they do nothing else.
    """
def set_copy_kernel(name: str) -> None:
    """
    Selects the copy kernel; for tests and benchmarks.
    """
def start_writeback(descriptor: typing.SupportsInt | typing.SupportsIndex, offset: typing.SupportsInt | typing.SupportsIndex, size_bytes: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Starts writing a range of a file to its disk; does not wait.
    """
__version__: str = '0.1.0'

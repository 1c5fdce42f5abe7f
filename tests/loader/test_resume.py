"""Saving and resuming: any number of times, in any way of loading, on any number of ranks."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from plans import TAILS
from resuming import (
    KINDS,
    WAYS,
    Kind,
    RandomState,
    SeededReference,
    Shape,
    TorchReference,
    Way,
    plain,
    seeded_loaders,
    torch_loaders,
)

EXAMPLES = int(os.environ.get("FASTLOAD_EXAMPLES", "80"))
ORDERS = ("full", "sequential", "block")
EPOCHS = st.integers(0, 3)
COUNTS = st.integers(0, 7)
SHAPES = st.builds(
    Shape, st.sampled_from([1, 3, 4, 9]), st.sampled_from([1, 2, 3]), st.sampled_from(TAILS)
)


OTHER = torch.Generator().manual_seed(99).get_state()


class Saved(NamedTuple):
    """A moment: the state of the loaders, their default generator, and the reference's own."""

    state: str
    random: torch.Tensor
    moment: Any
    is_lost: bool


class Resuming(RuleBasedStateMachine):
    """Loaders of all ranks, in step, next to a reference; each saved moment can be resumed.

    Default generators of the loaders' process and of the reference's are kept apart.
    """

    saved: Any = Bundle("saved")

    def __init__(self) -> None:
        super().__init__()
        self.random = RandomState(torch.Generator().manual_seed(1).get_state())

    def begin(self, loaders: list[Any], reference: Any) -> None:
        """The first loaders are made."""
        self.loaders, self.reference = loaders, reference
        self.batches: list[Any] = []
        self.is_new = False  # the iterators have not delivered a batch
        self.is_lost = False  # the reference draws from another generator until the epoch ends
        self.keys = list(loaders[0].state_dict())

    def resume(self, saved: Saved, loaders: list[Any], reference: Any) -> None:
        """Loads the state, through JSON."""
        state = json.loads(saved.state)
        for loader in loaders:
            loader.load_state_dict(state)
            assert loader.state_dict() == json.loads(saved.state)
        self.loaders, self.reference, self.batches = loaders, reference, []
        self.is_new = False

    def starting(self) -> None:
        """Iterators are made next."""

    def ended(self) -> None:
        """An epoch has ended."""

    @property
    def may_start(self) -> bool:
        return True

    @property
    def may_save(self) -> bool:
        return True

    @precondition(lambda self: self.may_start)
    @rule(count=COUNTS)
    def start(self, count: int) -> None:
        self.iterate(count)

    def iterate(self, count: int) -> None:
        """Makes iterators, and takes some batches."""
        self.starting()
        self.reference.start()
        with self.random.used():
            self.batches = [iter(loader) for loader in self.loaders]
        self.is_new = True
        self.take(count)

    @precondition(lambda self: self.batches)
    @rule(count=COUNTS)
    def deliver(self, count: int) -> None:
        self.take(count)

    def take(self, count: int) -> None:
        for _ in range(count):
            want = self.reference.deliver(self.is_new)
            self.is_new = False
            with self.random.used(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "the epoch has no batches")
                found = [plain(next(batches, None)) for batches in self.batches]
            if want is None:
                assert found == [None] * len(found)
                self.batches = []
                self.ended()
                return
            assert found == want

    @precondition(lambda self: self.may_save)
    @rule(target=saved)
    def save(self) -> Saved:
        with self.random.used():  # the next order is predicted from it
            states = [loader.state_dict() for loader in self.loaders]
        assert states == [states[0]] * len(states)
        assert list(states[0]) == self.keys  # torch.distributed.checkpoint loads these only
        return Saved(json.dumps(states[0]), self.random.state, self.reference.save(), self.is_lost)

    @invariant()
    def position(self) -> None:
        if self.has_position:
            for loader in self.loaders:
                assert loader.position == self.limited(self.reference.position, loader)

    @property
    def has_position(self) -> bool:
        return True

    def limited(self, position: int, loader: Any) -> int:
        """The position as loaders give it."""
        return position

    def set_epochs(self, epoch: int) -> None:
        is_ignored = self.reference.set_epoch(epoch)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for loader in self.loaders:
                loader.set_epoch(epoch)
        assert ["is ignored" in str(warning.message) for warning in caught] == [True] * (
            is_ignored * len(self.loaders)
        )


class ResumingSeeded(Resuming):
    """With `seed=`: on any number of ranks, with any batch size and tail."""

    @initialize(order=st.sampled_from(ORDERS), shape=SHAPES, way=st.sampled_from(WAYS))
    def make(self, order: str, shape: Shape, way: Way) -> None:
        self.order = order
        self.begin(seeded_loaders(order, shape, way), SeededReference(order, shape))

    def limited(self, position: int, loader: Any) -> int:
        return min(position, len(loader))  # rounded up after other batches

    @property
    def may_save(self) -> bool:
        return bool(self.reference.is_even)

    @property
    def has_position(self) -> bool:
        return bool(self.reference.is_even)

    @rule(epoch=EPOCHS)
    def set_epoch(self, epoch: int) -> None:
        self.set_epochs(epoch)

    @rule(saved=Resuming.saved, shape=SHAPES, way=st.sampled_from(WAYS), count=COUNTS)
    def restore(self, saved: Saved, shape: Shape, way: Way, count: int) -> None:
        made = seeded_loaders(self.order, shape, way)
        self.resume(saved, made, self.reference.load(saved.moment, shape))
        if count:
            self.iterate(count)

    @rule(saved=Resuming.saved, count=COUNTS)
    def restore_here(self, saved: Saved, count: int) -> None:
        shape = self.reference.shape
        self.resume(saved, self.loaders, self.reference.load(saved.moment, shape))
        if count:
            self.iterate(count)


class ResumingTorch(Resuming):
    """With any other sampler; a resumed process may have another default generator."""

    @initialize(data=st.data(), name=st.sampled_from(sorted(KINDS)))
    def make(self, data: Any, name: str) -> None:
        self.kind: Kind = KINDS[name]
        self.way = data.draw(st.sampled_from(self.kind.ways))
        self.is_resuming = self.follows_open = False
        reference = TorchReference(self.kind, self.random.state)
        self.begin(torch_loaders(self.kind, self.way), reference)

    @property
    def may_start(self) -> bool:
        # With workers torch draws an order in `iter()`, of which its loader without knows nothing.
        return not self.is_new or not (self.way.workers or self.is_resuming)

    @property
    def may_save(self) -> bool:
        # Between `iter()` and the first batch a state is that of the epoch before, or as loaded.
        is_between = self.is_resuming or self.follows_open or self.kind.draws_in_iter
        return not (self.is_new and is_between)

    @property
    def has_position(self) -> bool:
        return not self.is_new

    def starting(self) -> None:
        self.is_resuming = self.reference.is_loaded
        if not self.is_new:
            self.follows_open = self.reference.is_open and not self.is_resuming
        if not self.is_resuming:
            self.meet()

    def ended(self) -> None:
        self.meet()

    def meet(self) -> None:
        """What follows a loaded epoch is drawn from the generator as it is then."""
        if self.is_lost:
            self.reference.follow(self.random.state)
            self.is_lost = False

    @precondition(lambda self: self.kind.world > 1 and not (self.is_new and self.way.workers))
    @rule(epoch=EPOCHS)
    def set_epoch(self, epoch: int) -> None:
        self.set_epochs(epoch)

    @rule(
        saved=Resuming.saved,
        data=st.data(),
        is_lost=st.booleans(),
        is_here=st.booleans(),
        count=COUNTS,
    )
    def restore(self, saved: Saved, data: Any, is_lost: bool, is_here: bool, count: int) -> None:
        if not is_here:
            self.way = data.draw(st.sampled_from(self.kind.ways))
        made = self.loaders if is_here else torch_loaders(self.kind, self.way)
        self.random = RandomState(OTHER if is_lost else saved.random)
        self.resume(saved, made, self.reference.load(saved.moment))
        self.is_resuming, self.is_lost = False, is_lost or saved.is_lost
        if not (self.reference.is_open or self.kind.predicts):
            self.meet()
        if count:
            self.iterate(count)


@pytest.mark.parametrize("machine", [ResumingSeeded, ResumingTorch])
def test_what_follows_a_resume_is_what_would_have_followed(machine: Any) -> None:
    """`FASTLOAD_EXAMPLES=5000` takes that many examples."""
    run_state_machine_as_test(
        machine, settings=settings(max_examples=EXAMPLES, stateful_step_count=30)
    )

"""A client's whole world: its data, its networks, its randomness, its memory. A task sees nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unseen.data.augment import RECIPES, Augment, Augmentation
from unseen.data.domain import Holding, Pixels, Samples, batches_of, normalise
from unseen.data.public import open_public
from unseen.device.compiling import Compiled, logits_of
from unseen.device.formats import fast_precision, memory_format
from unseen.device.graphs import RECORDABLE, StepGraphs, recordable, renew
from unseen.device.resident import SampleReader
from unseen.device.streams import Ahead, Made
from unseen.networks.base import network_entries
from unseen.networks.headed import stage_channels
from unseen.networks.kernels import has_kernels
from unseen.payload import Memory
from unseen.randomness import seeded_block
from unseen.state import Entries, Part, State, load_into
from unseen.task import Task

__all__ = ["Batch", "Client", "Pool", "Precision", "Recall"]

Batch = tuple[Tensor, Tensor]
Precision = Literal["fp32", "bf16", "auto"]
M = TypeVar("M", bound=Memory)
Step = TypeVar("Step", bound=Callable[..., Any])
Recall = Callable[[type[Any]], Any]
_PRETRAINED = -1  # in the place of a number: networks that are lent to be written to begin at 0


class Pool:
    """Networks and optimisers that tasks borrow. One task runs at a time, so a thousand clients need no thousand networks."""

    def __init__(self, builders: Mapping[str, Callable[[], nn.Module]], device: torch.device, compiles: bool = False) -> None:
        self._builders, self.device, self._compiles = builders, device, compiles
        self.unaided = False  # `unseen speed` counts operations, which neither recorded nor compiled steps show
        self.whole = False  # whether the batch that was made last has the size that was asked for: only such passes are compiled
        self._networks: dict[tuple[str, int], nn.Module] = {}
        self._optimizers: dict[tuple[Any, ...], Optimizer] = {}
        self._entries: dict[str, Entries] = {}
        self._stage_channels: list[int] | None = None
        self._fixed: dict[int, list[nn.Parameter]] = {}  # by network: what it was built with as not to be trained
        self.graphs = StepGraphs(device) if device.type == "cuda" else None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # where batches are made

    def network(self, role: str, number: int) -> nn.Module:
        if role not in self._builders:
            raise KeyError(f"no network for the role {role!r}; this method has {', '.join(sorted(self._builders))}")
        key = (role, number)
        if key not in self._networks:
            with seeded_block(torch.device("cpu"), 0, "pool"):  # whether a network is new must not move a task's draws
                net = self._builders[role]().to(self.device)
            self._fixed[id(net)] = [p for p in net.parameters() if not p.requires_grad]
            self._networks[key] = net.to(memory_format=memory_format(net, self.device))  # type: ignore[call-overload]
            if self._compiles and role == "task":
                net.compiled_pass = Compiled(net, lambda: self.whole and not self.unaided)  # type: ignore[assignment]
        return self._networks[key]

    def trainable(self, net: nn.Module) -> nn.Module:
        """The network with gradients for what it was built to train: a user's frozen layers stay frozen."""
        net.requires_grad_(True)
        for parameter in self._fixed.get(id(net), ()):
            parameter.requires_grad_(False)
        return net

    def pretrained(self, role: str) -> nn.Module:
        """The network of that role with the weights that it was built with. No task may train it, since the next one needs it as it is."""
        return self.network(role, _PRETRAINED)

    def entries(self, role: str) -> Entries:
        if role not in self._entries:
            self._entries[role] = network_entries(self.network(role, 0))
        return self._entries[role]

    def stage_channels(self, shape: torch.Size) -> list[int]:
        """How many channels the task network's maps have after each of its stages, for images of this shape."""
        if self._stage_channels is None:
            with seeded_block(torch.device("cpu"), 0, "pool"):
                self._stage_channels = stage_channels(self._builders["task"](), shape)
        return self._stage_channels

    @cached_property
    def batch_format(self) -> torch.memory_format:
        """How images should lie in memory for the task network."""
        return memory_format(self.network("task", 0), self.device)

    @cached_property
    def fast_precision(self) -> Precision:
        return fast_precision(self.network("task", 0), self.device)

    def storages(self) -> set[int]:
        """Where the pool's networks keep their weights and buffers now: a task may have given them other tensors."""
        tensors = (t for net in self._networks.values() for t in (*net.parameters(), *net.buffers()))
        return {t.untyped_storage().data_ptr() for t in tensors}

    def optimizer(
        self, kind: Callable[..., Optimizer], nets: Sequence[nn.Module], settings: dict[str, Any], share: float | None = None
    ) -> Optimizer:
        parameters = [p for net in nets for p in net.parameters()]
        now = settings if share is None else {**settings, "lr": settings["lr"] * share}
        if kind not in RECORDABLE:  # how its state begins, and whether all of it lies in `state`, is known to nobody here
            return kind(parameters, **now)
        key = (kind, share is None, *(id(net) for net in nets), *sorted(settings.items()))  # the same in every round of a schedule
        if key not in self._optimizers:
            self._optimizers[key] = kind(
                parameters, **(now if self.graphs is None else recordable(kind, now, self.device, share is not None))
            )
        optimizer = self._optimizers[key]
        if self.graphs is None:
            optimizer.state.clear()
        kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
        if kept:
            torch._foreach_zero_(kept)  # in place: a recorded step knows the addresses; zeros are how these optimisers begin
        renew(optimizer, now)
        return optimizer


class Client:
    """One client during one task."""

    def __init__(
        self,
        holding: Holding,
        task: Task,
        pool: Pool,
        reader: SampleReader,
        rng: torch.Generator,
        pixels: Pixels,
        augment: Augmentation,
        precision: Precision = "fp32",
        recall: Recall = lambda kind: None,
        domains: Sequence[str] = (),
        round: int = 1,
        rounds: int = 1,
    ) -> None:
        self.id, self.task, self.device, self.rng = holding.client, task, pool.device, rng
        self.tell: Callable[[int, int], object] = lambda made, planned: None  # of training batches; replaced by whoever looks on
        self._made_batches = self._planned_batches = 0
        self.round, self.rounds = round, rounds  # 0 is what comes before round 1
        self.remembered: dict[str, Memory] = {}
        self._holding, self._pool, self._reader, self._recall = holding, pool, reader, recall
        self._precision, self._augment = pool.fast_precision if precision == "auto" else precision, augment
        self._built: dict[str, int] = {}
        self._domains = domains or sorted({domain.name for domain, _ in holding.train.parts})  # the run's sources, in their order
        self._mean, self._std = pixels.tensors(pool.device)
        self._format = pool.batch_format  # asked for here: it may build the network, which must not happen on the batches' stream
        self._ahead = Ahead(pool.stream) if pool.stream is not None else None

    @property
    def samples(self) -> int:
        """How many samples this client trains on."""
        return len(self._holding.train)

    def build(self, role: str, state: State) -> Any:
        """The network of that role with these weights, in training mode. Asked twice, it gives two networks."""
        number = self._built.get(role, 0)
        self._built[role] = number + 1
        net = self._pool.network(role, number)
        load_into(net, state)
        net.zero_grad(set_to_none=True)
        return self._pool.trainable(net).train()

    def frozen(self, role: str, state: State | None = None) -> Any:
        """The network of that role with these weights, or with its own pretrained ones, fixed: in evaluation mode, without gradients."""
        net = self._pool.pretrained(role) if state is None else self.build(role, state)
        return net.eval().requires_grad_(False)

    def entries(self, part: Part = "whole", role: str = "task") -> list[str]:
        """The names of a part of a network's state: its parameters, its buffers, its head, its normalisation."""
        return self._pool.entries(role).names(part)

    def optimizer(
        self, kind: Callable[..., Optimizer], net: nn.Module | Sequence[nn.Module], *, share: float | None = None, **settings: Any
    ) -> Any:
        """A fresh optimiser of that kind over the parameters of one network or several.

        `share` is the part of `lr` that a schedule gives this round. On a GPU such a rate is a tensor, which recorded steps read.
        """
        return self._pool.optimizer(kind, [net] if isinstance(net, nn.Module) else list(net), settings, share)

    def stage_channels(self, x: Tensor) -> list[int]:
        """How many channels the task network's maps have after each of its stages: what must be drawn for them, outside a step."""
        return self._pool.stage_channels(x.shape[1:])

    @property
    def recorded_as(self) -> Task:
        """What a recorded step depends on in its client."""
        return self.task

    def step(self, fn: Step) -> Step:
        """A training step in the experiment's precision: as it is on a CPU, recorded and replayed on a GPU.

        What it draws must be drawn outside and given to it; it returns nothing.
        """
        if self._pool.graphs is not None and not self._pool.unaided:
            return self._pool.graphs.replayed(fn, self.autocast)  # type: ignore[return-value]
        if self._precision == "fp32":
            return fn

        def in_precision(*args: Any) -> Any:
            with self.autocast():
                return fn(*args)

        return in_precision  # type: ignore[return-value]

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._precision == "bf16", cache_enabled=self._pool.graphs is None)

    def batches(
        self, *, size: int, epochs: float | None = None, steps: int | None = None, shuffle: bool = True, drop_last: bool = False
    ) -> Iterator[Batch]:
        """Training batches: `epochs` passes, or exactly `steps` full batches that go on into the next pass.

        Of a pass begun but not finished (epochs = 0.4) that share of its full batches is given, at least one. `drop_last` leaves
        out a pass's last, incomplete batch, unless it is the only one. A last batch of a single image is left out in any case: batch
        normalisation has no statistics of one.
        """
        if (epochs is None) == (steps is None):
            raise TypeError("give either epochs or steps")
        train = self._holding.train
        if not len(train):
            return
        self._planned_batches += steps if steps is not None else batches_of(len(train), size, epochs or 0, drop_last)
        if epochs is not None:
            passes, share = divmod(epochs, 1)
            for _ in range(int(passes)):
                for chunk in _chunks(self._order(shuffle), size):
                    if len(chunk) == len(train) or len(chunk) >= (size if drop_last else min(size, 2)):
                        yield self._training_batch(chunk, size)
            if share:
                some = max(1, round(share * (len(train) // size)))
                for chunk in _chunks(self._order(shuffle)[: some * size], size):
                    yield self._training_batch(chunk, size)
            return
        left = torch.empty(0, dtype=torch.long)
        for _ in range(steps or 0):
            while len(left) < size:
                left = torch.cat([left, self._order(shuffle)])
            chunk, left = left[:size], left[size:]
            yield self._training_batch(chunk, size)

    def beside(self, make: Callable[..., Made], *given: Any) -> Made:
        """`make(*given)` of the last batch; on a GPU while the steps before it still run, so it must read nothing that steps change."""
        return make(*given) if self._ahead is None else self._ahead.go_on(partial(make, *given))

    @property
    def domains(self) -> list[str]:
        """The domains of which this client holds training samples, in the order of the run's sources."""
        held = {domain.name for domain, _ in self._holding.train.parts}
        return [name for name in self._domains if name in held]

    def domain_batches(
        self, *, size: int, epochs: float | None = None, steps: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Training batches with equally many samples of each domain that this client holds, and the number of each sample's domain.

        `size` is of all domains together; what does not divide is left out. `epochs` times the client's samples are given, at least a
        batch; a domain that is through begins again. Domains are numbered over all sources of the run, by name.
        """
        if (epochs is None) == (steps is None):
            raise TypeError("give either epochs or steps")
        train = self._holding.train
        part, _ = train.addresses
        numbers = np.array([self._domains.index(domain.name) for domain, _ in train.parts])[part]
        held = [torch.from_numpy(np.flatnonzero(numbers == number)) for number in np.unique(numbers)]
        each = max(1, size // len(held))
        left = [torch.empty(0, dtype=torch.long) for _ in held]
        number_of_batches = steps if steps is not None else max(1, round((epochs or 0) * len(train) / (each * len(held))))
        self._planned_batches += number_of_batches
        for _ in range(number_of_batches):
            for number, own in enumerate(held):
                while len(left[number]) < each:
                    left[number] = torch.cat([left[number], own[torch.randperm(len(own), generator=self.rng)]])
            chunk, left = torch.cat([one[:each] for one in left]), [one[each:] for one in left]
            yield *self._training_batch(chunk, len(chunk)), torch.from_numpy(numbers[chunk.numpy()]).to(self.device, non_blocking=True)

    @property
    def validation_spacing(self) -> Tensor | None:
        """Millimetres per pixel of the validation samples, [n, 2], where they are known."""
        return self._holding.validation.spacing()

    def validation(self, size: int) -> Iterator[Batch]:
        """The validation part, in order, never augmented."""
        part = self._holding.validation
        for chunk in _chunks(torch.arange(len(part)), size):
            yield self._batch(part, chunk)

    def batch_of(self, numbers: int, most: int = 256) -> int:
        """Batch size for a gradient-free pass: images that together hold about `numbers` values."""
        images = next(iter(self._holding.validation.parts or self._holding.train.parts))[0].images
        return max(1, min(most, numbers // int(np.prod(images.shape[1:]))))

    def predict(self, net: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
        """What a network in evaluation mode says of a batch.

        On a GPU a batch short of `size` is filled up: its libraries spend seconds on every shape that is new to them.
        """
        self._pool.whole = True
        said = partial(logits_of, net) if isinstance(net, nn.Module) else net
        if self._pool.graphs is None or len(x) == size:
            return said(x)
        full = x.new_zeros((size, *x.shape[1:])).contiguous(memory_format=torch.channels_last)
        full[: len(x)] = x
        return said(full)[: len(x)]

    @property
    def pixel_range(self) -> tuple[Tensor, Tensor]:
        """What the bytes 0 and 255 are in a network's input, per channel."""
        darkest, brightest = torch.zeros_like(self._mean), torch.ones_like(self._mean)
        return normalise(darkest, self._mean, self._std), normalise(brightest, self._mean, self._std)

    def images(self, size: int) -> Iterator[Tensor]:
        """The training images in order, not augmented: for spectra and statistics."""
        for chunk in _chunks(torch.arange(self.samples), size):
            yield self._batch(self._holding.train, chunk)[0]

    def public(self, name: str, number: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images of a public data set, at most `number`, the same at every client: shuffled, in even batches, each with their places.

        A batch has two images at least, since a single one has no statistics: with `size` 2 an odd number makes one of three.
        A method that asks for them names the set in `Method.public_sets`.
        """
        images = self._public(name, number)
        for places in torch.randperm(len(images), generator=self.rng).tensor_split(min(-(-len(images) // size), len(images) // 2)):
            yield places, self._shown(images[places])

    @torch.no_grad()
    def said_of_public(self, net: nn.Module, name: str, number: int, size: int) -> Tensor:
        """What a network, in evaluation mode, answers to each of them, in their order."""
        net.eval()
        images = self._public(name, number)
        return torch.cat([net(self._shown(part)).float() for part in images.tensor_split(-(-len(images) // size))])

    def _public(self, name: str, number: int) -> Tensor:
        _, channels, height, width = next(iter(self._holding.train.parts or self._holding.validation.parts))[0].images.shape
        return open_public(name, channels, (height, width), number)

    def _shown(self, images: Tensor) -> Tensor:
        return normalise(images.to(self.device) / 255, self._mean, self._std).contiguous(memory_format=self._format)

    def drawn(self, number: int, size: int) -> Iterator[Batch]:
        """So many training samples, or all where there are fewer, drawn without replacement, in even batches of at most `size`."""
        order = self._order(shuffle=True)[:number]
        for chunk in order.tensor_split(-(-len(order) // size)) if len(order) else ():
            yield self._batch(self._holding.train, chunk)

    def remember(self, memory: Memory) -> None:
        """Keep this here for later rounds. It counts once the server accepted this task's answer."""
        if not isinstance(memory, Memory):
            raise TypeError(f"{self.id} is to remember a {type(memory).__name__}; expected a Memory")
        self.remembered[type(memory).__name__] = memory

    def recall(self, kind: type[M]) -> M | None:
        """What this client last remembered of that kind, or None."""
        held = self.remembered.get(kind.__name__)
        return held if isinstance(held, kind) else self._recall(kind)

    def _order(self, shuffle: bool) -> Tensor:
        n = self.samples
        return torch.randperm(n, generator=self.rng) if shuffle else torch.arange(n)

    def _training_batch(self, positions: Tensor, size: int) -> Batch:
        batch = self._batch(self._holding.train, positions, augment=True)
        self._pool.whole = len(positions) == size
        self._made_batches += 1
        self.tell(self._made_batches, self._planned_batches)
        return batch

    def _batch(self, samples: Samples, positions: Tensor, augment: bool = False) -> Batch:
        if self._ahead is None:
            return self._made(samples, positions, augment)
        return self._ahead.make(partial(self._made, samples, positions, augment))

    def _made(self, samples: Samples, positions: Tensor, augment: bool) -> Batch:
        images, y = self._reader.take(samples, positions)
        recipe = self._augment if augment else RECIPES["none"]
        if isinstance(recipe, Augment) and images.shape[1] in (1, 3) and has_kernels(self.device):
            from unseen.data.augment_kernel import augmented_bytes  # takes Triton

            mean, std = (each.expand(1, images.shape[1], 1, 1).contiguous() for each in (self._mean, self._std))
            return augmented_bytes(images.contiguous(memory_format=torch.channels_last), y, mean, std, recipe, self.rng)
        x = images / 255  # bytes to floats in one pass
        if augment:
            x, y = self._augment(x, y, self.rng)
        return normalise(x, self._mean, self._std).contiguous(memory_format=self._format), y


def _chunks(order: Tensor, size: int) -> Iterator[Tensor]:
    return (order[start : start + size] for start in range(0, len(order), size))

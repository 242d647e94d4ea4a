"""What a run leaves, as a person in Python or a notebook holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unseen.data.deployable import Deployable
from unseen.data.domain import normalise
from unseen.errors import BadInput
from unseen.networks.base import Outputs, TaskNet
from unseen.report.collect import Run
from unseen.report.frames import rows_of, to_frame
from unseen.report.tables import Cell, Table, comparison, own_comparison
from unseen.runs.record import Record, Timing
from unseen.runs.selection import DEFAULT_RULE, RULES, source_score
from unseen.state import State
from unseen.world import World

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PixelModel", "Records", "Result"]

_SLACK = 0.5  # how far beyond 0 and 1 an image may reach (interpolation overshoots); normalised images and bytes reach further


class Records(list[Record]):
    """The records of a run, a dictionary for each round. Printed, they say how the run went."""

    def __repr__(self) -> str:
        if not self:
            return "no rounds yet"
        first, last = self[0], self[-1]
        told = [f"{last['metric']} on source validation {_percent(source_score(first))} to {_percent(source_score(last))}"]
        told += [f"on {name} {_percent(first['target'][name].get(last['metric']))} to {_percent(row.get(last['metric']))}"
                 for name, row in last["target"].items() if name in first["target"]]  # fmt: skip
        return f"{len(self)} rounds: {', '.join(told)}. Each is a dictionary: {', '.join(last)}"


class PixelModel(Deployable):
    """A trained network that takes pixels: images [n, channels, height, width] of numbers from 0 to 1, or of bytes.

    It gives logits. The normalisation is inside; `net` is the network itself, which takes normalised images. `full=True` gives features
    and maps beside the logits.
    """

    def __init__(self, net: TaskNet, world: World, about: str) -> None:
        super().__init__(net, world.dataset.pixels)
        self._takes, self._labels, self._about = (world.dataset.channels, *world.dataset.size), world.dataset.task.labels, about

    def forward(self, images: Tensor, full: bool = False) -> Any:
        pixels = self._pixels(images)
        x = normalise(pixels, self.mean, self.std)
        seen: Tensor | Outputs = self.net(x, full=True) if full else self.net(x)
        return seen

    def _pixels(self, images: Tensor) -> Tensor:
        what = f"images [n, {', '.join(map(str, self._takes))}] of numbers from 0 to 1, or of bytes (uint8)"
        if not isinstance(images, Tensor):
            raise BadInput(f"the model was given a {type(images).__name__}; it takes a tensor: {what}")
        if images.ndim != 4 or tuple(images.shape[1:]) != self._takes:
            hint = "; add the first dimension: images[None]" if images.ndim == 3 else ""
            hint = (
                "; put the channels first: images.permute(0, 3, 1, 2)" if images.ndim == 4 and images.shape[3] == self._takes[0] else hint
            )
            raise BadInput(f"the model was given {list(images.shape)}; it takes {what}{hint}")
        if images.dtype == torch.uint8:
            return images / 255
        if not images.is_floating_point():
            raise BadInput(f"the model was given {images.dtype}; it takes {what}")
        if len(images) and not torch.compiler.is_compiling():
            low, high = (float(limit) for limit in images.detach().aminmax())
            if low < -_SLACK or high > 1 + _SLACK:
                raise BadInput(
                    f"the model was given numbers from {low:.3g} to {high:.3g}; it takes {what}. The normalisation is inside: leave it out "
                    "(or use `.net`, which takes normalised images), and divide bytes by 255"
                )
        return images

    def __repr__(self) -> str:
        parameters = sum(p.numel() for p in self.net.parameters())
        gives = f"{len(self._labels)} logits ({', '.join(self._labels[:4])}{', ...' if len(self._labels) > 4 else ''})"
        takes = " x ".join(map(str, self._takes))
        return f"{self._about}: takes images {takes} of numbers from 0 to 1, gives {gives}; {parameters:,} parameters in .net"


@dataclass(frozen=True, repr=False)
class Result:
    """What a run leaves: its records, and the model of its last round.

    `model` predicts from pixels, `best` is the same of the round that source validation picks; `table()` compares, `frame()` is a pandas
    DataFrame with a row for each round, `records` has everything, `state` the weights. A run that was loaded from its folder has no
    images in its `world`.
    """

    world: World
    records: Sequence[Record]
    state: State
    best_state: State | None = None
    about: Mapping[str, Any] = field(default_factory=dict)  # run.json
    timings: Sequence[Timing] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", Records(self.records))

    @property
    def network(self) -> TaskNet:
        """The trained network itself, which takes normalised images: for features, for training on, or for your own module in it."""
        return self._network(self.state)

    @property
    def model(self) -> PixelModel:
        """The model of the last round, ready to predict: it takes images of numbers from 0 to 1, [n, channels, height, width]."""
        return self._model(self.network, len(self.records))

    @property
    def best(self) -> PixelModel:
        """The same of the round that source validation picks."""
        index = RULES["source"].picks(self.records)
        if self.best_state is None or index is None:
            raise BadInput("no client has validation samples, so no round is the best by them; use result.model, of the last round")
        return self._model(self._network(self.best_state), self.records[index]["round"])

    def table(self, rule: str = DEFAULT_RULE) -> Table:
        """The scores on the unseen domain, at the round that this rule picks (last, source, held-out or oracle). It prints as Markdown."""
        return comparison([self._cell], rule)

    def frame(self) -> pd.DataFrame:
        """A row for each round: scores, what travelled, seconds, and every setting (needs `pip install 'unseen[pandas]'`)."""
        return to_frame(rows_of(Run("", dict(self.about), self.records, self.timings)))

    @property
    def _cell(self) -> Cell:
        return Cell.of(str(self.about.get("name", self.world.experiment.name)), self.records)

    def _network(self, state: State) -> TaskNet:
        net = self.world.builders["task"]()
        net.load_state_dict(state)
        assert isinstance(net, TaskNet)
        return net.eval()

    def _model(self, net: TaskNet, number: int) -> PixelModel:
        model = PixelModel(net, self.world, f"{self._cell.method} after round {number} of {len(self.records)}")
        return model.eval()

    def __repr__(self) -> str:
        return "\n  ".join([self._title, *self._scores, self._takes, ".best  .table()  .frame()  .records  .network"])

    @property
    def _takes(self) -> str:
        data = self.world.dataset
        shape = ", ".join(map(str, ("n", data.channels, *data.size)))
        return f".model takes images [{shape}] of numbers from 0 to 1, and gives {data.task.outputs} logits"

    @property
    def _title(self) -> str:
        told = self.about.get("experiment", {})
        unseen = ", ".join(self.records[-1]["target"]) or "nothing"
        data = str(told.get("data", self.world.dataset.name)).removeprefix("memory:")
        return f"{self._cell.method} on {data}, unseen: {unseen}; {len(self.records)} rounds, seed {self.records[-1]['seed']}"

    @property
    def _scores(self) -> list[str]:
        lines = []
        for rule in ("last", "source"):
            index = RULES[rule].picks(self.records)
            if index is None:
                continue
            record = self.records[index]
            unseen = ", ".join(f"{name} {score:.1f} %" for name, score in self._cell.scores(rule).items())
            source = f", sources {_percent(source_score(record))}" if source_score(record) is not None else ""
            heading = {"last": "last round", "source": "best by source validation"}[rule]
            lines.append(f"{heading} ({record['round']}): {record['metric']} {unseen}{source}")
        return lines

    def _repr_html_(self) -> str:
        from html import escape

        tables = [self.table(), own_comparison([self._cell], DEFAULT_RULE)]
        shown = "".join(table._repr_html_() for table in tables if table.columns)
        lines = "".join(f"<div>{escape(line)}</div>" for line in (*self._scores, self._takes))
        return f"<div><b>{escape(self._title)}</b></div>{shown}{lines}"


def _percent(score: float | None) -> str:
    return "–" if score is None else f"{100 * score:.1f} %"

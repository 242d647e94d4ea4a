"""The attacks on weights: images, membership and labels from changes of them, membership from the last model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from unseen.leakage.attempts import Attempt, Outcome, membership_attempt, not_run
from unseen.leakage.changes import WeightChange, changes_in, head_names
from unseen.leakage.intervals import LEVEL, area_under_curve, separation
from unseen.leakage.inversion import MOST_IMAGES, Inverter, Likeness, images_attempt, likeness
from unseen.leakage.labels import few_images_behind, frequencies, labels_by_frequency, overlap, pushed_up
from unseen.leakage.membership import CandidateImages, Prober, candidates, overfitted
from unseen.leakage.playing import SITE, GivenAnswer, Parted, Played, ask_once
from unseen.report.statistics import bootstrap
from unseen.state import State

__all__ = ["OnWeights"]

_MOST_CANDIDATES = 256  # of each kind
_COMPARED = 256  # images that found ones are compared with
_OVERFITTED = 12
_MOST_BEHIND = 8  # images behind a gradient that count as few
_OVERFITTED_IS = f"a network overfitted on {_OVERFITTED} images"
OUT_OF_TIME = "not run: the time was spent; raise --budget"


@dataclass(frozen=True, eq=False)
class Clock:
    """When the meter has to be done."""

    began: float
    seconds: float

    def share(self, part: float) -> float:
        """When a piece of work that may take this part of the time has to end."""
        return min(self.began + self.seconds, time.monotonic() + part * self.seconds)

    @property
    def over(self) -> bool:
        return time.monotonic() > self.began + self.seconds


class OnWeights:
    """Attacks on what left of the task network."""

    def __init__(self, played: Played, parts: Parted, clock: Clock, steps: int, seed: int) -> None:
        self.played, self.parts, self.clock, self._steps, self._seed = played, parts, clock, steps, seed
        world = played.world
        self.task, self.device, self.pixels = world.dataset.task, world.device, world.dataset.pixels
        self._entries = world.entries("task")
        self.prober = Prober(world.builders["task"](), self.task, self.device)
        self._rng = np.random.default_rng(seed)
        self._alone: Likeness | None = None  # the control of the search for images

    @property
    def _train_rows(self) -> np.ndarray:
        return self.played.world.holdings[SITE].train.parts[0][1]

    @cached_property
    def asked_about(self) -> CandidateImages:
        """Images that trained in some round, and images that never did."""
        trained = self._train_rows[self.played.trained] if len(self.played.trained) else self._train_rows
        return self._candidates(trained)

    def _candidates(self, members: np.ndarray) -> CandidateImages:
        others = np.arange(len(self.parts.others))
        return candidates((self.parts.members, members), (self.parts.others, others), self.pixels, _MOST_CANDIDATES, self._rng)

    @cached_property
    def changes(self) -> list[WeightChange]:
        """Of every training task: all that its first answer tells, and of its last what it tells first."""
        found: list[WeightChange] = []
        for path, given in self.played.first.items():
            if given.drawn.batches:
                found += changes_in(given, self._entries.names("parameters"))
                last = self.played.last[path]
                if last is not given:
                    found += list(changes_in(last, self._entries.names("parameters")))[:1]
        return found

    @cached_property
    def _control(self) -> tuple[State, State, CandidateImages]:
        """Weights before and after overfitting a few images, with images that were among them and images that were not."""
        number = min(_OVERFITTED, len(self._train_rows), len(self.parts.others))
        some = candidates(
            (self.parts.members, self._train_rows), (self.parts.others, np.arange(len(self.parts.others))), self.pixels, number, self._rng
        )
        before, build = self.played.world.fresh("task"), self.played.world.builders["task"]
        inside = slice(0, some.members)
        return (
            before,
            overfitted(build, before, self.task, some.images[inside], some.labels[inside], self.device, self.clock.share(0.1)),
            some,
        )

    def _losses(self, state: State, images: CandidateImages) -> np.ndarray:
        return self.prober.losses(state, images.images, images.labels)

    def model_attempts(self) -> Iterator[Attempt]:
        """Membership from the model after the last round, which all sites get."""
        what = f"the model after round {self.played.rounds}"
        scores = -self._losses(self.played.model, self.asked_about)
        _, after, some = self._control
        control = area_under_curve(*some.apart(-self._losses(after, some)))
        found = separation(*self.asked_about.apart(scores), self.asked_about.groups)
        yield membership_attempt(what, "membership: low loss", found, control, _OVERFITTED_IS)

    def change_attempts(self) -> Iterator[Attempt]:
        """Everything that a change of weights is asked for."""
        firsts = {id(given.drawn) for given in self.played.first.values()}
        for change in self.changes:
            if change.empty:
                yield not_run(
                    change.what, "images from the change of weights", "no weight changed, so there is nothing to attack", "guessing"
                )
                continue
            if id(change.drawn) in firsts:
                yield self._images(change)
                yield from self._labels(change)
            yield from self._membership(change)

    def _membership(self, change: WeightChange) -> Iterator[Attempt]:
        """Are the images behind this change told from images that never trained?"""
        last = len(change.drawn.labels[-1]) if change.uphill_of_last_batch else 0
        behind = sorted(set(change.drawn.positions[-last:]))
        images = self._candidates(self._train_rows[np.array(behind)])
        if min(images.members, len(images.rows) - images.members) < 5:
            yield not_run(change.what, "membership: falling loss", "fewer than five images are behind it: see the images that come back")
            return
        before, after, some = self._control
        if not change.uphill_of_last_batch:
            falls = self._losses(change.before, images) - self._losses(change.after, images)
            control = area_under_curve(*some.apart(self._losses(before, some) - self._losses(after, some)))
            found = separation(*images.apart(falls), images.groups)
            yield membership_attempt(change.what, "membership: falling loss", found, control, _OVERFITTED_IS)
        if self.clock.over:
            yield not_run(change.what, "membership: gradient along the change", OUT_OF_TIME)
            return
        others = len(images.rows) - images.members
        order = [n for pair in zip(range(images.members), range(images.members, images.members + others)) for n in pair]
        along = self.prober.alignments(change.before, change.downhill, images.images, images.labels, order, self.clock.share(0.1))
        inside = [value for n, value in along.items() if n < images.members]
        outside = [value for n, value in along.items() if n >= images.members]
        groups = [images.groups[n] for n in sorted(along)] if images.groups is not None else None
        moved = {n: after[n].float() - before[n].float() for n in change.downhill}
        told = self.prober.alignments(before, moved, some.images, some.labels, range(len(some.rows)), float("inf"))
        control = area_under_curve(*some.apart([told[n] for n in range(len(some.rows))]))
        found = separation(inside, outside, groups)
        yield membership_attempt(change.what, "membership: gradient along the change", found, control, _OVERFITTED_IS)

    def _images(self, change: WeightChange) -> Attempt:
        attack = "images from the change of weights"
        if self.clock.over:
            return not_run(change.what, attack, OUT_OF_TIME)
        world = self.played.world
        assert change.drawn.last is not None
        true = (change.drawn.last if change.uphill_of_last_batch else torch.cat(change.drawn.images))[:_COMPARED]
        others = self._as_trained(_COMPARED)
        true = true[: len(others)]
        inverter = Inverter(world.builders["task"](), self.task, self.pixels, tuple(true.shape[1:]), self.device)
        number = min(MOST_IMAGES, len(true), len(others))
        found = self._search(inverter, change.before, change.downhill, number, self._length(change))
        alike = likeness(found, true, others)
        behind = f"{len(set(change.drawn.positions))} images in {change.drawn.batches} steps are behind it"
        if change.uphill_of_last_batch:
            behind = f"{len(true)} images of the last batch are behind it"
        control = self._single_images(inverter, change.before, others)
        if inverter.cut_short:
            behind += "; the search was cut short, raise --budget"
        return images_attempt(change.what, alike, control, behind)

    def _search(self, inverter: Inverter, state: State, downhill: State, number: int, length: float | None) -> Tensor:
        labels = None
        bias = self._head(downhill)[1]
        if self.task.name == "classification" and bias is not None:
            labels = labels_by_frequency(frequencies(bias, length), number)
        return inverter.images(state, downhill, number, labels, self._steps, self._seed, self.clock.share(0.12))

    def _single_images(self, inverter: Inverter, state: State, others: Tensor) -> Likeness:
        """The control: one image, one plain step."""
        if self._alone is not None:
            return self._alone
        inside, outside, hits, share = list[float](), list[float](), 0, 0.0
        for number in range(2):
            x, y = self.asked_about.images[number : number + 1], self.asked_about.labels[number : number + 1]
            found = self._search(inverter, state, inverter.gradient(state, x, y), 1, 1.0)
            alike = likeness(found, x, others)
            inside, outside, hits, share = inside + alike.inside, outside + alike.outside, hits + alike.hits, alike.share
        self._alone = Likeness(inside, outside, hits, share, 1.0)
        return self._alone

    def _as_trained(self, number: int) -> Tensor:
        """Images that never trained, augmented as those that did."""
        rows = self._rng.permutation(len(self.parts.others))[:number]
        x = torch.from_numpy(np.asarray(self.parts.others.images)[rows]).float() / 255
        y = torch.from_numpy(np.asarray(self.parts.others.labels)[rows])
        moved, _ = self.played.world.augment(x, y, torch.Generator().manual_seed(self._seed))
        return self.pixels.normalised(moved)

    def _head(self, state: State) -> tuple[Tensor | None, Tensor | None]:
        weight, bias = head_names([n for n in self._entries.names("head") if n in state], state)
        return state[weight] if weight else None, state[bias] if bias else None

    def _length(self, change: WeightChange) -> float | None:
        """Learning rate times steps, which the settings tell."""
        method = self.played.world.experiment.method
        rate = getattr(method, "lr", None) or getattr(method, "lr_f", None)
        if not rate or change.uphill_of_last_batch:
            return None
        schedule, rounds = getattr(method, "schedule", None), self.played.world.experiment.rounds
        return float(rate) * change.drawn.batches * (schedule.share(change.round, rounds) if schedule else 1.0)

    def _labels(self, change: WeightChange) -> Iterator[Attempt]:
        weight, bias = self._head(change.downhill)
        if self.task.name != "classification" or bias is None or len(bias) != self.task.outputs:
            return
        if weight is not None and (change.uphill_of_last_batch or change.drawn.batches == 1):
            yield self._few(change, weight, bias)
        if not change.uphill_of_last_batch:
            yield self._shares(change, bias)

    def _few(self, change: WeightChange, weight: Tensor, bias: Tensor) -> Attempt:
        rank, largest = few_images_behind(weight)
        true = {int(y) for y in change.drawn.labels[-1]}
        outcome: Outcome = "better" if 0 < rank < largest and rank <= _MOST_BEHIND else "guessing"
        verdict = "no better than guessing: as many images may be behind it as could be"
        if outcome == "better":
            read = pushed_up(bias)
            right = "as they are" if read == true else f"in truth {sorted(true)}"
            verdict = f"better than guessing: {rank} images are behind it, with the labels {sorted(read)}, {right}"
        return Attempt(change.what, "how many images are behind it", outcome, verdict, "rank", float(rank), baseline=float(largest))

    def _shares(self, change: WeightChange, bias: Tensor) -> Attempt:
        classes, even = self.task.outputs, np.full(self.task.outputs, 1 / self.task.outputs)
        labels = torch.cat(change.drawn.labels).numpy()
        read = frequencies(bias, self._length(change))

        def shares(of: np.ndarray) -> np.ndarray:
            return np.bincount(of, minlength=classes) / len(of)

        def common(drawn: np.ndarray) -> dict[str, float]:
            here = shares(labels[drawn])
            return {"value": overlap(read, here), "gain": overlap(read, here) - overlap(even, here)}

        value, guess = overlap(read, shares(labels)), overlap(even, shares(labels))
        intervals = bootstrap(common, len(labels), level=LEVEL)
        control = self._one_class(change)
        better = ("gain" in intervals and intervals["gain"][0] > 0) or (len(labels) == 1 and value > 0.9)
        outcome: Outcome = "better" if better else "guessing"
        verdict = (
            "better than guessing: the classes' shares can be read" if better else "no better than guessing that all classes are alike"
        )
        if not better and guess > 0.95:
            verdict += "; here they nearly are"
        if not better and control is not None and control < 1.5 / classes:
            outcome, verdict = "silent", "the attack fails even with a single class, so this row says nothing"
        low, high = intervals.get("value", (None, None))
        attack, told = "classes' shares from the last layer", "the same question, images of one class"
        return Attempt(change.what, attack, outcome, verdict, "overlap", value, low, high, guess, control, told)

    def _one_class(self, change: WeightChange) -> float | None:
        """The control: the same question, answered with images of the most frequent class alone."""
        classes = np.asarray(self.parts.members.labels)[self._train_rows]
        most = int(np.bincount(classes).argmax())
        given: GivenAnswer = next(g for g in self.played.first.values() if g.drawn is change.drawn)
        again = ask_once(self.played, given, np.flatnonzero(classes == most))
        for alone in changes_in(again, self._entries.names("parameters")):
            bias = self._head(alone.downhill)[1]
            if bias is not None:
                return float(frequencies(bias, self._length(alone))[most])
        return None

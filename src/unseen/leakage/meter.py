"""The leakage meter: the study is played at the site, and what left is attacked as a curious server could attack it.

The server knows its questions, the study's settings and its seed, so it also knows which image by number trained in which step. It does not
know the images.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from unseen.data.domain import Domain, DomainDataset
from unseen.errors import BadInput
from unseen.experiment import Experiment
from unseen.federation.site.policy import Policy
from unseen.leakage.attempts import WORDS, Attempt, Outcome, membership_attempt, not_run
from unseen.leakage.changes import changes_in
from unseen.leakage.intervals import CHANCE, LEVEL, alike_by_chance, area_under_curve, separation
from unseen.leakage.inversion import correlation_interval
from unseen.leakage.membership import calibrated
from unseen.leakage.on_weights import OUT_OF_TIME, Clock, OnWeights
from unseen.leakage.playing import SITE, GivenAnswer, Parted, Played, part, play, rows_of
from unseen.leakage.spectra import banks_in, likeness_of_shapes, nearest_window, retrieved, whole_spectrum, window_of
from unseen.payload import OF_A_NETWORK, carried, declarations

__all__ = ["Leakage", "LeftField", "measure"]

_SHADOWS = 4
_SHAPES = 4  # images whose phases are searched
_ALIKE = 0.9


@dataclass(frozen=True)
class LeftField:
    """A field of an answer that left."""

    task: str
    field: str
    kind: str
    network: str  # of which it holds weights
    bytes: int  # of one answer
    times: int
    grows: bool
    held_back: bool  # the site's policy would not let it out


@dataclass(frozen=True)
class Leakage:
    """What the meter found."""

    study: str
    method: str
    data: str
    task: str
    images: dict[str, int]  # how many trained, validated, never trained, stood in for another site
    rounds: int
    planned: int
    ended: str
    noise: str
    left: list[LeftField]
    attempts: list[Attempt]
    seconds: float

    @property
    def worst(self) -> Outcome:
        return next((o for o in WORDS if any(a.outcome == o for a in self.attempts) and o != "clear"), "untried")

    @property
    def headline(self) -> str:
        """What was found, in one sentence."""
        hits = list(dict.fromkeys(a.attack for a in self.attempts if a.outcome == self.worst))
        told = {
            "images": "Images of this site come back from what leaves it.",
            "better": f"What leaves tells a curious server more than guessing would: {'; '.join(hits)}.",
            "guessing": "No attack did better than guessing. That is no proof that none can.",
            "silent": "Nothing was learned: the attacks fail even where they must succeed, or there was no time for them.",
            "untried": "Nothing that left could be attacked.",
            "clear": "",
        }
        return told[self.worst]

    def values(self) -> dict[str, Any]:
        return {"headline": self.headline, "worst": self.worst, "level": LEVEL, **asdict(self)}


def measure(
    experiment: Experiment,
    dataset: DomainDataset,
    *,
    policy: Policy | None = None,
    rounds: int | None = None,
    budget: float = 300.0,
    seed: int = 0,
    steps: int = 300,
    shadows: int = _SHADOWS,
    say: Callable[[str], None] = lambda text: None,
) -> Leakage:
    """Play the study on the one domain of `dataset` and attack what left. `budget` is in seconds, half of it for the rounds.

    `steps` are those of one search for images, `shadows` the models that the last one is compared with.
    """
    clock, threads = Clock(time.monotonic(), budget), torch.get_num_threads()
    try:
        parts = part(experiment, dataset, seed)
        say(f"playing {experiment.rounds if rounds is None else min(rounds, experiment.rounds)} rounds on {len(parts.members)} images")
        privacy = policy.privacy if policy is not None else None
        played = play(experiment, dataset, parts, privacy=privacy, rounds=rounds, seconds=0.5 * budget)
        if not played.rounds:
            raise BadInput(f"not one round could be played: {played.ended}")
        attempts: list[Attempt] = []
        for attempt in _attempts(played, parts, clock, steps, shadows, seed, policy):
            attempts.append(attempt)
            say(f"{attempt.what}: {attempt.attack}: {WORDS[attempt.outcome]}")
    finally:
        torch.set_num_threads(threads)
    held, left = played.world.holdings[SITE], _left(played, policy)
    return Leakage(
        study=experiment.label or experiment.name,
        method=experiment.name,
        data=dataset.name,
        task=dataset.task.name,
        images={
            "trained": len(held.train),
            "validated": len(held.validation),
            "never trained": len(parts.others),
            "of a stand-in site": len(parts.stand_in) if parts.stand_in is not None else 0,
        },
        rounds=played.rounds,
        planned=experiment.rounds,
        ended=played.ended,
        noise=f"clip {privacy.clip:g}, noise {privacy.noise:g}" if privacy is not None and privacy.on else "",
        left=left,
        attempts=[_with_policy(attempt, left) for attempt in attempts],
        seconds=time.monotonic() - clock.began,
    )


def _left(played: Played, policy: Policy | None) -> list[LeftField]:
    rows = []
    for path, given in played.first.items():
        told = declarations(type(given.up))
        for one in carried(given.up):
            if one.bytes:
                of = told[one.field]
                network = f"{of.role}, {of.part}" if of.kind in OF_A_NETWORK else ""
                back = policy is not None and (one.kind not in policy.kinds or (one.grows and not policy.fields_that_grow))
                rows.append(LeftField(path, one.field, one.kind, network, one.bytes, played.times[path], one.grows, back))
    return rows


def _with_policy(attempt: Attempt, left: list[LeftField]) -> Attempt:
    """An attack on what the site's policy would hold back says so."""
    back = any(row.held_back and attempt.what.startswith(f"{row.task}.{row.field},") for row in left)
    return replace(attempt, verdict=f"{attempt.verdict}; the site's policy would not let it out") if back else attempt


def _attempts(played: Played, parts: Parted, clock: Clock, steps: int, shadows: int, seed: int, policy: Policy | None) -> Iterator[Attempt]:
    on_weights = OnWeights(played, parts, clock, steps, seed)
    yield from on_weights.change_attempts()
    yield from on_weights.model_attempts()
    yield _calibrated(on_weights, shadows, seed, policy)
    for given in played.first.values():
        yield from _spectra(given, on_weights, seed)
    yield from _in_the_clear(played)


def _calibrated(on: OnWeights, shadows: int, seed: int, policy: Policy | None) -> Attempt:
    """Membership from the last model against models of the same study that were trained on other halves of the images."""
    what, attack = f"the model after round {on.played.rounds}", "membership: loss against other models"
    parts, world = on.parts, on.played.world
    number = min(shadows, int((on.clock.share(0.25) - time.monotonic()) / max(on.played.seconds, 1e-3)))
    if number < 2:
        return not_run(what, attack, OUT_OF_TIME)
    pool = _together(parts.members, parts.others)
    rows = on.asked_about.rows + np.where(np.arange(len(on.asked_about.rows)) < on.asked_about.members, 0, len(parts.members))
    rng, told = np.random.default_rng([seed, 1]), []
    for shadow in range(number):
        chosen = np.sort(rng.permutation(len(pool))[: len(parts.members)])
        again = replace(world.experiment, seed=world.experiment.seed + 1 + shadow)
        other = Parted(rows_of(pool, chosen, SITE), parts.others, parts.stand_in)
        data = replace(world.dataset, domains=(other.members,))
        made = play(again, data, other, privacy=policy.privacy if policy else None, rounds=on.played.rounds)
        seen = chosen[made.world.holdings[SITE].train.parts[0][1]]
        told.append((on.prober.losses(made.model, on.asked_about.images, on.asked_about.labels), np.isin(rows, seen)))
    scores = calibrated(on.prober.losses(on.played.model, on.asked_about.images, on.asked_about.labels), told)
    found = separation(*on.asked_about.apart(scores), on.asked_about.groups)
    return membership_attempt(f"{what}, {number} others", attack, found, None, "")


def _together(one: Domain, other: Domain) -> Domain:
    groups = np.concatenate([one.groups, other.groups]) if one.groups is not None and other.groups is not None else None
    return Domain("pool", np.concatenate([one.images, other.images]), np.concatenate([one.labels, other.labels]), groups)


def _spectra(given: GivenAnswer, on: OnWeights, seed: int) -> Iterator[Attempt]:
    for name, bank in banks_in(given.up):
        what = f"{given.task}.{name}, {given.when}: {len(bank)} windows of {bank[0].numel()} numbers"
        inside, outside = on.asked_about.apart(nearest_window(on.asked_about.images, bank))
        exact = window_of(on.asked_about.images[: on.asked_about.members], tuple(bank.shape))
        control = area_under_curve(*on.asked_about.apart(nearest_window(on.asked_about.images, exact)))
        found = separation(inside, outside, on.asked_about.groups)
        yield membership_attempt(what, "membership: the nearest spectrum", found, control, "one exact window of each image")
        yield _phases(what, bank.double(), on, seed)


def _phases(what: str, bank: torch.Tensor, on: OnWeights, seed: int) -> Attempt:
    """Images from amplitudes. An answer may hold fewer windows than images; each found image is compared with all that trained."""
    attack = "images from amplitudes"
    if on.clock.over:
        return not_run(what, attack, OUT_OF_TIME)
    rng, size = np.random.default_rng(seed), on.played.world.dataset.size
    std = torch.tensor(on.pixels.std).view(-1, 1, 1).double()
    grey = (on.pixels.restored(on.asked_about.images)).mean(1).double().numpy()
    inside, outside = grey[: on.asked_about.members], grey[on.asked_about.members :]
    until = on.clock.share(0.1)

    def found(window: torch.Tensor) -> Any:
        return retrieved(whole_spectrum((window * std).mean(0).numpy(), size), rng, until)

    number = min(len(inside), len(outside))
    images = [found(window) for window in bank[:: max(1, len(bank) // _SHAPES)][:_SHAPES]]
    pool = np.concatenate([inside[:number], outside[:number]])
    table = np.array([[likeness_of_shapes(image, true) for true in pool] for image in images])
    alike, guess = (side.max(1).tolist() for side in (table[:, :number], table[:, number:]))
    until = on.clock.share(0.05)
    whole = (2 * ((size[0] - 1) // 2) + 1, (size[1] - 1) // 2 + 1)
    x = on.asked_about.images[on.asked_about.members]
    control = likeness_of_shapes(found(window_of(x, whole)), outside[0])
    low, high = correlation_interval(alike)
    back = sum(a >= _ALIKE and 1 - a <= 0.5 * (1 - b) for a, b in zip(alike, guess, strict=True))
    outcome: Outcome = "images" if back else "better" if alike_by_chance(table, number) < CHANCE else "guessing"
    verdict = {
        "images": f"images come back: {back} of the {len(images)} that were searched",
        "better": "better than guessing: what is found resembles images that trained more than others",
        "guessing": "no better than guessing: what is found resembles other images as much",
    }[outcome]
    if outcome == "guessing" and control < _ALIKE:
        outcome, verdict = "silent", "the attack fails even with the whole spectrum of one image, so this row says nothing"
    mean = sum(alike) / len(alike)
    told = "the whole spectrum of one image"
    return Attempt(what, attack, outcome, verdict, "correlation", mean, low, high, sum(guess) / len(guess), control, told)


def _in_the_clear(played: Played) -> Iterator[Attempt]:
    """Numbers that leave as they are, and what no attack here is made for."""
    for path, given in played.first.items():
        told = declarations(type(given.up))
        attacked = {n for n, _ in banks_in(given.up)}
        names = played.world.entries("task").names("parameters")
        attacked |= {
            f for c in (changes_in(given, names) if given.drawn.batches else ()) for f in c.what.split(",")[0].split(".")[-1].split("+")
        }
        for one in carried(given.up):
            what, of = f"{path}.{one.field}, {given.when}", told[one.field]
            if not one.bytes or one.field in attacked:
                continue
            if of.kind in ("count", "number"):
                value = getattr(given.up, one.field)
                verdict = f"leaves in the clear: {value:g}"
                yield Attempt(what, "read", "clear", verdict, of.kind, float(value))
            else:
                network = f" ({of.role})" if of.kind in OF_A_NETWORK and of.role != "task" else ""
                yield not_run(what, "none", f"leaves, not attacked: a {of.kind}{network}", "untried")

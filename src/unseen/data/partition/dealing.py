"""The machinery behind every partition: from shares to holdings, under the rules that `partition` states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unseen.data.domain import Domain, Holding, Partition, Samples
from unseen.data.partition.split import Index, apportion, class_codes, group_codes, histogram, split
from unseen.errors import BadInput
from unseen.randomness import derived

__all__ = ["ShareRule", "Shares", "dealing", "holding"]

Shares = NDArray[np.float64]  # [clients, domains] or [clients, classes of a domain]; every column adds up to 1
ShareRule = Callable[[Index], Shares]  # from the domains' training sizes
Parts = list[tuple[Domain, Index]]


@dataclass(frozen=True, eq=False)
class _DealtDomain:
    """One domain and, sample by sample, who has it: `owner`, the one thing that changes here."""

    domain: Domain
    train: Index
    validation: Index
    units: Index  # what stays together
    owner: Index  # number of the client, -1 where a sample is in neither part

    def held(self, clients: int) -> Index:
        """How many training samples each client has."""
        return np.bincount(self.owner[self.train], minlength=clients)


def dealing(plan: ShareRule, validation: float, minimum: int, concentration: float | None = None) -> Partition:
    if minimum < 1:
        raise BadInput(f"the minimum of samples per client is {minimum}; expected at least 1")
    if not 0 <= validation < 1:
        raise BadInput(f"validation share is {validation}; expected a number from 0 to below 1, such as 0.1")

    def partition(sources: Sequence[Domain], seed: int) -> tuple[Holding, ...]:
        _refuse_unusable(sources, skewed=concentration is not None)
        parts = [split(domain, validation, seed) for domain in sources]
        shares = plan(np.array([len(train) for train, _ in parts]))
        if concentration is not None:
            _refuse_unshared(shares, sources)
        dealt = [
            _dealt(domain, *part, shares[:, number], concentration, np.random.default_rng(derived(seed, "deal", domain.name)))
            for number, (domain, part) in enumerate(zip(sources, parts, strict=True))
        ]
        _reach_minimum(dealt, shares > 0, minimum, np.random.default_rng(derived(seed, "minimum")))
        return _holdings(dealt, len(shares))

    return partition


def _refuse_unusable(sources: Sequence[Domain], skewed: bool) -> None:
    problems = [] if sources else ["no source domain to deal out; a fold needs at least one"]
    problems += [f"two source domains are named {name!r}" for name, times in Counter(d.name for d in sources).items() if times > 1]
    problems += [f"domain {d.name!r} has no samples" for d in sources if not len(d)]
    if skewed and any(d.labels.ndim > 1 for d in sources):
        problems.append("a Dirichlet partition skews classes, and segmentation has none; use per-domain, split, dial or pooled")
    if problems:
        raise BadInput(problems)


def _refuse_unshared(shares: Shares, sources: Sequence[Domain]) -> None:
    lone = [domain.name for domain, sharers in zip(sources, (shares > 0).sum(0), strict=True) if sharers < 2]
    if lone:
        raise BadInput(
            f"Dirichlet skews labels between the clients of a domain, but with {len(shares)} clients {', '.join(lone)} would have only "
            f"one; give at least {2 * len(sources)} clients, or mix the domains: 'dial:0.5+dirichlet:0.3'"
        )


def _dealt(
    domain: Domain, train: Index, validation: Index, share: Shares, concentration: float | None, rng: np.random.Generator
) -> _DealtDomain:
    classes, units = class_codes(domain), group_codes(domain)
    number = int(classes.max()) + 1
    by_class = np.repeat(share[:, None], number, axis=1) if concentration is None else _skewed(share, number, concentration, rng)
    used = np.concatenate([train, validation])
    # A stratum is a class of one part: training and validation are dealt by the same shares, each for itself.
    stratum = classes[used] + number * np.repeat([0, 1], [len(train), len(validation)])
    shares = np.hstack([by_class, by_class])
    owner = np.full(len(domain), -1)
    owner[used] = _deal_samples(stratum, shares, rng) if domain.groups is None else _deal_groups(stratum, units[used], shares, rng)
    return _DealtDomain(domain, train, validation, units, owner)


def _skewed(share: Shares, classes: int, concentration: float, rng: np.random.Generator) -> Shares:
    """Shares per class, drawn around `share`: [clients, classes]. Who has no share of the domain gets none of any class."""
    drawn = np.zeros((len(share), classes))
    parameters = concentration * np.count_nonzero(share) * share
    sharers = np.flatnonzero(parameters)
    drawn[sharers] = rng.dirichlet(parameters[sharers], size=classes).T
    return drawn


def _deal_samples(stratum: Index, shares: Shares, rng: np.random.Generator) -> Index:
    owner = np.empty(len(stratum), dtype=np.int64)
    clients, strata = shares.shape
    owed = np.zeros((2, clients))  # from roundings in earlier classes of the same part, so that they do not add up
    for number in range(strata):
        members = rng.permutation(np.flatnonzero(stratum == number))
        quota = shares[:, number] * len(members)
        given = apportion(quota, rng, owed[2 * number // strata])
        owed[2 * number // strata] += quota - given
        owner[members] = np.repeat(np.arange(clients), given)
    return owner


def _deal_groups(stratum: Index, units: Index, shares: Shares, rng: np.random.Generator) -> Index:
    """Large groups first, each to the client for whom it reduces the squared distance to the wanted counts most."""
    present, unit = np.unique(units, return_inverse=True)
    content = histogram(unit.reshape(-1), stratum)
    strata = content.shape[1]
    missing = shares[:, :strata] * content.sum(0)  # adds up to what is still to be dealt, so somebody always misses some of it
    order = rng.permutation(len(present))
    receiver = np.empty(len(present), dtype=np.int64)
    for group in order[np.argsort(-content.sum(1)[order], kind="stable")]:
        receiver[group] = (missing @ content[group]).argmax()
        missing[receiver[group]] -= content[group]
    return receiver[unit.reshape(-1)]


def _reach_minimum(dealt: Sequence[_DealtDomain], may_hold: NDArray[np.bool_], minimum: int, rng: np.random.Generator) -> None:
    clients = len(may_hold)
    while True:
        total = np.sum([one.held(clients) for one in dealt], axis=0)
        poor = int(total.argmin())
        if total[poor] >= minimum:
            return
        spare = total - minimum
        if not any(_give(dealt, may_hold, int(giver), poor, int(spare[giver]), rng) for giver in np.argsort(-total, kind="stable")):
            raise BadInput(
                f"{clients} clients with at least {minimum} training samples each cannot be made from {total.sum()} here: one "
                f"({_domains_of(dealt, may_hold[poor])}) is left with {total[poor]} and none of the others can give; use fewer clients, a "
                "smaller minimum or more mixing"
            )


def _domains_of(dealt: Sequence[_DealtDomain], may_hold: NDArray[np.bool_]) -> str:
    """Whose samples a client may hold, with how many there are to train on."""
    return ", ".join(f"{one.domain.name}: {len(one.train)}" for one, may in zip(dealt, may_hold, strict=True) if may)


def _give(dealt: Sequence[_DealtDomain], may_hold: NDArray[np.bool_], giver: int, poor: int, spare: int, rng: np.random.Generator) -> bool:
    """Move the giver's smallest unit of training samples that it can spare, ties by chance; False if it has none."""
    for number in rng.permutation(np.flatnonzero(may_hold[poor] & may_hold[giver])):
        one = dealt[number]
        units, sizes = np.unique(one.units[one.train][one.owner[one.train] == giver], return_counts=True)
        if len(sizes) and sizes.min() <= spare:
            chosen = rng.choice(units[sizes == sizes.min()])
            one.owner[(one.units == chosen) & (one.owner >= 0)] = poor
            return True
    return False


# Holdings


def _holdings(dealt: Sequence[_DealtDomain], clients: int) -> tuple[Holding, ...]:
    """In the order of their names, which is the order in which the server asks them."""
    owners = [(one.domain.name, set(one.owner[one.owner >= 0].tolist())) for one in dealt]
    names = _client_names([[name for name, owner in owners if client in owner] for client in range(clients)])
    made = []
    for client, name in enumerate(names):
        train = [(one.domain, one.train[one.owner[one.train] == client]) for one in dealt]
        validation = [(one.domain, one.validation[one.owner[one.validation] == client]) for one in dealt]
        made.append(holding(name, train, validation))
    return tuple(sorted(made, key=lambda one: one.client))


def holding(client: str, train: Parts, validation: Parts) -> Holding:
    """A holding without empty parts; `domain` joins the names of all that it holds samples of, in the order of the alphabet."""
    held = sorted({domain.name for domain, index in train + validation if len(index)})
    full = [Samples(tuple((domain, index) for domain, index in parts if len(index))) for parts in (train, validation)]
    return Holding(client, "+".join(held), *full)


def _client_names(contents: Sequence[Sequence[str]]) -> list[str]:
    """The domain's name for a client that holds one whole domain, else numbered: photo-00, mixed-03; 'pooled' for one of all.

    >>> _client_names([["photo"], ["sketch"], ["sketch"], ["photo", "art"]])
    ['photo-00', 'sketch-00', 'sketch-01', 'mixed-00']
    >>> _client_names([["photo"], ["sketch"]])
    ['photo', 'sketch']
    """
    if len(contents) == 1 and len(contents[0]) > 1:
        return ["pooled"]
    sharers = Counter(name for names in contents for name in names)
    stems = [names[0] if len(names) == 1 else "mixed" for names in contents]
    last = Counter(stems)
    names, used = [], Counter[str]()
    for stem, content in zip(stems, contents, strict=True):
        width = max(2, len(str(last[stem] - 1)))
        whole = len(content) == 1 and sharers[stem] == 1
        names.append(stem if whole else f"{stem}-{used[stem]:0{width}d}")
        used[stem] += 1
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise BadInput(f"two clients would be called {', '.join(map(repr, twice))}; rename the domain of that name")
    return names

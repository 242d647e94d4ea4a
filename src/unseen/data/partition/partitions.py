"""Who holds what: the samples of the source domains, dealt out to clients.

Every partition works in the same three steps, and only ever gets the sources, so a target cannot reach it.

1. Each domain is split into training and validation (see `split`) before anything is dealt. Under one seed all
   partitions therefore train and validate on the same samples, `pooled` included, and differ only in who holds them.
2. Each domain is dealt to its clients by their shares of it, class by class, training and validation alike. Each count is
   the exact share rounded down or up. Where groups are known (patient, slide, volume) a group goes to one client whole, to
   the one whose counts then stay nearest to its shares.
3. A client with fewer training samples than the minimum takes some, a sample or a group at a time, chosen by chance from
   the client that has most, of a domain in which both have a share; the giver never falls below the minimum itself. Draws
   are not repeated until they fit, because that would bend the distribution for every client. BadInput if nobody can give.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unseen.data.domain import Domain, Holding, Partition, Samples
from unseen.data.partition.dealing import ShareRule, Shares, dealing, holding
from unseen.data.partition.split import Index
from unseen.errors import BadInput, nearest
from unseen.own_code import Own, telling_where

__all__ = [
    "Count",
    "by_name",
    "counts",
    "dial",
    "dirichlet",
    "draw",
    "from_json",
    "own_partition",
    "partition_hash",
    "per_domain",
    "pooled",
    "split_domains",
    "to_json",
]

_NAMES = ("per-domain", "split", "dial:0.5", "dirichlet:0.3", "dial:0.5+dirichlet:0.3", "pooled")


def per_domain(validation: float = 0.1, minimum: int = 2) -> Partition:
    """One client per domain."""
    return dealing(lambda sizes: np.eye(len(sizes)), validation, minimum)


def pooled(validation: float = 0.1, minimum: int = 2) -> Partition:
    """All sources in one client, which makes federated averaging the centralised upper bound."""
    return dealing(lambda sizes: np.ones((1, len(sizes))), validation, minimum)


def split_domains(clients: int, validation: float = 0.1, minimum: int = 2) -> Partition:
    """Several clients per domain, alike in their classes: `clients` in all, the same number in each domain.

    Where the number does not divide, the largest domains have one client more.
    """
    _refuse_too_few(clients, 1)
    return dealing(lambda sizes: _even(clients, sizes), validation, minimum)


def dial(clients: int, mixing: float, validation: float = 0.1, minimum: int = 2) -> Partition:
    """From domain-pure (mixing 0) to homogeneous (1), for any number of clients.

    At 0 no client holds two domains if there are at least as many clients as domains: after one client each, the next one
    joins the domain with most samples per client. With fewer clients every domain lies whole at one client, the largest
    domain first, each to the client with the fewest samples. At 1 every client has the same share of every domain. In
    between, the shares are (1 - mixing) times the first plus mixing times the second (Bai et al., "Benchmarking algorithms
    for federated domain generalization", ICLR 2024, where mixing is lambda).
    """
    _refuse_too_few(clients, 1)
    return dealing(_dialled(clients, mixing), validation, minimum)


def dirichlet(clients: int, concentration: float, validation: float = 0.1, minimum: int = 2, *, mixing: float | None = None) -> Partition:
    """Label skew inside each domain: how a class of a domain falls to the domain's K clients is drawn from a Dirichlet.

    The clients are those of `split_domains`, with Dirichlet(concentration, ..., concentration) for each class; with
    `mixing`, those of `dial`, whose shares s are then the mean of the draw: Dirichlet(concentration * K * s).
    """
    _refuse_too_few(clients, 2)
    if not 1e-6 <= concentration <= 1e6:
        raise BadInput(f"the Dirichlet concentration is {concentration}; expected a number from 1e-6 to 1e6, such as 0.3")
    plan: ShareRule = (lambda sizes: _even(clients, sizes)) if mixing is None else _dialled(clients, mixing)
    return dealing(plan, validation, minimum, concentration)


def by_name(spec: str, *, clients: int | None, validation: float, minimum: int = 2) -> Partition:
    """A partition as configuration writes it: per-domain, split, dial:0.5, dirichlet:0.3, dial:0.5+dirichlet:0.3, pooled, file:PATH."""
    if spec.startswith("file:"):
        return _saved(Path(spec.removeprefix("file:")))
    settings = _read_spec(spec)
    if settings.keys() & {"per-domain", "pooled"}:
        if clients is not None:
            raise BadInput(f"clients is {clients}, but partition {spec!r} decides their number itself; leave clients out, or use 'split'")
        return (pooled if "pooled" in settings else per_domain)(validation, minimum)
    if clients is None:
        raise BadInput(f"partition {spec!r} needs the number of clients; give clients")
    if "dirichlet" in settings:
        return dirichlet(clients, settings["dirichlet"], validation, minimum, mixing=settings.get("dial"))
    if "dial" in settings:
        return dial(clients, settings["dial"], validation, minimum)
    return split_domains(clients, validation, minimum)


def own_partition(own: Own, clients: int | None) -> Partition:
    """A user's own (sources, seed) -> holdings, in the order of their names. What it returns is checked."""
    if clients is not None:
        raise BadInput(f"clients is {clients}, but {own} decides their number itself; leave clients out")

    def partition(sources: Sequence[Domain], seed: int) -> tuple[Holding, ...]:
        with telling_where(f"{own} failed"):
            made = own(sources, seed)
        if not isinstance(made, list | tuple) or not made or not all(isinstance(one, Holding) for one in made):
            raise BadInput(f"{own} returned a {type(made).__name__}; expected a list of unseen.data.Holding, one for each client")
        checked = from_json(to_json(made), sources)  # what is refused of a saved partition is refused here
        return tuple(sorted(checked, key=lambda one: one.client))

    return partition


def _saved(path: Path) -> Partition:
    """A partition that was saved: the same holdings, whatever the seed."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"the partition {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{path} is no saved partition: {error}") from None
    if not isinstance(document, dict):
        raise BadInput(f"{path} is no saved partition; `unseen data partition --out FILE` writes one")
    return lambda sources, seed: from_json(document, sources)


def _read_spec(spec: str) -> dict[str, float]:
    """The names in a specification with their numbers (nan for none)."""
    pieces = [piece.strip().partition(":") for piece in spec.split("+")]
    settings = {}
    for name, colon, text in pieces:
        takes_number = name in ("dial", "dirichlet")
        if not takes_number and name not in _NAMES:
            raise BadInput(f"no partition {spec!r}{nearest(spec, _NAMES)}")
        if takes_number != bool(colon):
            example = next(known for known in _NAMES if known.startswith(name))
            raise BadInput(f"partition {spec!r}: {name} takes {'a' if takes_number else 'no'} number; write {example!r}")
        settings[name] = _number(text, spec) if takes_number else math.nan
    if len(pieces) > 1 and (len(pieces) > 2 or settings.keys() != {"dial", "dirichlet"}):
        raise BadInput(f"partition {spec!r}: only dial and dirichlet go together, once each; write 'dial:0.5+dirichlet:0.3'")
    return settings


def _number(text: str, spec: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"partition {spec!r}: {text!r} is not a number") from None


def _refuse_too_few(clients: int, least: int) -> None:
    if clients < least:
        raise BadInput(f"clients is {clients}; expected at least {least}")


# Shares: which part of which domain falls to which client


def _even(clients: int, sizes: Index) -> Shares:
    if clients < len(sizes):
        raise BadInput(f"{clients} clients cannot each have one of {len(sizes)} domains; give at least {len(sizes)}, or use 'dial:0'")
    each, over = divmod(clients, len(sizes))
    number = np.full(len(sizes), each)
    number[np.argsort(-sizes, kind="stable")[:over]] += 1
    return _teams(number)


def _dialled(clients: int, mixing: float) -> ShareRule:
    if not 0 <= mixing <= 1:
        raise BadInput(f"the dial's mixing is {mixing}; expected a number from 0 (domain-pure) to 1 (homogeneous)")
    return lambda sizes: (1 - mixing) * _pure(clients, sizes) + mixing / clients


def _pure(clients: int, sizes: Index) -> Shares:
    if clients >= len(sizes):
        number = np.ones(len(sizes), dtype=np.int64)
        for _ in range(clients - len(sizes)):
            number[np.argmax(sizes / number)] += 1
        return _teams(number)
    shares, load = np.zeros((clients, len(sizes))), np.zeros(clients)
    for domain in np.argsort(-sizes, kind="stable"):
        client = load.argmin()
        shares[client, domain] = 1
        load[client] += sizes[domain]
    return shares


def _teams(number: Index) -> Shares:
    """Domain d is shared evenly by `number[d]` clients that hold nothing else."""
    domain_of_client = np.repeat(np.arange(len(number)), number)
    return np.eye(len(number))[domain_of_client] / number


# A partition as a value


class Count(NamedTuple):
    """How many samples of one class of one domain a client holds. Masks have no class: label None."""

    client: str
    domain: str
    label: int | None
    train: int
    validation: int


def to_json(holdings: Sequence[Holding]) -> dict[str, Any]:
    """The exact indices of every client, and the sizes of the domains they were drawn from."""
    sizes = {domain.name: len(domain) for one in holdings for part in (one.train, one.validation) for domain, _ in part.parts}
    clients = [{"client": one.client, "train": _index_lists(one.train), "validation": _index_lists(one.validation)} for one in holdings]
    return {"domains": sizes, "clients": clients}


def _index_lists(samples: Samples) -> list[dict[str, Any]]:
    return [{"domain": domain.name, "index": index.tolist()} for domain, index in samples.parts]


def partition_hash(holdings: Sequence[Holding]) -> str:
    """SHA-256 over clients, domains and exact indices: equal if and only if every client holds the same samples in the same order."""
    document = to_json(sorted(holdings, key=lambda one: one.client))
    document["domains"] = dict(sorted(document["domains"].items()))
    return hashlib.sha256(json.dumps(document, separators=(",", ":")).encode()).hexdigest()


def from_json(document: Mapping[str, Any], domains: Sequence[Domain]) -> tuple[Holding, ...]:
    """The holdings that `to_json` wrote, over these domains, which must be the same data: names, sizes, no sample twice."""
    known = {domain.name: domain for domain in domains}
    for name, size in _entry(document, "domains", dict, "the partition").items():
        if name not in known:
            raise BadInput(f"the partition holds domain {name!r}, which is no source here{nearest(name, known)}")
        if size != len(known[name]):
            raise BadInput(f"the partition was made for {size} samples of {name!r}, which now has {len(known[name])}; make it again")
    free = {name: np.ones(len(domain), dtype=bool) for name, domain in known.items()}
    made: dict[str, Holding] = {}
    for number, entry in enumerate(_entry(document, "clients", list, "the partition")):
        name = _entry(entry, "client", str, f"client {number} of the partition")
        parts = {
            part: [_read_part(item, known, free, f"{part} of {name!r}") for item in _entry(entry, part, list, f"client {name!r}")]
            for part in ("train", "validation")
        }
        if name in made:
            raise BadInput(f"the partition has two clients named {name!r}")
        made[name] = holding(name, parts["train"], parts["validation"])
        if not len(made[name].train):
            raise BadInput(f"client {name!r} of the partition has no training samples")
    if not made:
        raise BadInput("the partition has no clients")
    return tuple(made.values())


def _entry(table: Any, key: str, kind: type, where: str) -> Any:
    value = table.get(key) if isinstance(table, Mapping) else None
    if not isinstance(value, kind):
        raise BadInput(f"{where} has no {key} ({kind.__name__}); expected what to_json wrote")
    return value


def _read_part(item: Any, known: Mapping[str, Domain], free: Mapping[str, NDArray[np.bool_]], where: str) -> tuple[Domain, Index]:
    name, index = _entry(item, "domain", str, where), _entry(item, "index", list, where)
    if name not in known:
        raise BadInput(f"{where} is of domain {name!r}, which is no source here{nearest(name, known)}")
    wrong = [i for i in index if type(i) is not int or not 0 <= i < len(known[name])]
    if wrong:
        raise BadInput(f"{where} names sample {wrong[0]!r} of {name!r}; expected a whole number from 0 to {len(known[name]) - 1}")
    positions = np.array(index, dtype=np.int64)
    taken = positions[~free[name][positions]]
    free[name][positions] = False
    if len(taken) or len(set(index)) < len(index):
        raise BadInput(f"{where} names a sample of {name!r} that is already held; every sample belongs to one client and one part")
    return known[name], positions


def counts(holdings: Iterable[Holding]) -> list[Count]:
    """Who holds how much of which class and domain, one row for each combination that occurs."""
    rows = []
    for one in holdings:
        train, validation = _tally(one.train), _tally(one.validation)
        keys = sorted(train.keys() | validation.keys(), key=lambda key: (key[0], -1 if key[1] is None else key[1]))
        rows += [Count(one.client, *key, train.get(key, 0), validation.get(key, 0)) for key in keys]
    return rows


def _tally(samples: Samples) -> dict[tuple[str, int | None], int]:
    tally: dict[tuple[str, int | None], int] = {}
    for domain, index in samples.parts:
        if domain.labels.ndim > 1:
            tally[domain.name, None] = tally.get((domain.name, None), 0) + len(index)
            continue
        for label, number in zip(*np.unique(domain.labels[index], return_counts=True), strict=True):
            tally[domain.name, int(label)] = tally.get((domain.name, int(label)), 0) + int(number)
    return tally


def draw(holdings: Sequence[Holding], classes: Sequence[str]) -> str:
    """A picture for the terminal: a line per client and domain, a bar per class. `classes` is empty for segmentation."""
    rows = counts(holdings)
    full = max((row.train for row in rows), default=0)
    width = max([len(classes), *(row.label + 1 for row in rows if row.label is not None)])
    lines = [("client", "domain", "train", "val", "")]
    for client, domain in dict.fromkeys((row.client, row.domain) for row in rows):
        here = [row for row in rows if (row.client, row.domain) == (client, domain)]
        bars = ["·"] * max(width, 1)
        for row in here:
            bars[row.label or 0] = _bar(row.train, full)
        lines.append((client, domain, str(sum(r.train for r in here)), str(sum(r.validation for r in here)), "".join(bars)))
    wide = [max(len(line[column]) for line in lines) for column in range(4)]
    table = [f"{c:<{wide[0]}}  {d:<{wide[1]}}  {t:>{wide[2]}}  {v:>{wide[3]}}  {bars}".rstrip() for c, d, t, v, bars in lines]
    named = ", ".join(classes) if len(classes) <= 12 else f"{len(classes)} classes from {classes[0]} to {classes[-1]}"
    return "\n".join([*table, f"bars: {named or 'all samples'}; █ is {full} training samples, · is none"])


def _bar(number: int, full: int) -> str:
    return "▁▂▃▄▅▆▇█"[math.ceil(8 * number / full) - 1] if number else "·"

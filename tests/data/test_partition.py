"""A partition by name and as a value: saved, hashed, counted, drawn, read back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.data.domain import Domain, Holding, Samples
from unseen.data.partition.partitions import (
    Count,
    by_name,
    counts,
    dial,
    dirichlet,
    draw,
    from_json,
    partition_hash,
    per_domain,
    split_domains,
    to_json,
)
from unseen.errors import BadInput

SPECS = ("per-domain", "split", "dial:0.5", "dirichlet:0.3", "dial:0.5+dirichlet:0.3", "pooled")


def domain(name: str, size: int, classes: int = 3) -> Domain:
    return Domain(name, np.zeros((size, 1, 1, 1), np.uint8), np.arange(size) % classes)


SOURCES = [domain("photo", 60), domain("art", 45)]


def made(spec: str, seed: int = 0) -> tuple[Holding, ...]:
    return by_name(spec, clients=None if spec in ("per-domain", "pooled") else 4, validation=0.1)(SOURCES, seed)


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("per-domain", per_domain(0.1)),
        ("split", split_domains(4, 0.1)),
        ("dial:0.5", dial(4, 0.5, 0.1)),
        ("dirichlet:0.3", dirichlet(4, 0.3, 0.1)),
        ("dial:0.5+dirichlet:0.3", dirichlet(4, 0.3, 0.1, mixing=0.5)),
        (" dirichlet:3e-1 + dial:.5", dirichlet(4, 0.3, 0.1, mixing=0.5)),
    ],
)
def test_a_name_makes_the_partition_it_says(spec: str, same: Any) -> None:
    assert partition_hash(made(spec)) == partition_hash(same(SOURCES, 0))


@pytest.mark.parametrize(
    ("spec", "clients", "message"),
    [
        ("per-domian", None, "did you mean 'per-domain'"),
        ("zebra", 3, "there are: dial:0.5, dial:0.5\\+dirichlet:0.3, dirichlet:0.3, per-domain, pooled, split"),
        ("", 3, "there are"),
        ("dirichlt:0.3", 3, "did you mean 'dirichlet:0.3'"),
        ("dial", 3, "dial takes a number; write 'dial:0.5'"),
        ("split:3", 3, "split takes no number; write 'split'"),
        ("dial:x", 3, "'x' is not a number"),
        ("dial:", 3, "'' is not a number"),
        ("dial:1.5", 3, "from 0 \\(domain-pure\\) to 1"),
        ("dial:nan", 3, "from 0 \\(domain-pure\\) to 1"),
        ("dirichlet:0", 3, "from 1e-6 to 1e6"),
        ("dirichlet:-1", 3, "from 1e-6 to 1e6"),
        ("dirichlet:inf", 3, "from 1e-6 to 1e6"),
        ("dial:0.5+dial:0.5", 3, "only dial and dirichlet go together"),
        ("dial:0.5+dirichlet:1+dirichlet:2", 3, "only dial and dirichlet go together"),
        ("per-domain+dirichlet:0.3", 3, "only dial and dirichlet go together"),
        ("dial:0.5", None, "needs the number of clients"),
        ("split", None, "needs the number of clients"),
        ("split", 0, "at least 1"),
        ("dirichlet:0.3", 1, "at least 2"),
        ("per-domain", 3, "leave clients out"),
        ("pooled", 3, "leave clients out"),
    ],
)
def test_a_wrong_name_says_what_would_be_right(spec: str, clients: int | None, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        by_name(spec, clients=clients, validation=0.1)


@given(spec=st.text(alphabet="dialrchet:+.-0159 ", max_size=30), clients=st.none() | st.integers(-1, 9))
def test_any_text_is_a_partition_or_bad_input(spec: str, clients: int | None) -> None:
    try:
        by_name(spec, clients=clients, validation=0.1)
    except BadInput as bad:
        assert str(bad)


@pytest.mark.parametrize("spec", SPECS)
def test_wrong_shares_and_minimums_are_refused_when_it_is_built(spec: str) -> None:
    clients = None if spec in ("per-domain", "pooled") else 4
    with pytest.raises(BadInput, match="validation share is 1"):
        by_name(spec, clients=clients, validation=1.0)
    with pytest.raises(BadInput, match="minimum of samples per client is 0"):
        by_name(spec, clients=clients, validation=0.1, minimum=0)


@pytest.mark.parametrize("spec", SPECS)
def test_same_seed_same_partition_and_another_otherwise(spec: str) -> None:
    assert partition_hash(made(spec, 1)) == partition_hash(made(spec, 1))
    assert partition_hash(made(spec, 1)) != partition_hash(made(spec, 2))


def test_a_further_source_does_not_move_the_others() -> None:
    def holdings_of_photo(sources: list[Domain]) -> str:
        return partition_hash([one for one in per_domain()(sources, 3) if one.client == "photo"])

    assert holdings_of_photo(SOURCES[:1]) == holdings_of_photo(SOURCES)


def one_client(index: list[int], name: str = "c", source: Domain = SOURCES[0]) -> Holding:
    return Holding(name, source.name, Samples(((source, np.array(index)),)), Samples(()))


def test_the_hash_is_of_clients_domains_and_exact_indices() -> None:
    base = partition_hash([one_client([0, 1, 2])])
    different = [one_client([0, 1, 3]), one_client([0, 2, 1]), one_client([0, 1]), one_client([0, 1, 2], "d")]
    different.append(one_client([0, 1, 2], source=SOURCES[1]))
    assert len({base, *(partition_hash([one]) for one in different)}) == 6
    first, second = one_client([0, 1], "a"), one_client([2, 3], "b")
    assert partition_hash([first, second]) == partition_hash([second, first])
    moved = Holding("c", "photo", Samples(((SOURCES[0], np.array([0, 1])),)), Samples(((SOURCES[0], np.array([2])),)))
    assert partition_hash([moved]) != base


@given(spec=st.sampled_from(SPECS), seed=st.integers(0, 50), data=st.data())
def test_the_hash_changes_when_one_index_moves(spec: str, seed: int, data: st.DataObject) -> None:
    holdings = made(spec, seed)
    document = to_json(holdings)
    entry = data.draw(st.sampled_from(document["clients"]))
    side = data.draw(st.sampled_from([side for side in ("train", "validation") if entry[side]]))
    other = "validation" if side == "train" else "train"
    part = data.draw(st.sampled_from(entry[side]))
    moved = part["index"].pop(data.draw(st.integers(0, len(part["index"]) - 1)))
    entry[other].append({"domain": part["domain"], "index": [moved]})
    if any(part["index"] for part in entry["train"]):
        assert partition_hash(from_json(document, SOURCES)) != partition_hash(holdings)


@given(spec=st.sampled_from(SPECS), seed=st.integers(0, 50))
def test_json_round_trip(spec: str, seed: int) -> None:
    holdings = made(spec, seed)
    back = from_json(json.loads(json.dumps(to_json(holdings))), SOURCES)
    assert partition_hash(back) == partition_hash(holdings)
    assert [(one.client, one.domain) for one in back] == [(one.client, one.domain) for one in holdings]
    assert counts(back) == counts(holdings)


def saved(**changes: Any) -> dict[str, Any]:
    client = {"client": "a", "train": [{"domain": "photo", "index": [0, 1]}], "validation": [{"domain": "photo", "index": [2]}], **changes}
    return {"domains": {"photo": 60}, "clients": [client]}


def part(*index: object, name: str = "photo") -> list[dict[str, Any]]:
    return [{"domain": name, "index": list(index)}]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (saved(train=part(0, name="phto")), "'phto', which is no source here; did you mean 'photo'"),
        ({**saved(), "domains": {"sketch": 3}}, "'sketch', which is no source here"),
        ({**saved(), "domains": {"photo": 61}}, "made for 61 samples of 'photo', which now has 60"),
        (saved(train=part(60)), "sample 60 of 'photo'; expected a whole number from 0 to 59"),
        (saved(train=part(-1)), "sample -1"),
        (saved(train=part(True)), "sample True"),
        (saved(train=part("0")), "sample '0'"),
        (saved(train=part(10**30)), "sample 1000"),
        (saved(train=part(0, 0)), "already held"),
        (saved(train=part(2)), "already held"),
        (saved(train=[]), "no training samples"),
        (saved(train=None), "client 'a' has no train"),
        (saved(client=3), "client 0 of the partition has no client"),
        (saved(train=[7]), "train of 'a' has no domain"),
        ({**saved(), "clients": []}, "no clients"),
        ({**saved(), "clients": [saved()["clients"][0], {"client": "a", "train": part(5), "validation": []}]}, "two clients named 'a'"),
        ({**saved(), "clients": [saved()["clients"][0], {"client": "b", "train": part(1), "validation": []}]}, "already held"),
        ({}, "the partition has no domains"),
        ([], "the partition has no domains"),
    ],
)
def test_a_damaged_file_is_refused(document: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        from_json(document, SOURCES)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just("photo"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["domains", "clients", "client", "train", "validation", "domain", "index", "photo"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(clients=anything, domains=anything | st.just({"photo": 60}))
def test_any_json_is_a_partition_or_bad_input(clients: Any, domains: Any) -> None:
    try:
        from_json({"domains": domains, "clients": [clients]}, SOURCES)
    except BadInput as bad:
        assert str(bad)


def test_counts_by_hand() -> None:
    first, second = domain("photo", 6), domain("art", 3)
    holding = Holding(
        "m", "photo+art", Samples(((first, np.array([0, 3, 1])), (second, np.array([2])))), Samples(((first, np.array([4])),))
    )
    assert counts([holding]) == [Count("m", "art", 2, 1, 0), Count("m", "photo", 0, 2, 0), Count("m", "photo", 1, 1, 1)]


def test_counts_of_segmentation_have_no_class() -> None:
    site = Domain("site", np.zeros((5, 1, 2, 2), np.uint8), np.zeros((5, 1, 2, 2), np.uint8))
    rows = counts([Holding("s", "site", Samples(((site, np.arange(4)),)), Samples(((site, np.array([4])),)))])
    assert rows == [Count("s", "site", None, 4, 1)]
    assert (
        draw([Holding("s", "site", Samples(((site, np.arange(4)),)), Samples(()))], ()).splitlines()[1] == "s       site        4    0  █"
    )


def test_the_picture_by_hand() -> None:
    source = domain("photo", 12, classes=3)
    small = Holding("photo-00", "photo", Samples(((source, np.array([0])),)), Samples(()))
    large = Holding("photo-01", "photo", Samples(((source, np.array([3, 6, 1, 4, 7, 10])),)), Samples(((source, np.array([2])),)))
    assert draw([small, large], ("dog", "cat", "owl")).splitlines() == [
        "client    domain  train  val",
        "photo-00  photo       1    0  ▂··",
        "photo-01  photo       6    1  ▄█·",
        "bars: dog, cat, owl; █ is 4 training samples, · is none",
    ]


def test_many_classes_are_not_all_named() -> None:
    assert draw([one_client([0])], [f"c{i}" for i in range(65)]).splitlines()[-1].startswith("bars: 65 classes from c0 to c64;")

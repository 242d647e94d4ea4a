"""Statistics of every partition against its definition."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from unseen.data.domain import Domain, Holding, Partition, Samples
from unseen.data.partition.partitions import dial, dirichlet, per_domain, pooled, split_domains
from unseen.errors import BadInput


def domain(name: str, labels: np.ndarray, groups: np.ndarray | None = None) -> Domain:
    return Domain(name, np.zeros((len(labels), 1, 1, 1), np.uint8), labels, groups)


def sized(**sizes: int) -> list[Domain]:
    return [domain(name, np.arange(size) % 3) for name, size in sizes.items()]


def held(samples: Samples) -> dict[str, list[int]]:
    return {part.name: index.tolist() for part, index in samples.parts}


def mix(holding: Holding) -> dict[str, int]:
    return {name: len(index) for name, index in held(holding.train).items()}


def label_shares(holdings: tuple[Holding, ...], classes: int) -> np.ndarray:
    """[clients, classes]: which part of each class every client got."""
    table = np.array([np.bincount(one.train.classes(), minlength=classes) for one in holdings])
    return np.asarray(table / table.sum(0))


# No sample lost or twice, nobody empty, groups whole: whatever the data and the partition

a_domain = st.tuples(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=4, max_size=40), st.booleans())
some_domains = st.lists(a_domain, min_size=1, max_size=4).map(
    lambda rows: [
        domain(f"d{number}", np.array([label for label, _ in pairs]), np.array([f"p{g}" for _, g in pairs]) if grouped else None)
        for number, (pairs, grouped) in enumerate(rows)
    ]
)


@st.composite
def partitions(pick: st.DrawFn) -> tuple[Partition, int]:
    """Any partition, with its minimum."""
    share, least = pick(st.sampled_from([0.0, 0.1, 0.3])), pick(st.integers(1, 4))
    clients, mixing, concentration = pick(st.integers(2, 9)), pick(st.floats(0, 1)), pick(st.floats(0.05, 10))
    made = (
        per_domain(share, least),
        pooled(share, least),
        split_domains(clients, share, least),
        dial(clients, mixing, share, least),
        dirichlet(clients, concentration, share, least),
        dirichlet(clients, concentration, share, least, mixing=mixing),
    )
    return pick(st.sampled_from(made)), least


@settings(max_examples=300)
@given(sources=some_domains, partition_and_minimum=partitions(), seed=st.integers(0, 1000))
def test_no_sample_is_lost_or_twice_and_groups_stay_whole(
    sources: list[Domain], partition_and_minimum: tuple[Partition, int], seed: int
) -> None:
    partition, minimum = partition_and_minimum
    try:
        holdings = partition(sources, seed)
    except BadInput:
        return  # too few samples or groups; that possible ones succeed is tested below
    seen: Counter[tuple[str, int]] = Counter()
    place: dict[tuple[str, str], tuple[str, str]] = {}  # group -> client and part
    for one in holdings:
        assert len(one.train) >= minimum
        assert one.domain == "+".join(sorted(held(one.train).keys() | held(one.validation).keys()))
        for part, samples in (("train", one.train), ("validation", one.validation)):
            for source, index in samples.parts:
                assert len(index) and index.dtype == np.int64
                seen.update((source.name, i) for i in index.tolist())
                for group in () if source.groups is None else source.groups[index].tolist():
                    assert place.setdefault((source.name, group), (one.client, part)) == (one.client, part)
    assert seen == {(source.name, i): 1 for source in sources for i in range(len(source))}
    names = [one.client for one in holdings]
    assert names == sorted(set(names))


@given(
    sizes=st.lists(st.integers(60, 120), min_size=1, max_size=4),
    clients=st.integers(8, 12),
    seed=st.integers(0, 99),
    mixing=st.none() | st.floats(0.1, 1),
)
def test_a_minimum_that_is_possible_is_reached(sizes: list[int], clients: int, seed: int, mixing: float | None) -> None:
    sources = [domain(f"d{n}", np.arange(size) % 4) for n, size in enumerate(sizes)]
    holdings = dirichlet(clients, 0.05, 0.1, minimum=4, mixing=mixing)(sources, seed)
    assert len(holdings) == clients
    assert min(len(one.train) for one in holdings) >= 4


def test_taking_for_the_minimum_leaves_the_other_clients_alone() -> None:
    sources = [domain("a", np.arange(400) % 4)]
    seed = next(s for s in range(99) if min(len(h.train) for h in dirichlet(8, 0.1, 0, minimum=1)(sources, s)) < 3)
    before, after = (dirichlet(8, 0.1, 0, minimum=m)(sources, seed) for m in (1, 3))
    changed = [b.client for b, a in zip(before, after, strict=True) if held(b.train) != held(a.train)]
    largest = max(before, key=lambda one: len(one.train)).client
    assert set(changed) == {largest} | {one.client for one in before if len(one.train) < 3}


def test_minimum_that_cannot_be_reached() -> None:
    with pytest.raises(BadInput, match="5 clients with at least 3 training samples each cannot be made from 14"):
        split_domains(5, 0, 3)(sized(a=14), 0)
    with pytest.raises(BadInput, match=r"one \(a: 4\) is left with 4"):  # b's samples do not help a's client: domains stay pure
        per_domain(0, 5)(sized(a=4, b=100), 0)
    one_patient = domain("a", np.arange(30) % 3, np.full(30, "p"))
    with pytest.raises(BadInput, match="none of the others can give"):
        split_domains(2, 0)([one_patient], 0)


# The dial


@given(sizes=st.lists(st.integers(20, 90), min_size=1, max_size=4), clients=st.integers(1, 7), seed=st.integers(0, 99))
def test_dial_at_1_gives_everyone_the_overall_mix(sizes: list[int], clients: int, seed: int) -> None:
    sources = [domain(f"d{n}", np.arange(size) % 5) for n, size in enumerate(sizes)]
    holdings = dial(clients, 1, 0.2)(sources, seed)
    assert len(holdings) == clients
    for part in ("train", "validation"):
        for source in sources:
            sizes_here = [len(held(getattr(one, part)).get(source.name, [])) for one in holdings]
            assert max(sizes_here) - min(sizes_here) <= 1
            classes = [Counter(source.labels[held(getattr(one, part)).get(source.name, [])].tolist()) for one in holdings]
            assert all(max(c[k] for c in classes) - min(c[k] for c in classes) <= 1 for k in range(5))


@given(sizes=st.lists(st.integers(30, 90), min_size=1, max_size=5), clients=st.integers(1, 9), seed=st.integers(0, 99))
def test_dial_at_0_is_pure(sizes: list[int], clients: int, seed: int) -> None:
    sources = [domain(f"d{n}", np.arange(size) % 2) for n, size in enumerate(sizes)]
    holdings = dial(clients, 0, 0)(sources, seed)
    assert len(holdings) == clients
    if clients >= len(sources):
        assert all(len(mix(one)) == 1 for one in holdings)
    else:
        assert sorted(name for one in holdings for name in mix(one)) == [source.name for source in sources]
        assert all(mix(one)[source.name] == len(source) for source in sources for one in holdings if source.name in mix(one))


@given(pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=30, max_size=60), seed=st.integers(0, 99))
def test_groups_do_not_break_purity(pairs: list[tuple[int, int]], seed: int) -> None:
    labels, patients = np.array([label for label, _ in pairs]), np.array([f"p{p % 7}" for _, p in pairs])
    sources = [domain("a", labels, patients), domain("b", labels[::-1], patients)]
    try:
        holdings = dial(4, 0, 0.2, minimum=1)(sources, seed)
    except BadInput:
        return  # all in one group
    assert all(len(mix(one)) == 1 for one in holdings)


def test_dial_by_hand() -> None:
    # 3 clients, 2 domains: a has 120 per client, b 30, so the third client joins a. At 0.5: a: 0.5/2 + 0.5/3 and 0.5/3.
    holdings = dial(3, 0.5, 0)(sized(a=120, b=30), 0)
    assert [mix(one) for one in holdings] == [{"a": 50, "b": 5}, {"a": 50, "b": 5}, {"a": 20, "b": 20}]


def test_dial_with_fewer_clients_than_domains_by_hand() -> None:
    # largest first to the client with least: d 9 | c 8 -> c 8 + b 7 -> d 9 + a 5
    holdings = dial(2, 0, 0)(sized(a=5, b=7, c=8, d=9), 0)
    assert [mix(one) for one in holdings] == [{"a": 5, "d": 9}, {"b": 7, "c": 8}]
    assert [one.client for one in holdings] == ["mixed-00", "mixed-01"]


@given(mixing=st.floats(0, 1), clients=st.integers(2, 6))
def test_turning_the_dial_interpolates_between_its_ends(mixing: float, clients: int) -> None:
    sources = sized(a=900, b=600)
    tables = [
        np.array(
            [[mix(one).get(name, 0) for name in "ab"] for one in sorted(dial(clients, m, 0)(sources, 0), key=lambda h: -mix(h).get("a", 0))]
        )
        for m in (0, mixing, 1)
    ]
    assert np.abs(tables[1] - ((1 - mixing) * tables[0] + mixing * tables[2])).max() <= 2.5  # roundings of all three


# Dirichlet


def test_dirichlet_proportions_have_its_mean_variance_and_distribution() -> None:
    # FedGCA's setting: one source, 10 clients, 0.3. 5 classes of 400 samples, so that rounding is small.
    sources = [domain("a", np.repeat(np.arange(5), 400))]
    drawn = np.array([label_shares(dirichlet(10, 0.3, 0, minimum=1)(sources, seed), 5) for seed in range(300)])
    proportions = drawn.transpose(0, 2, 1).reshape(-1, 10)  # 1500 draws of a Dirichlet over 10 clients
    law = stats.dirichlet(np.full(10, 0.3))
    assert np.abs(proportions.mean(0) - law.mean()).max() < 4 * np.sqrt(law.var()[0] / len(proportions))
    assert np.abs(proportions.var(0) / law.var() - 1).max() < 0.2
    # the marginal of one client is Beta(0.3, 2.7); below 1/400 counts are rounded, so compare above
    grid = np.array([0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8])
    found = (proportions[:, :, None] <= grid).mean((0, 1))
    assert np.abs(found - stats.beta(0.3, 2.7).cdf(grid)).max() < 0.02


def test_dirichlet_over_a_dial_keeps_the_dials_shares_as_its_mean() -> None:
    sources = [domain("a", np.repeat(np.arange(4), 300)), domain("b", np.repeat(np.arange(4), 300))]
    of_a = []
    for seed in range(300):
        holdings = dirichlet(2, 1.0, 0, minimum=1, mixing=0.4)(sources, seed)
        owner_of_a = np.array([np.bincount(sources[0].labels[held(one.train).get("a", [])], minlength=4) for one in holdings]) / 300
        of_a.append(owner_of_a[0])
    shares = np.array(of_a).ravel()  # Dirichlet(1 * 2 * (0.8, 0.2)), whose first part is Beta(1.6, 0.4)
    assert abs(shares.mean() - 0.8) < 0.03
    assert abs(shares.var() / stats.beta(1.6, 0.4).var() - 1) < 0.2


def test_large_concentration_is_even_and_small_is_not() -> None:
    sources = [domain("a", np.repeat(np.arange(5), 100))]
    assert np.abs(label_shares(dirichlet(4, 1e6, 0)(sources, 0), 5) - 0.25).max() < 0.011
    assert label_shares(dirichlet(4, 0.01, 0)(sources, 0), 5).max(0).min() > 0.9


def test_validation_is_dealt_by_the_same_proportions_as_training() -> None:
    holdings = dirichlet(5, 0.5, 0.3, minimum=1)([domain("a", np.repeat(np.arange(4), 1000))], 1)
    train, validation = (
        np.array([np.bincount(samples.classes(), minlength=4) for samples in part])
        for part in ([h.train for h in holdings], [h.validation for h in holdings])
    )
    assert np.abs(train / 700 - validation / 300).max() < 1 / 700 + 1 / 300


def test_dirichlet_with_groups_follows_the_draw_as_whole_groups_allow() -> None:
    labels = np.repeat(np.arange(4), 500)
    with_groups = domain("a", labels, np.array([f"p{i // 5}" for i in range(2000)]))
    for seed in range(5):
        one, other = (dirichlet(5, 0.5, 0, minimum=1)([source], seed) for source in (domain("a", labels), with_groups))
        assert np.abs(label_shares(one, 4) - label_shares(other, 4)).max() < 0.02


@pytest.mark.parametrize(("clients", "mixing"), [(5, None), (2, 0.0)])
def test_dirichlet_needs_two_clients_in_every_domain(clients: int, mixing: float | None) -> None:
    with pytest.raises(BadInput, match="would have only one; give at least 6 clients"):
        dirichlet(clients, 0.3, mixing=mixing)(sized(a=50, b=50, c=40), 0)


# Several clients per domain, names, segmentation


def test_split_gives_every_domain_the_same_number_of_clients() -> None:
    holdings = split_domains(5, 0)(sized(photo=40, sketch=60), 0)
    assert [(one.client, mix(one)) for one in holdings] == [
        ("photo-00", {"photo": 20}),
        ("photo-01", {"photo": 20}),
        *((f"sketch-0{i}", {"sketch": 20}) for i in range(3)),
    ]
    with pytest.raises(BadInput, match="1 clients cannot each have one of 2 domains"):
        split_domains(1)(sized(a=20, b=20), 0)


def test_names_sort_by_number() -> None:
    holdings = split_domains(101, 0, minimum=1)(sized(a=300), 0)
    assert [one.client for one in holdings][::50] == ["a-000", "a-050", "a-100"]
    assert [one.client for one in dial(3, 1, 0)(sized(a=30, b=30), 0)] == ["mixed-00", "mixed-01", "mixed-02"]


def test_a_whole_domain_gives_the_client_its_name() -> None:
    assert [one.client for one in per_domain()(sized(sketch=20, art=20), 0)] == ["art", "sketch"]
    assert [one.client for one in pooled()(sized(sketch=20, art=20), 0)] == ["pooled"]
    with pytest.raises(BadInput, match="two clients would be called 'a-00'"):
        split_domains(3, 0)(sized(**{"a": 40, "a-00": 20}), 0)


def test_pooled_trains_on_what_the_clients_of_any_partition_train_on_together() -> None:
    sources = sized(a=57, b=83)
    whole = held(pooled(0.3)(sources, 5)[0].train)
    for partition in (per_domain(0.3), split_domains(7, 0.3), dial(5, 0.4, 0.3), dirichlet(4, 0.5, 0.3)):
        together = [held(one.train) for one in partition(sources, 5)]
        assert {name: sorted(i for part in together for i in part.get(name, [])) for name in "ab"} == whole


@pytest.mark.parametrize("grouped", [False, True])
def test_segmentation_works_where_no_labels_are_needed(grouped: bool) -> None:
    volumes = np.array([f"v{i // 4}" for i in range(40)]) if grouped else None
    site = Domain("site", np.zeros((40, 1, 2, 2), np.uint8), np.zeros((40, 2, 2, 2), np.uint8), volumes)
    for partition in (per_domain(), pooled(), split_domains(3), dial(3, 0.5)):
        assert sum(len(one.train) + len(one.validation) for one in partition([site], 0)) == 40
    with pytest.raises(BadInput, match="segmentation has none"):
        dirichlet(2, 0.3)([site], 0)


def test_samples_in_no_official_part_are_dealt_to_nobody() -> None:
    parts = np.array(["train", "val", "test", "train"] * 10)
    source = Domain("a", np.zeros((40, 1, 1, 1), np.uint8), np.arange(40) % 2, None, parts)
    holdings = split_domains(2)([source], 0)
    assert sorted(i for one in holdings for i in held(one.train)["a"]) == np.flatnonzero(parts == "train").tolist()
    assert sorted(i for one in holdings for i in held(one.validation)["a"]) == np.flatnonzero(parts == "val").tolist()


def test_a_patient_on_both_sides_of_an_official_list_stays_with_one_client() -> None:
    patients, parts = np.array([f"p{i // 4}" for i in range(80)]), np.array(["train", "train", "val", "test"] * 20)
    source = Domain("a", np.zeros((80, 1, 1, 1), np.uint8), np.arange(80) % 3, patients, parts)
    of = [{p for samples in (one.train, one.validation) for p in patients[held(samples)["a"]]} for one in split_domains(4)([source], 0)]
    assert sum(map(len, of)) == len(set.union(*of)) == 20


@pytest.mark.parametrize(
    ("sources", "message"),
    [([], "no source domain"), (sized(a=5) * 2, "two source domains are named 'a'"), ([domain("a", np.arange(0))], "'a' has no samples")],
)
def test_unusable_sources_are_refused(sources: list[Domain], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        pooled()(sources, 0)

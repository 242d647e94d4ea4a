"""Training and validation: official lists, else stratified, with groups whole."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen.data.domain import Domain
from unseen.data.partition.split import apportion, split
from unseen.errors import BadInput


def domain(labels: list[int], groups: list[str] | None = None, parts: list[str] | None = None, name: str = "photo") -> Domain:
    images = np.zeros((len(labels), 1, 1, 1), np.uint8)
    arrays = (None if given is None else np.array(given) for given in (groups, parts))
    return Domain(name, images, np.array(labels, dtype=np.int64), *arrays)


def listed(index: np.ndarray) -> list[int]:
    return [int(i) for i in index]


labels_and_groups = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abcdefgh")), min_size=1, max_size=60)


@given(rows=labels_and_groups, grouped=st.booleans(), share=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9]), seed=st.integers(0, 99))
def test_every_sample_is_on_one_side_and_no_class_leaves_training(
    rows: list[tuple[int, str]], grouped: bool, share: float, seed: int
) -> None:
    labels, groups = [label for label, _ in rows], [group for _, group in rows]
    train, validation = split(domain(labels, groups if grouped else None), share, seed)
    assert sorted(listed(train) + listed(validation)) == list(range(len(rows)))
    assert listed(train) == sorted(listed(train)) and listed(validation) == sorted(listed(validation))
    assert {labels[i] for i in train} == set(labels)
    if grouped:
        assert not {groups[i] for i in train} & {groups[i] for i in validation}
    if share == 0:
        assert not len(validation)


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), share=st.sampled_from([0.1, 0.3]), seed=st.integers(0, 9))
def test_each_class_gives_its_share_to_rounding(sizes: list[int], share: float, seed: int) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes).tolist()
    _, validation = split(domain(labels), share, seed)
    taken = Counter(labels[i] for i in validation)
    for label, size in enumerate(sizes):
        assert taken[label] <= size - 1
        if len(validation) > 1:  # with one alone, the rule of at least one may have rounded up
            assert abs(taken[label] - share * size) < 1
    if max(sizes) > 1:
        assert len(validation) >= 1


def test_70_30_and_90_10_of_a_balanced_domain_are_exact() -> None:
    labels = np.repeat(np.arange(5), 20).tolist()
    for share, each in ((0.1, 2), (0.3, 6)):
        _, validation = split(domain(labels), share, 3)
        assert Counter(labels[i] for i in validation) == dict.fromkeys(range(5), each)


def test_groups_come_near_the_share_of_every_class() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(100), 10)
    labels = rng.integers(0, 3, 1000)
    for seed in range(5):
        _, validation = split(domain(labels.tolist(), [f"p{g}" for g in groups]), 0.3, seed)
        shares = np.bincount(labels[validation], minlength=3) / np.bincount(labels)
        assert abs(len(validation) - 300) <= 10
        assert np.abs(shares - 0.3).max() < 0.05


def test_few_large_groups_still_give_one_for_validation() -> None:
    labels, groups = [0, 1] * 15, [patient for patient in "abc" for _ in range(10)]
    _, validation = split(domain(labels, groups), 0.1, 0)
    assert len({groups[i] for i in validation}) == 1


def test_same_seed_same_split_and_another_otherwise() -> None:
    one = domain([0, 1] * 50)
    assert listed(split(one, 0.3, 7)[1]) == listed(split(one, 0.3, 7)[1])
    assert listed(split(one, 0.3, 7)[1]) != listed(split(one, 0.3, 8)[1])
    assert listed(split(one, 0.3, 7)[1]) != listed(split(domain([0, 1] * 50, name="art"), 0.3, 7)[1])


def test_validation_is_drawn_evenly() -> None:
    hits = np.zeros(20)
    for seed in range(400):
        hits[split(domain([0] * 20), 0.3, seed)[1]] += 1
    assert np.abs(hits / 400 - 0.3).max() < 0.1  # standard error 0.023


def test_segmentation_has_no_classes_to_stratify_by() -> None:
    masks = np.zeros((10, 2, 4, 4), np.uint8)
    train, validation = split(Domain("site", np.zeros((10, 1, 4, 4), np.uint8), masks), 0.3, 0)
    assert (len(train), len(validation)) == (7, 3)


@pytest.mark.parametrize(
    ("parts", "train", "validation"),
    [
        (["train", "val", "test", "train"], [0, 3], [1]),
        (["test", "train", "train", "test"], [1, 2], [0, 3]),
    ],
)
def test_official_lists_are_followed(parts: list[str], train: list[int], validation: list[int]) -> None:
    found = split(domain([0, 0, 1, 1], parts=parts), 0.3, 0)
    assert (listed(found[0]), listed(found[1])) == (train, validation)


@pytest.mark.parametrize("parts", [["train"] * 10, ["val"] * 10, ["test"] * 10, ["val", "test"] * 5])
def test_a_list_that_does_not_divide_the_domain_is_no_list(parts: list[str]) -> None:
    with_list, without = split(domain([0, 1] * 5, parts=parts), 0.3, 0), split(domain([0, 1] * 5), 0.3, 0)
    assert [listed(index) for index in with_list] == [listed(index) for index in without]


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(BadInput, match="'valid'; expected train, val, test"):
        split(domain([0, 1], parts=["train", "valid"]), 0.1, 0)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_wrong_share_is_refused(share: float) -> None:
    with pytest.raises(BadInput, match="from 0 to below 1"):
        split(domain([0, 1]), share, 0)


@settings(max_examples=200)
@given(
    weights=st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(lambda w: sum(w) > 1e-3),
    total=st.integers(0, 500),
    owed=st.floats(-2, 2),
)
def test_apportion_rounds_down_or_up_and_loses_nothing(weights: list[float], total: int, owed: float) -> None:
    quota = np.array(weights) / sum(weights) * total
    given = apportion(quota, np.random.default_rng(0), np.linspace(-owed, owed, len(quota)))
    assert given.sum() == total
    assert ((np.floor(quota) <= given) & (given <= np.ceil(quota))).all()
    assert (given[quota == 0] == 0).all()

"""Protocols: every domain is unseen once, and a wrong choice says what would be right."""

from __future__ import annotations

import numpy as np
import pytest

from unseen.data.domain import Domain, DomainDataset
from unseen.data.partition.protocol import PROTOCOLS, choose_fold, leave_one_domain_out, single_source
from unseen.errors import BadInput
from unseen.task import Classification

NAMES = ("art", "cartoon", "photo", "sketch")


def dataset(*names: str) -> DomainDataset:
    domains = tuple(Domain(name, np.zeros((3, 1, 2, 2), np.uint8), np.arange(3)) for name in names)
    return DomainDataset("pacs", Classification(("a", "b", "c")), domains)


def names(domains: tuple[Domain, ...]) -> list[str]:
    return [domain.name for domain in domains]


def choice(protocol: str = "leave-one-domain-out", **chosen: object) -> object:
    return choose_fold(dataset(*NAMES), protocol, **{"target": None, "source": None, **chosen})  # type: ignore[arg-type]


def test_leave_one_domain_out_leaves_each_out_once() -> None:
    folds = list(leave_one_domain_out(dataset(*NAMES)))
    assert [fold.name for fold in folds] == list(NAMES)
    for fold in folds:
        assert names(fold.targets) == [fold.name]
        assert names(fold.sources) == [name for name in NAMES if name != fold.name]
        assert fold.held_out == ()


def test_single_source_scores_all_the_others() -> None:
    folds = list(single_source(dataset(*NAMES)))
    assert [fold.name for fold in folds] == list(NAMES)
    for fold in folds:
        assert names(fold.sources) == [fold.name]
        assert names(fold.targets) == [name for name in NAMES if name != fold.name]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_domain_is_not_enough(protocol: str) -> None:
    with pytest.raises(BadInput, match="has 1 domain"):
        list(PROTOCOLS[protocol](dataset("photo")))


def test_choose_fold_by_target_and_by_source() -> None:
    fold = choose_fold(dataset(*NAMES), "leave-one-domain-out", target="photo", source=None)
    assert (fold.name, names(fold.sources), names(fold.targets)) == ("photo", ["art", "cartoon", "sketch"], ["photo"])
    fold = choose_fold(dataset(*NAMES), "single-source", target=None, source="photo")
    assert (fold.name, names(fold.sources), names(fold.targets)) == ("photo", ["photo"], ["art", "cartoon", "sketch"])


def test_chosen_sources_keep_the_order_of_the_data_set() -> None:
    fold = choose_fold(dataset(*NAMES), "leave-one-domain-out", target="photo", source=None, sources=["sketch", "art"])
    assert names(fold.sources) == ["art", "sketch"]
    fold = choose_fold(dataset(*NAMES), "leave-one-domain-out", target="photo", source=None, sources=["art"])
    assert names(fold.sources) == ["art"]


def test_a_held_out_domain_neither_trains_nor_is_a_target() -> None:
    fold = choose_fold(dataset(*NAMES), "leave-one-domain-out", target="photo", source=None, held_out="art")
    assert (names(fold.sources), names(fold.held_out), names(fold.targets)) == (["cartoon", "sketch"], ["art"], ["photo"])
    fold = choose_fold(dataset(*NAMES), "single-source", target=None, source="photo", held_out="art")
    assert (names(fold.sources), names(fold.held_out), names(fold.targets)) == (["photo"], ["art"], ["cartoon", "sketch"])
    fold = choose_fold(dataset(*NAMES), "leave-one-domain-out", target="photo", source=None, sources=["art", "sketch"], held_out="art")
    assert (names(fold.sources), names(fold.held_out)) == (["sketch"], ["art"])


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"protocol": "leave-one-out"}, "did you mean 'leave-one-domain-out'"),
        ({}, "needs a target"),
        ({"target": "phto"}, "'phto'; did you mean 'photo'"),
        ({"target": "photo", "sources": ["art", "skech"]}, "'skech'; did you mean 'sketch'"),
        ({"target": "photo", "held_out": "cartoons"}, "did you mean 'cartoon'"),
        ({"target": "photo", "sources": ["art", "photo"]}, "the unseen domain cannot train"),
        ({"target": "photo", "held_out": "photo"}, "must not see the target"),
        ({"target": "photo", "source": "art"}, "only single-source takes one"),
        ({"target": "photo", "sources": []}, "sources is empty"),
        ({"target": "photo", "sources": ["art", "art"]}, "'art' is named twice"),
        ({"target": "photo", "sources": ["art"], "held_out": "art"}, "no source domain is left"),
        ({"protocol": "single-source"}, "needs a source"),
        ({"protocol": "single-source", "source": "arts"}, "did you mean 'art'"),
        ({"protocol": "single-source", "source": "art", "target": "art"}, "is the source, and the unseen domain cannot train"),
        ({"protocol": "single-source", "source": "art", "target": "photo"}, "leave target out"),
        ({"protocol": "single-source", "source": "art", "sources": ["photo"]}, "trains on one domain"),
        ({"protocol": "single-source", "source": "art", "held_out": "art"}, "a held-out domain does not train"),
    ],
)
def test_a_wrong_choice_says_what_would_be_right(chosen: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        choice(**chosen)


def test_all_mistakes_come_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        choice(target="phto", source="art", sources=[])
    assert len(caught.value.problems) == 3


def test_the_last_target_cannot_be_held_out() -> None:
    with pytest.raises(BadInput, match="no target domain is left"):
        choose_fold(dataset("art", "photo"), "single-source", target=None, source="art", held_out="photo")

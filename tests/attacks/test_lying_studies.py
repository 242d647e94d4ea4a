"""A dishonest server whose studies lie: tasks at places where a rule does not look, sites that it made up, splits that it tries out."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import tiny_classification
from dishonest_server import Answer, DishonestServer
from federation_in_memory import FederationInMemory
from unseen.federation.server.exchange import Terms
from unseen.federation.server.proposing import propose
from unseen.federation.site.policy import Policy, Rejected
from unseen.federation.study.study import Leaving, Study
from unseen.methods.fedavg import Down
from unseen.payload import Nothing
from unseen.scoring import Model

FOUR = tiny_classification((80, 60, 60, 60))
SITE = "a"


def scene(folder: Path, policy: Policy | None = None, target: str | None = None, by_rule: bool = True) -> FederationInMemory:
    return FederationInMemory(folder, FOUR, target, dict.fromkeys(FOUR.names, policy or Policy()), by_rule=by_rule)


def moved(row: Leaving, **how: Any) -> Leaving:
    return dataclasses.replace(row, bytes=2**40, shape=None, **{"first": 0, "last": 20, **how})


def score_rows(study: Study, **how: Any) -> list[Leaving]:
    return [moved(row, **how) for row in study.plan if row.phase == "score"]


def train_rows(study: Study, **how: Any) -> list[Leaving]:
    return [moved(row, **how) for row in study.plan if row.phase == "round"]


@pytest.mark.parametrize(("phase", "at"), [("round", (1, 2)), ("round", (1, 1)), ("start", (0, 1)), ("round", (3, 900))])
def test_a_score_leaves_where_scores_are_asked_for_alone(phase: str, at: tuple[int, int], tmp_path: Path) -> None:
    """Elsewhere `scores = "last-round"` would not be looked at."""
    server = DishonestServer(scene(tmp_path, Policy(scores="last-round")), rounds=4)
    rows = score_rows(server.study, phase=phase, ask=at[1])
    others = [row for row in server.study.plan if (row.phase, row.ask) != (phase, at[1])]
    study = server.changed(plan=(*others, *rows), weights={})
    answer = server.ask(SITE, Model(model=server.fresh()), study, at=at)
    assert not answer.given and "place" in answer.reason
    assert server.ask(SITE, Model(model=server.fresh()), at=(4, -1)).given


def test_nothing_but_a_score_leaves_where_scores_are_asked_for(tmp_path: Path) -> None:
    """Or a site that only evaluates would train, and one that sums would send its model as it is."""
    federation = scene(tmp_path, target="d")
    server = DishonestServer(federation)
    study = server.changed(plan=(*train_rows(server.study, phase="score", ask=-1),), weights={})
    for site in (SITE, "d"):
        answer = server.ask(site, Down(model=server.fresh()), study, at=(1, -1))
        assert not answer.given and "place" in answer.reason


def test_a_place_has_one_task_and_a_field_one_row(tmp_path: Path) -> None:
    """What people are shown must be what is asked."""
    server = DishonestServer(scene(tmp_path))
    twice = server.changed(plan=(*server.study.plan, *train_rows(server.study)))
    other = server.changed(plan=(*(replace(row, task="aggregation.assess") for row in train_rows(server.study)), *server.study.plan))
    for study in (twice, other):
        assert not server.ask(SITE, Down(model=server.fresh()), study).given


def test_nothing_leaves_in_rounds_of_which_the_study_does_not_say_so(tmp_path: Path) -> None:
    """A person is told how much leaves in all from the rounds that the plan names."""
    server = DishonestServer(scene(tmp_path), rounds=5)
    plan = tuple(replace(row, last=1) if row.phase == "round" else row for row in server.study.plan)
    study = server.changed(plan=plan)
    assert server.ask(SITE, Down(model=server.fresh()), study).given
    late = server.question(SITE, Down(model=server.fresh()), study, at=(2, 1))
    assert not late.given and "not what the study lets leave" in late.reason


@pytest.mark.parametrize("method", [["fedavg"], {"name": "fedavg"}, 1, None, True, "", "fedavg ", "FedAvg", "a" * 10**5])
def test_a_method_of_another_kind_is_refused(method: Any, tmp_path: Path) -> None:
    server = DishonestServer(scene(tmp_path))
    answer = server.begin(SITE, server.changed(experiment={"method": method}))
    assert answer.header["status"] == "refused"


def by_splits(server: DishonestServer, tries: int) -> list[Answer]:
    answers = []
    for number in range(tries):
        study = server.changed(experiment={"validation": 0.05 + 0.0001 * number}, weights={})
        answers.append(server.deliver(SITE, {"task": "begin", "study": study.digest}, study.signed(server.key)))
    return answers


def test_refusals_do_not_tell_how_many_images_there_are(tmp_path: Path) -> None:
    """Whether a part is too small under a split tells counts. A search over splits ends soon, after a restart too."""
    policy = Policy(studies="by-rule", minimum_samples=79)
    federation = scene(tmp_path, policy, by_rule=False)
    server = DishonestServer(federation)
    told = by_splits(server, 15)
    federation.carrier.responders[SITE] = federation.responder(SITE)
    told += by_splits(server, 30)[15:]
    assert not any(answer.given for answer in told)
    assert sum("most_splits" not in answer.reason for answer in told) < 10


def summed(folder: Path, policy: Policy, **settings: Any) -> DishonestServer:
    server = DishonestServer(scene(folder, policy), **settings)
    federation = server.federation
    server.study = propose(server.experiment, federation.server, federation.carrier, Terms(), lambda message: None, True)
    assert all(row.summed for row in server.study.plan if row.phase == "round")
    return server


@pytest.mark.parametrize("number", [1, 2, 30, 97])
def test_no_sum_with_made_up_sites(number: int, tmp_path: Path) -> None:
    """They hold shares of everyone's secrets: enough of them open a sum without the others."""
    server = summed(tmp_path, Policy(secure_sums=True))
    assert server.begin(SITE, server.changed()).given
    refused = server.begin(SITE, server.changed(participants={**server.study.participants, **server.made_up(number)}))
    assert not refused.given and "secure sums" in refused.reason


@pytest.mark.parametrize("rule", [False, True])
def test_no_sums_of_rounds_that_draw_their_sites(rule: bool, tmp_path: Path) -> None:
    """With the same weights in each round, sums over other sites would tell single answers, and nobody would have lied."""
    server = summed(tmp_path, Policy(secure_sums=True, sums_may_lose_sites=rule))
    study = server.changed(experiment={"participation": 0.75})
    refused = server.begin(SITE, study)
    assert not refused.given and "participation is 0.75 under secure sums, expected 1" in refused.reason
    with pytest.raises(Rejected, match=r"participation is 0.75 under secure sums"):
        server.federation.carrier.responders[SITE].approve(study.signed(server.key))
    assert server.begin(SITE, server.changed()).given


@pytest.mark.parametrize("shape", [None, [], [["", "float32", [3, 9, 5]]]])
def test_a_window_is_as_wide_as_the_study_says(shape: Any, tmp_path: Path) -> None:
    policy = Policy(kinds=("model", "count", "score", "spectrum"), fields_that_grow=True, others_see=("model", "spectrum"))
    server = DishonestServer(scene(tmp_path, policy), "elcfs", {"images_per_spectrum": 8, "batch": 8})
    assert server.ask(SITE, Nothing(), at=(0, 1)).given
    plan = tuple(replace(row, shape=shape) if row.kind == "spectrum" else row for row in server.study.plan)
    answer = server.ask(SITE, Nothing(), server.changed(plan=plan), at=(0, 1))
    assert not answer.given and "numbers_per_spectrum" in answer.reason


@pytest.mark.parametrize("left_out", [1, 2, 15])
@pytest.mark.parametrize("epochs", [False, True])
def test_an_answer_does_not_rest_on_all_images_but_a_few(left_out: int, epochs: bool, tmp_path: Path) -> None:
    """One gradient of all images and one of all but a few: the difference is the gradient of the few, and one image comes back whole."""
    server = DishonestServer(scene(tmp_path))
    train = server.deliver(SITE, {"task": "begin", "study": server.study.digest}, server.study.signed(server.key)).header["approval"][
        "train"
    ]

    def trained(images: int) -> Answer:
        part = {"epochs": images / train, "batch": images} if epochs else {"steps": 1, "batch": images}
        return server.ask(SITE, Down(model=server.fresh()), server.changed(set=part))

    refused = trained(train - left_out)
    assert not refused.given and "fewest_images" in refused.reason
    assert trained(train).given and trained(train - 16).given


def test_in_an_own_order_two_studies_draw_other_batches(tmp_path: Path) -> None:
    """In the same order, a step on 17 images and one on 16 would differ in one image."""
    server = DishonestServer(scene(tmp_path, Policy(own_order=True)), set={"batch": 16, "steps": 1})
    down = Down(model=server.fresh())
    one, other = server.ask(SITE, down), server.ask(SITE, down)
    assert one.given and other.given and one.payload != other.payload


def test_two_studies_with_one_seed_do_not_draw_one_order(tmp_path: Path) -> None:
    """By default too: a step on 17 images beside one on 16 of the same would tell the last image. A person may allow it."""
    policies = dict.fromkeys(FOUR.names, Policy(studies="by-rule"))
    federation, other = (FederationInMemory(tmp_path / name, FOUR, None, policies, by_rule=False) for name in ("one", "other"))
    server, twin = DishonestServer(federation), DishonestServer(other)
    down = Down(model=server.fresh())

    def trained(of: DishonestServer, batch: int) -> bytes:
        answer = of.ask(SITE, down, of.changed(set={"batch": batch, "steps": 1}))
        assert answer.given, answer.reason
        return answer.payload

    in_order = trained(twin, 17)
    first = trained(server, 16)
    assert trained(server, 16) == first and trained(twin, 17) == in_order, "nothing new is told by the same again"
    assert trained(server, 17) != in_order
    federation.carrier.responders[SITE] = federation.responder(SITE)
    assert trained(server, 17) != in_order, "after a restart too"
    shown = server.changed(set={"batch": 17, "steps": 1})
    federation.carrier.responders[SITE].approve(shown.signed(server.key))
    assert server.ask(SITE, down, shown).payload == in_order


@pytest.mark.parametrize("entry", ["task", "classes", "channels", "size", "pixels", "network", "augment", "name"])
@pytest.mark.parametrize("value", [None, 5, "x", [[1]], {"a": 1}])
def test_a_schema_of_another_form_is_refused(entry: str, value: Any, proposed: DishonestServer) -> None:
    if isinstance(value, str) and entry in ("network", "augment", "name"):
        pytest.skip("a text is what is expected here")
    answer = proposed.begin(SITE, proposed.changed(schema={**proposed.study.schema, entry: value}))
    assert answer.header["status"] == "refused"


@pytest.fixture(scope="module")
def proposed(tmp_path_factory: pytest.TempPathFactory) -> DishonestServer:
    return DishonestServer(scene(tmp_path_factory.mktemp("proposed")))

"""Plans: what is tried, what is refused, and that no plan whatever is answered by a traceback."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuning.made_up import FILE, plan_values
from unseen.errors import BadInput
from unseen.tuning.plan import TuningPlan, read_budget, read_plan
from unseen.tuning.tries import read_row
from unseen.tuning.uses import uses_of

EVIDENCE = Path(__file__).parents[2] / "benchmarks" / "evidence"
PLANS = sorted(EVIDENCE.glob("*.plan.toml"))


def test_every_combination_of_what_a_row_leaves_open() -> None:
    row = read_row(
        {
            "method": "fedavg",
            "label": "A",
            "rates": [0.1, 0.3],
            "try": {"smoothing": [0.0, 0.1]},
            "ingredients": {"ema": {"average": "ema"}, "sam": {"sharpness": "sam"}},
            "variants": {"few": {"epochs": 1}, "many": {"epochs": 3}},
        }
    )
    fields = [dict(one.fields) for one in row.tries]
    ingredients: list[dict[str, Any]] = [{}, {"average": "ema"}, {"sharpness": "sam"}, {"average": "ema", "sharpness": "sam"}]
    slow = [{"epochs": e, **i, "smoothing": s, "lr": lr} for e, i, s, lr in itertools.product((1, 3), ingredients, (0.0, 0.1), (0.1, 0.3))]
    assert fields == slow
    assert row.tries[0].name == "few, plain, smoothing=0.0, 0.1" and row.tries[-1].name == "many, ema+sam, smoothing=0.1, 0.3"
    assert row.ranges == {"smoothing": (0.0, 0.1), "rate": (0.1, 0.3)}


def test_some_combinations_are_drawn_alike_every_time() -> None:
    given = {"method": "fedavg", "try": {"smoothing": [n / 100 for n in range(50)], "lr": [n / 1000 for n in range(1, 51)]}}
    with pytest.raises(BadInput, match="2500 combinations"):
        read_row(given)
    few = [one.name for one in read_row(given, most=10).tries]
    assert len(set(few)) == 10 and few == [one.name for one in read_row(given, most=10).tries]


def test_what_the_experiment_says_can_be_tried_too() -> None:
    row = read_row({"method": "fedavg", "label": "A", "try": {"augment": ["none", "flips"], "smoothing": [0.1]}})
    assert row.with_fields(row.tries[1].fields) == {"method": "fedavg", "label": "A", "augment": "flips", "set": {"smoothing": 0.1}}


def test_what_is_set_is_for_the_tries_that_leave_it_alone() -> None:
    row = read_row({"method": "fedavg", "variants": {"as it is": {}, "more": {"epochs": 4}}, "set": {"epochs": 1}})
    assert [row.with_fields(one.fields)["set"] for one in row.tries] == [{"epochs": 1}, {"epochs": 4}]
    row = read_row({"method": "fedavg", "ingredients": {"smooth": {"smoothing": 0.1}}, "set": {"smoothing": 0.0}})
    assert [row.with_fields(one.fields)["set"]["smoothing"] for one in row.tries] == [0.0, 0.1]


@pytest.mark.parametrize(
    ("row", "tune", "message"),
    [
        ({}, {}, "nothing to choose: no row leaves anything open; give one of them rates, try, ingredients or variants"),
        ({"rates": [0.1]}, {}, "only one try"),
        ({"rates": [0.1, 0.1]}, {}, "rates has a value twice"),
        ({"rates": [0.1, -1]}, {}, "expected a list of numbers above 0"),
        ({"try": {"smoothing": 0.1}}, {}, "expected a table of lists"),
        ({"rates": [0.1, 0.2], "try": {"lr": [0.1, 0.2]}}, {}, "lr and rate both decide lr"),
        ({"rates": [0.1, 0.2], "by_target": {"a": {"lr": 1.0}}}, {}, "by_target sets it as well"),
        ({"rates": [0.1, 0.2], "set": {"lr": 1.0}}, {}, r"A: set has lr = 1.0, and the tries decide lr; expected .* Leave it out of set"),
        ({"variants": {"a": {"lr": 0.1}, "b": {"lr": 0.2}}, "set": {"lr": 1.0}}, {}, "set has lr = 1.0, and the tries decide lr"),
        ({"rates": [0.1, 0.2]}, {"set": {"fedavg": {"lr": 1.0}}}, r"\[tune.set.fedavg\] sets it as well"),
        ({"ingredients": {"a": {"lr": 1.0}, "b": {"lr": 2.0}}}, {}, "ingredients a and b both set lr"),
        ({"variants": "declared"}, {}, "fedavg declares no variants"),
        ({"rate_of": "B"}, {}, "rate_of names 'B', which leaves nothing open"),
        ({"rates": [0.1, 0.2], "rate_of": "B"}, {}, "leaves rates open; keep one of the two"),
        ({"try": {"augment": ["none", "flips"]}}, {}, "cannot differ between targets"),
        ({"try": {"seed": [1, 2]}}, {"choice": "one"}, "seed says what is run"),
        ({"rates": [0.1, 0.2]}, {"rule": "oracle"}, "rule is 'oracle'; expected source, held-out or held-out-worst"),
        ({"rates": [0.1, 0.2]}, {"choice": "all"}, "choice is 'all'"),
        ({"rates": [0.1, 0.2]}, {"ruel": "source"}, "no key 'ruel'; did you mean 'rule'"),
        ({"rates": [0.1, 0.2]}, {"budget": {"hours": 3}}, "budget is .*; expected one of runs, rounds or minutes"),
        ({"rates": [0.1, 0.2]}, {"budget": {"minutes": 3}, "search": "halving-rounds"}, "give its budget in runs or rounds"),
        ({"rates": [0.1, 0.2]}, {"choice": "new-site", "rule": "source"}, "every domain is a source"),
        ({"rates": [0.1, 0.2]}, {"targets": ["a"]}, "needs tries for every target"),
        ({"rates": [0.1, 0.2]}, {"seeds": [1, 1]}, "different whole numbers"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused(row: dict[str, Any], tune: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_plan(plan_values({"method": "fedavg", "label": "A", **row}, **tune))


def test_held_out_source_needs_three_sources() -> None:
    values = plan_values()
    with pytest.raises(BadInput, match=r"the rule held-out needs 3 sources, .*; 'a' has 2 \(b, c\). Use the rule source"):
        uses_of(read_plan({**values, "data": f"{FILE}:three"}))
    uses_of(read_plan({**values, "data": f"{FILE}:three", "tune": {"rule": "held-out", "choice": "new-site"}}))
    uses_of(read_plan({**values, "data": f"{FILE}:three", "tune": {"rule": "source"}}))
    with pytest.raises(BadInput, match=r"'d' has 2 \(a, b\)"):
        uses_of(read_plan({**values, "sources": "a,b", "targets": ["d"]}))


def test_named_sources_alone_train_and_are_held_out() -> None:
    uses = uses_of(read_plan({**plan_values(), "sources": "a,b,c", "targets": ["d"]}))
    assert {(use.target, use.on, use.cell.experiment.sources) for use in uses} == {("d", "a", "b,c"), ("d", "b", "a,c"), ("d", "c", "a,b")}


def test_tries_take_the_fields_that_the_plan_sets_for_all_rows() -> None:
    row = {"method": "fedavg", "label": "A", "rates": [0.1, 0.2], "set": {"epochs": 2}}
    shared = {"batch": 7, "epochs": 9, "lr": 5.0, "smoothing": 0.3}
    values = {**plan_values(row), "set": shared}
    values["tune"] = {**values["tune"], "set": {"fedavg": {"smoothing": 0.1}}}
    tried = [use.cell.experiment.description()["set"] for use in uses_of(read_plan(values))]
    assert {(s["batch"], s["epochs"], s["smoothing"]) for s in tried} == {(7, 2, 0.1)} and {s["lr"] for s in tried} == {0.1, 0.2}


@pytest.mark.parametrize("file", PLANS, ids=lambda path: path.stem)
def test_the_plans_of_the_evidence_can_be_read(file: Path) -> None:
    plan = read_plan(tomllib.loads(file.read_text()))
    assert plan.rule == "source" and len({len(row.tries) for row in plan.open_rows}) == 1
    if plan.around["data"] != "digits":
        uses = uses_of(plan)
        tries = sum(len(row.tries) for row in plan.open_rows)
        assert len(uses) == tries * len(plan.seeds) * (1 if plan.single_source else len(plan.targets or ()))


@pytest.mark.parametrize("file", sorted((EVIDENCE / "best").glob("*.plan.toml")), ids=lambda path: path.stem)
def test_the_plans_that_chose_the_recipe_name_nothing_else_than_fields_that_it_had(file: Path) -> None:
    """The first of them are from before the recipe had visits: it had copies."""
    try:
        assert read_plan(tomllib.loads(file.read_text())).open_rows
    except BadInput as bad:
        assert all(re.search("best has no field '(copies|agreement)'", problem) for problem in bad.problems), bad


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.sampled_from(["fedavg", "A", "declared", "source", "lr", "all", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["method", "label", "rates", "try", "lr", "set", "a", "runs"]), inner, max_size=4)
    ),
    max_leaves=12,
)
KEYS = ["methods", "tune", "seeds", "rounds", "targets", "target", "set", "data", "sources", "protocol", "held_out"]
TUNE = ["rule", "choice", "search", "keep", "most", "rounds", "seeds", "targets", "budget", "set"]
ROW = ["method", "label", "rates", "rate_fields", "rate_of", "choice_of", "try", "ingredients", "variants", "set", "by_target"]


@given(
    st.dictionaries(st.sampled_from(KEYS), PLAIN, max_size=5),
    st.dictionaries(st.sampled_from(TUNE), PLAIN, max_size=4),
    st.lists(st.dictionaries(st.sampled_from(ROW), PLAIN, max_size=5), max_size=3),
)
def test_a_plan_is_read_or_refused(around: dict[str, Any], tune: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    values = {"methods": [{"method": "fedavg", **row} for row in rows], "tune": tune, **around}
    try:
        plan = read_plan(values)
    except BadInput:
        return
    assert isinstance(plan, TuningPlan) and plan.open_rows


@given(PLAIN)
def test_a_budget_is_read_or_refused(value: Any) -> None:
    try:
        assert read_budget(value).amount > 0
    except BadInput as bad:
        assert "budget is" in str(bad)


def refusal(*rows: Any, around: dict[str, Any] | None = None, **tune: Any) -> list[str]:
    with pytest.raises(BadInput) as refused:
        read_plan({**plan_values(*rows, **tune), **(around or {})})
    return list(refused.value.problems)


OPEN = {"method": "fedavg", "label": "A", "rates": [0.1, 0.2]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"method": "fedsb", "set": {"nofield": 1}}, "fedsb: fedsb has no field 'nofield'"),
        ({"method": "fedsb", "ratess": [0.1, 0.2]}, "fedsb: no key 'ratess'"),
        ({"method": "fedsb", "rate_of": "A", "rate_fields": {"nofield": 1.0}}, "fedsb: fedsb has no field 'nofield'"),
        ({"method": "fedsb", "choice_of": "B"}, "fedsb: fedsb has no field"),
        ({"method": "fedsb", "by_target": {"a": {"nofield": 1}}}, "fedsb: fedsb has no field 'nofield'"),
        ({"method": "fedavgg"}, "fedavgg: no method 'fedavgg'; did you mean 'fedavg'?"),
        ({"method": "fedsb", "network": 3}, "fedsb: network is 3"),
    ],
)
def test_rows_that_leave_nothing_open_are_held_against_their_methods(row: dict[str, Any], message: str) -> None:
    other = {"method": "fedadg", "label": "B", "try": {"lr_f": [0.1, 0.2]}}
    (problem,) = refusal(OPEN, other, row)
    assert problem.startswith(message)


def test_fields_of_the_tries_for_a_method_that_no_row_has_are_refused() -> None:
    (problem,) = refusal(OPEN, set={"fedavgg": {"epochs": 1}})
    assert problem == "[tune.set.fedavgg]: no row has that method; did you mean 'fedavg'?"
    (problem,) = refusal(OPEN, set={"fedavg": {"epochz": 1}})
    assert problem.startswith("A: fedavg has no field 'epochz'")


def test_every_mistake_of_a_plan_is_told_at_once() -> None:
    first = {**OPEN, "set": {"nofield": 1}}
    second = {"method": "fedavg", "label": "C", "try": {"smoothing": [0.1, 7.0]}}
    third = {"method": "fedsb", "rate_of": "D"}
    broken = {"method": "fedavg", "label": "D", "rates": []}
    around = {"netwrok": "small_cnn", "rounds": 0}
    told = refusal(first, second, third, broken, around=around, ruel="source", keep=1, budget={"hours": 3})
    begins = ["[tune] has no key 'ruel'", "[tune] keep is 1", "rounds is 0", "D: rates is []", "budget is", "no key 'netwrok'"]
    begins += ["A: fedavg has no field 'nofield'", "C: fedavg: smoothing is 7.0"]
    assert len(told) == len(begins) and all(sum(text.startswith(begin) for text in told) == 1 for begin in begins), told
    told = refusal({**OPEN, "set": {"nofield": 1}}, choice="new-site", rule="source")
    assert len(told) == 2, "what contradicts is not hidden by a row"

"""Verdicts: against scipy, by hand and by simulation; claims as people write them; and what the command prints."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from synthetic_runs import DOMAINS, write_run
from unseen.cli import app
from unseen.errors import BadInput
from unseen.report.claims import Claim, judge_claims, read_claims, to_csv, to_markdown, to_text
from unseen.report.verdicts import corrected, judge, pairs_needed, sentence

invoke = CliRunner().invoke


def scores(differences: dict[str, list[float]], base: float = 50.0) -> tuple[dict[tuple[str, int], float], dict[tuple[str, int], float]]:
    """Two rows whose differences on each domain, seed by seed, are these."""
    second = {(target, seed): base + 3 * seed for target, values in differences.items() for seed in range(len(values))}
    first = {(target, seed): second[target, seed] + values[seed] for target, values in differences.items() for seed in range(len(values))}
    return first, second


def with_interval(low: float, high: float, n: int = 12) -> list[float]:
    """Numbers whose t interval is this."""
    values = np.random.default_rng(0).normal(size=n)
    values = (values - values.mean()) / values.std(ddof=1)
    return list((low + high) / 2 + values * (high - low) / 2 / stats.t.ppf(0.975, n - 1) * math.sqrt(n))


@pytest.mark.parametrize(
    ("printed", "low", "high", "said"),
    [
        (4.0, 0.5, 3.0, "reproduced"),
        (4.0, 3.0, 9.0, "reproduced"),
        (4.0, -0.5, 3.0, "undecided"),
        (4.0, -1.0, 1.9, "not reproduced"),
        (4.0, -5.0, -1.0, "not reproduced"),
        (-4.0, -3.0, -0.5, "reproduced"),
        (-4.0, -1.9, 1.0, "not reproduced"),
        (-4.0, 1.0, 5.0, "not reproduced"),
        (-4.0, -3.0, 1.0, "undecided"),
        (None, 0.1, 2.0, "better"),
        (None, -2.0, -0.1, "worse"),
        (None, -2.0, 0.1, "undecided"),
    ],
)
def test_a_verdict(printed: float | None, low: float, high: float, said: str) -> None:
    values = with_interval(low, high)
    first, second = scores({target: values[3 * n : 3 * n + 3] for n, target in enumerate("abcd")})
    verdict = judge("A", "B", first, second, claimed=printed)
    assert verdict.decision == said and (verdict.low, verdict.high) == (pytest.approx(low), pytest.approx(high))
    assert (verdict.p is not None and verdict.p < 0.05) == (said != "undecided"), "interval and test agree"
    assert (verdict.needed is None) == (said != "undecided")
    two = {key: value for key, value in first.items() if key[1] < 2}
    assert judge("A", "B", two, second, claimed=printed).decision == "undecided", "fewer than three seeds decide nothing"


def test_numbers_are_those_of_scipy() -> None:
    rng = np.random.default_rng(1)
    first, second = scores({target: list(rng.normal(1.0, 1.5, 5)) for target in "abc"})
    keys = sorted(first)
    a, b = [first[k] for k in keys], [second[k] for k in keys]
    verdict = judge("A", "B", first, second)
    test = stats.ttest_rel(a, b)
    assert verdict.p == pytest.approx(test.pvalue) and verdict.n == 15 and verdict.seeds == 5
    assert (verdict.low, verdict.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    means = [np.mean([first[t, s] - second[t, s] for t in "abc"]) for s in range(5)]
    by_seed = stats.ttest_1samp(means, 0.0)
    assert verdict.beside["seeds"] == pytest.approx(tuple(by_seed.confidence_interval(0.95)))
    over = judge("A", "B", first, second, over="seeds")
    assert over.p == pytest.approx(by_seed.pvalue) and over.n == 5 and over.beside["pairs"] == pytest.approx((verdict.low, verdict.high))
    by_domain = stats.ttest_1samp([np.mean([first[t, s] - second[t, s] for s in range(5)]) for t in "abc"], 0.0)
    domains = judge("A", "B", first, second, over="domains")
    assert domains.p == pytest.approx(by_domain.pvalue) and domains.n == 3 and domains.beside.keys() == {"pairs", "seeds"}
    assert (domains.low, domains.high) == pytest.approx(tuple(by_domain.confidence_interval(0.95)))
    assert verdict.beside["domains"] == over.beside["domains"] == pytest.approx((domains.low, domains.high))
    drawn = stats.bootstrap(
        (np.array(a) - np.array(b),), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    assert verdict.drawn == pytest.approx(tuple(drawn), abs=0.06) and over.drawn is None, "five numbers are too few to draw from"


def test_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, s 1, t interval 2 -+ 4.3027 / sqrt(3)."""
    verdict = judge("A", "B", *scores({"a": [1.0, 2.0, 3.0]}))
    assert verdict.difference == pytest.approx(2.0) and verdict.low == pytest.approx(2 - 4.30265 / math.sqrt(3), abs=1e-4)
    assert verdict.decision == "undecided" and verdict.needed == 5, "two standard deviations: five pairs"
    claimed = judge("A", "B", *scores({"a": [1.0, 2.0, 3.0]}), claimed=10.0)
    assert claimed.decision == "not reproduced" and claimed.p == pytest.approx(stats.ttest_1samp([1, 2, 3], 5.0).pvalue)
    same = judge("A", "B", *scores({"a": [1.5, 1.5, 1.5]}, base=0.0))
    assert same.decision == "better" and same.p == 0.0
    assert judge("A", "B", *scores({"a": [0.0, 0.0, 0.0]})).decision == "undecided"


def test_seeds_count_where_all_their_domains_are_there() -> None:
    """Two whole seeds of three decide nothing over seeds; without a whole one nothing can be said."""
    first, second = scores({"a": [2.0, 2.1, 2.2], "b": [2.3, 2.1, 2.0]})
    del first["b", 2]
    over = judge("A", "B", first, second, over="seeds")
    assert (over.n, over.seeds, over.pairs) == (2, 2, 5) and over.decision == "undecided" and "2 seeds decide nothing" in sentence(over)
    alternating = {key: value for key, value in first.items() if (key[0] == "a") == (key[1] == 0)}
    none = judge("A", "B", alternating, second, over="seeds")
    assert none.pairs == 2 and none.difference is None and "no seed has both A and B on all 2 unseen domains" in sentence(none)


def test_three_seeds_are_wanted_on_every_domain() -> None:
    first, second = scores({"a": [2.0, 2.1, 2.2], "b": [2.3, 2.1, 2.0]})
    del first["b", 1], first["b", 2]
    for over in ("pairs", "domains"):
        verdict = judge("A", "B", first, second, over=over)  # type: ignore[arg-type]
        assert verdict.decision == "undecided" and "On b 1 seed decides nothing: run 3 at least." in sentence(verdict)


def test_over_seeds_a_seed_gives_one_number() -> None:
    values = with_interval(-0.5, 2.5)
    first, second = scores(dict.fromkeys("ab", values))
    wanted = pairs_needed(1.0 / float(np.std(values, ddof=1)))
    assert judge("A", "B", first, second, over="seeds").needed == wanted


def test_other_domains_are_asked_for_over_domains() -> None:
    """Where the truth is nothing and domains differ, four of them decide one time in twenty; over pairs it is one in three."""
    rng, times = np.random.default_rng(5), 600
    decided = {"pairs": 0, "domains": 0}
    for _ in range(times):
        of_domains = rng.normal(0.0, 3.0, 4)
        first, second = scores({t: list(effect + rng.normal(0.0, 1.0, 3)) for t, effect in zip("abcd", of_domains, strict=True)})
        for over in ("pairs", "domains"):
            decided[over] += judge("A", "B", first, second, over=over).decision != "undecided"  # type: ignore[arg-type]
    assert 0.03 < decided["domains"] / times < 0.08 and decided["pairs"] / times > 0.25
    two = judge("A", "B", *scores({"a": [5.0, 5.1, 5.2], "b": [5.0, 5.1, 5.2]}), over="domains")
    assert two.decision == "undecided" and "2 unseen domains decide nothing about others" in sentence(two)
    far = judge("A", "B", *scores({"a": [5.0, 5.1, 5.2], "b": [1.0, 1.1, 1.2], "c": [-1.0, -1.1, -1.2]}), over="domains")
    assert f"{far.needed} domains would decide it" in sentence(far)


def test_what_a_claim_wants_lies_off_half_of_it() -> None:
    """Mean 0.9 of a claim of 4: it lies 0.9 off nothing and 1.1 off the half."""
    values = with_interval(-0.7, 2.5)
    claimed = judge("A", "B", *scores({"a": values}), claimed=4.0)
    assert claimed.decision == "undecided" and claimed.needed == max(3, pairs_needed(1.1 / float(np.std(values, ddof=1))) or 0)


def test_what_is_lower_may_be_better() -> None:
    first, second = scores({"a": [-1.0, -1.1, -0.9]})
    assert judge("A", "B", first, second, higher=False).decision == "better" and judge("A", "B", first, second).decision == "worse"


def test_pairs_needed_as_in_the_tables() -> None:
    """Cohen 1988 and G*Power 3.1, paired t-test, two-sided 5 %, power 0.8; for 0.95 at half a deviation 54."""
    assert [pairs_needed(d) for d in (0.2, 0.3, 0.5, 0.8, 1.0)] == [199, 90, 34, 15, 10]
    assert pairs_needed(0.5, power=0.95) == 54 and pairs_needed(0.0) is None and pairs_needed(-1.0) is None and pairs_needed(1e-6) is None
    assert pairs_needed(1e9) == 2


@pytest.mark.parametrize("effect", [0.5, 1.2])
def test_so_many_pairs_find_the_difference_so_often(effect: float) -> None:
    """Simulated: with the number told the interval lies above 0 in 80 % of the cases, with two thirds of it clearly less often."""
    pairs, rng, times = pairs_needed(effect) or 0, np.random.default_rng(3), 4000

    def found(n: int) -> float:
        drawn = rng.normal(effect, 1.0, (times, n))
        low = drawn.mean(1) - stats.t.ppf(0.975, n - 1) * drawn.std(1, ddof=1) / math.sqrt(n)
        return float((low > 0).mean())

    assert 0.78 < found(pairs) < 0.9 and found(max(2, pairs * 2 // 3)) < 0.72


def test_seeds_are_counted_over_the_domains() -> None:
    values = with_interval(-0.5, 2.5)
    four = judge("A", "B", *scores({t: values[3 * n : 3 * n + 3] for n, t in enumerate("abcd")}))
    effect = 1.0 / float(np.std(values, ddof=1))
    assert four.needed == math.ceil((pairs_needed(effect) or 0) / 4)


def test_holm_is_over_all_that_are_asked() -> None:
    strong, weak = judge("A", "B", *scores({"a": with_interval(1, 2, 4)})), judge("A", "C", *scores({"a": with_interval(0.01, 2, 4)}))
    one, two = corrected([strong, weak])
    assert one.p is not None and one.adjusted == pytest.approx(min(1, 2 * one.p)) and one.stands
    assert two.decision == "better" and two.adjusted == pytest.approx(two.p) and two.stands, "the largest p is not corrected"
    third = judge("A", "D", *scores({"a": with_interval(0.01, 3, 4)}))
    assert not corrected([weak, third])[0].stands and "does not stand" in sentence(corrected([weak, third])[0])


def test_sentences() -> None:
    assert sentence(judge("A", "B", {}, {})) == "Not run: A and B have no unseen domain and seed in common."
    assert "1 seed decides nothing: run 3 at least" in sentence(judge("A", "B", *scores({"a": [1.0], "b": [2.0]})))
    assert sentence(judge("A", "B", *scores({"a": [1.0]}))).startswith(
        "Undecided: A minus B is +1.00 points, over 1 unseen domain and 1 seed."
    )
    assert "1000 seeds would not decide it" in sentence(judge("A", "B", *scores({"a": [1.0, -1.0, 0.001]})))
    better = sentence(judge("A", "B", *scores({"a": [1.0, 1.2, 0.9]})))
    assert better.startswith(
        "A is better than B: A minus B is +1.03 points (95 % interval +0.65 to +1.41), over 1 unseen domain and 3 seeds."
    )


CLAIM = {"claim": "A beats B", "printed": 3.0, "where": "Table 1", "table": "t", "first": "A", "second": "B"}


def test_claims_against_runs(tmp_path: Path) -> None:
    for method, skill in (("A", 0.9), ("B", 0.5)):
        for fold in DOMAINS:
            for seed in range(3):
                write_run(tmp_path / "t" / method / fold / str(seed), method, fold, seed, skill=skill)
    claims = read_claims({"claims": [CLAIM, {**CLAIM, "printed": -3}, {**CLAIM, "table": "gone"}]})
    judged = judge_claims(claims, tmp_path)
    assert [j.last.decision for j in judged] == ["reproduced", "not reproduced", "undecided"] and judged[2].last.n == 0
    assert "2 of 3 claims were run: 1 reproduced, 1 not reproduced, 0 undecided. After Holm's correction 2 of the 2" in to_text(judged)
    table = to_markdown(judged).splitlines()
    assert len(table) == 5 and {line.count("|") for line in table} == {13} and "| not run |" in table[4]
    assert len(to_csv(judged).splitlines()) == 4
    file = tmp_path / "claims.toml"
    file.write_text("claims = [" + ", ".join("{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in CLAIM.items()) + "}" for _ in "ab") + "]")
    told = invoke(app, ["verdict", "--claims", str(file), "--runs", str(tmp_path), "--format", "md", "--out", str(tmp_path / "v.md")])
    assert told.exit_code == 0, told.output
    assert (tmp_path / "v.md").read_text().count("| reproduced |") == 2


def test_claims_name_what_was_left_out_and_mix_nothing(tmp_path: Path) -> None:
    """Half-done runs and misspelt rows are told; a table of half-done runs is not run; runs of other data stop the command."""
    for method, skill in (("A", 0.9), ("B", 0.5)):
        for fold in DOMAINS:
            for seed in range(3):
                write_run(tmp_path / "t" / method / fold / str(seed), method, fold, seed, skill=skill)
    write_run(tmp_path / "half" / "A", "A", DOMAINS[0], 0, rounds=3)
    records = tmp_path / "half/A/records.jsonl"
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:1]))
    claims = read_claims({"claims": [CLAIM, {**CLAIM, "table": "half"}, {**CLAIM, "first": "Bee"}]})
    told: list[str] = []
    judged = judge_claims(claims, tmp_path, tell=told.append)
    assert [j.last.pairs for j in judged] == [12, 0, 0]
    assert any("half: left out: A" in note for note in told)
    assert "t has no row 'Bee'; there are: A, B" in told and "half has no row 'B'" in "".join(told)
    write_run(tmp_path / "t" / "other", "A", DOMAINS[0], 0, size=99)
    with pytest.raises(BadInput, match="cannot stand in one table"):
        judge_claims(claims, tmp_path)


@pytest.mark.parametrize(("metric", "said"), [("dice_disc", "A is better"), ("hd95_disc", "A is worse"), ("unmatched_cup", "A is worse")])
def test_of_a_structure_lower_may_be_better_too(metric: str, said: str, tmp_path: Path) -> None:
    for method, value in (("A", 0.9), ("B", 0.5)):
        for seed in range(3):
            folder = tmp_path / method / str(seed)
            write_run(folder, method, DOMAINS[0], seed)
            lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
            for line in lines:
                for row in line["target"].values():
                    row[metric] = value + 0.01 * seed
            (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = invoke(app, ["verdict", str(tmp_path), "A", "B", "--metric", metric])
    assert told.exit_code == 0 and said in told.output, told.output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"printed": 0}, "printed is 0; expected the difference in points"),
        ({"printed": "3"}, "printed is '3'"),
        ({"printed": float("nan")}, "printed is nan"),
        ({"table": "../elsewhere"}, "expected a folder below --runs"),
        ({"table": "/etc"}, "expected a folder below --runs"),
        ({"second": "A"}, "expected two rows"),
        ({"frist": "A"}, "no key 'frist'; did you mean 'first'"),
        ({"where": 3}, "where is 3; expected text"),
    ],
)
def test_a_claim_that_cannot_be_meant(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message.replace(".", r"\.")):
        read_claims({"claims": [{**CLAIM, **change}]})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*CLAIM, "claims", "x"]), inner, max_size=7),
    max_leaves=15,
)


@given(VALUES | st.fixed_dictionaries({"claims": st.lists(st.fixed_dictionaries(dict.fromkeys(CLAIM, VALUES)), max_size=2)}))
def test_claims_are_read_or_refused(values: Any) -> None:
    if not isinstance(values, dict):
        return
    try:
        assert all(isinstance(claim, Claim) for claim in read_claims(values))
    except BadInput as bad:
        assert bad.problems


def test_two_rows_of_a_folder(tmp_path: Path) -> None:
    for method, skill in (("A", 0.9), ("B", 0.5), ("C", 0.5)):
        for fold in DOMAINS[:2]:
            for seed in range(3):
                write_run(tmp_path / "t" / method / fold / str(seed), method, fold, seed, skill=skill)
    told = invoke(app, ["verdict", str(tmp_path / "t"), "A", "B"])
    assert told.exit_code == 0, told.output
    assert "A is better than B: A minus B is +" in told.output and "cartoon" in told.output and "Holm" not in told.output
    assert "after Holm" in invoke(app, ["verdict", str(tmp_path / "t"), "A", "B", "C"]).output
    ece = invoke(app, ["verdict", str(tmp_path / "t"), "A", "B", "--metric", "ece"]).output
    assert "ece (lower is better)" in ece and "A is better than B: A minus B is -" in ece
    assert max(len(line) for line in told.output.splitlines() if not line.startswith("accuracy,")) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["A"], "give a folder and two rows"),
        (["A", "Bb"], "no row 'Bb'"),
        (["A", "A"], "named twice"),
        (["A", "B", "--metric", "beauty"], "no run has beauty; they have accuracy, ece"),
        (["A", "B", "--rule", "oracle"], "no selection rule 'oracle'"),
        (["A", "B", "--rule", "held-out"], "picks no round"),
        (["A", "B", "--format", "md"], "give a folder and two rows"),
        (["A", "B", "--claims", "c.toml"], "--claims needs --runs alone"),
    ],
)
def test_mistakes(arguments: list[str], message: str, tmp_path: Path) -> None:
    for method in ("A", "B"):
        write_run(tmp_path / method, method)
    told = invoke(app, ["verdict", str(tmp_path), *arguments])
    assert told.exit_code == 2 and message in " ".join(told.output.split()), told.output


@pytest.mark.parametrize(
    ("kept", "scores"), [("again/verdicts-first.md", ["vessels.csv"]), ("verdicts.md", ["vessels.csv", "again/vessels.csv"])]
)
def test_the_committed_verdicts_follow_from_the_committed_scores(kept: str, scores: list[str], tmp_path: Path) -> None:
    root = Path(__file__).parents[2] / "benchmarks"
    before = {row[1]: row for row in _table(root / "results" / kept)}
    from test_evidence import restore  # the program that makes runs of kept scores

    claims = [c for c in read_claims(tomllib.loads((root / "evidence/claims.toml").read_text())) if c.table == "vessels"]
    for file in scores:
        restore.restore(root / "results" / file, tomllib.loads((root / "evidence/vessels.toml").read_text()), tmp_path / "vessels")
    (tmp_path / "new.md").write_text(to_markdown(judge_claims(claims, tmp_path)))
    new = _table(tmp_path / "new.md")
    assert len(new) == 2
    for row in new:
        assert row[:8] == before[row[1]][:8]


def _table(file: Path) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in file.read_text().splitlines()[2:]]

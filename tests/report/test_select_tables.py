"""Selection rules and tables, against values worked out by hand."""

from __future__ import annotations

import csv
import io
import re
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unseen.errors import BadInput
from unseen.report.tables import Cell, comparison, own_comparison, to_csv, to_latex, to_markdown
from unseen.runs.selection import RULES


def records(
    fold: str, rows: list[tuple[float, float]], seed: int = 0, held: list[float] | None = None, targets: tuple[str, ...] = ()
) -> list[Any]:
    return [
        {
            "fold": fold,
            "round": n,
            "seed": seed,
            "metric": "accuracy",
            "source_mean": {"accuracy": source},
            "target": {t: {"accuracy": target} for t in targets or (fold,)},
            "held_out": {"h": {"accuracy": held[n - 1]}} if held else {},
        }
        for n, (source, target) in enumerate(rows, 1)
    ]


ROWS = [(0.5, 0.9), (0.8, 0.4), (0.8, 0.6), (0.7, 0.5)]


def test_rules_pick_their_round() -> None:
    runs = records("c", ROWS, held=[0.1, 0.2, 0.2, 0.9])
    picks = {name: rule.picks(runs) for name, rule in RULES.items()}
    assert picks == {"last": 3, "source": 1, "held-out": 3, "oracle": 0}
    assert [name for name, rule in RULES.items() if rule.oracle] == ["oracle"]
    assert RULES["held-out"].picks(records("c", ROWS)) is None


def test_the_source_rule_never_sees_the_target() -> None:
    changed = records("c", [(s, 1 - t) for s, t in ROWS])
    assert RULES["source"].picks(changed) == RULES["source"].picks(records("c", ROWS))


def cells() -> list[Cell]:
    scores = {("A", "x", 0): 0.8, ("A", "y", 0): 0.6, ("A", "x", 1): 0.9, ("A", "y", 1): 0.5, ("B", "x", 0): 0.85, ("B", "y", 0): 0.7}
    return [Cell(m, f, s, records(f, [(0.1, v)], s)) for (m, f, s), v in scores.items()]


def test_means_deviations_average_and_worst_by_hand() -> None:
    table = comparison(cells(), "last")
    assert table.columns == ("x", "y", "average", "worst domain")
    a = table.rows["A"]
    assert a["x"].mean == pytest.approx(85) and a["x"].std == pytest.approx(statistics.stdev([80, 90]))
    assert a["average"].mean == pytest.approx((70 + 70) / 2) and a["worst domain"].mean == pytest.approx(55)
    assert table.rows["B"]["average"].std is None and str(table.rows["B"]["x"]) == "85.00"
    assert table.marks == {}  # a seed or two cannot tell


def several(method: str, *scores: float) -> list[Cell]:
    """Runs on two unseen domains, one for each seed."""
    return [Cell(method, fold, seed, records(fold, [(0.5, score)], seed)) for fold in ("x", "y") for seed, score in enumerate(scores)]


def test_the_best_is_marked_where_it_can_be_told() -> None:
    ahead, behind, near = several("A", 0.80, 0.82, 0.84), several("B", 0.70, 0.71, 0.75), several("C", 0.70, 0.83, 0.86)
    assert comparison([*ahead, *behind], "last").marks == {("A", c): 1 for c in ("x", "y", "average", "worst domain")}
    assert comparison([*ahead, *behind, *near], "last").marks == {}  # clear of one, not of the other
    assert comparison(ahead, "last").marks == {}  # nobody to be better than
    two = comparison([*several("A", 0.8, 0.9), *several("B", 0.1, 0.21)], "last")
    assert two.marks == {("A", "average"): 1}  # two seeds are four pairs, but two on a domain
    assert "**82.00 ± 2.00**" in to_markdown(comparison([*ahead, *behind], "last"))
    assert r"\textbf{82.00 $\pm$ 2.00}" in to_latex(comparison([*ahead, *behind], "last"))


def test_who_ran_on_the_easy_domain_alone_is_no_part_of_the_average() -> None:
    ahead, behind = several("A", 0.80, 0.82, 0.84), several("B", 0.70, 0.71, 0.75)
    easy = [Cell("C", "x", seed, records("x", [(0.5, 0.95)], seed)) for seed in range(3)]
    table = comparison([*ahead, *behind, *easy], "last")
    assert table.marks == {("C", "x"): 1, ("A", "y"): 1, ("A", "average"): 1, ("A", "worst domain"): 1}
    assert "**–**" not in to_markdown(table) and "\\textbf{--}" not in to_latex(table)


def test_an_incomplete_seed_moves_no_mark() -> None:
    """A seed without every domain is not in the average that is printed, and so not in what marks it."""
    ahead, behind = several("A", 0.80, 0.82, 0.84), several("B", 0.70, 0.71, 0.75)
    easy = [Cell("B", "x", seed, records("x", [(0.5, 0.99)], seed)) for seed in range(3, 20)]
    assert comparison([*ahead, *behind, *easy], "last").marks == {("A", c): 1 for c in ("y", "average", "worst domain")}


def test_the_highest_mean_is_not_marked_where_it_is_worse_on_the_seeds_that_both_have() -> None:
    ahead = several("A", 0.50, 0.52, 0.53, 0.99, 0.99, 0.99)
    table = comparison([*ahead, *several("B", 0.60, 0.63, 0.63)], "last")
    assert table.rows["A"]["average"].mean > table.rows["B"]["average"].mean and table.marks == {}


def test_an_incomplete_seed_does_not_enter_the_average() -> None:
    some = [c for c in cells() if not (c.method == "A" and c.fold == "y" and c.seed == 1)]
    row = comparison(some, "last").rows["A"]
    assert row["x"].n == 2 and row["average"].n == 1 and row["average"].mean == pytest.approx(70)


def test_single_source_folds_are_scored_on_every_target() -> None:
    cell = Cell("A", "photo", 0, records("photo", [(0.1, 0.5)], targets=("art", "sketch")))
    assert comparison([cell], "last").columns[:2] == ("photo → art", "photo → sketch")


def with_own(cell: Cell, *rounds: dict[str, float]) -> Cell:
    own = [{"own": {c: {"accuracy": v} for c, v in row.items()}, "own_mean": {"accuracy": sum(row.values()) / len(row)}} for row in rounds]
    return Cell(cell.method, cell.fold, cell.seed, [{**r, **o} for r, o in zip(cell.records, own, strict=True)])  # type: ignore[typeddict-item]


def test_own_models_select_and_have_a_table_by_client() -> None:
    one = with_own(Cell("A", "x", 0, records("x", [(0.9, 0.1), (0.5, 0.2)])), {"p": 0.4, "q": 0.6}, {"p": 0.8, "q": 0.7})
    other = with_own(Cell("A", "x", 1, records("x", [(0.9, 0.1)], 1)), {"p": 0.6, "q": 0.5})
    assert RULES["source"].picks(one.records) == 1  # by the clients' own models; the global one was better in the first
    plain = Cell("B", "x", 0, records("x", ROWS))
    table = own_comparison([one, other, plain], "source")
    assert table.columns == ("p", "q", "average", "worst client") and list(table.rows) == ["A"] and table.own
    means = {column: table.rows["A"][column].mean for column in table.columns}
    assert means == pytest.approx({"p": 70, "q": 60, "average": (75 + 55) / 2, "worst client": (70 + 50) / 2})
    assert table.heading == "accuracy in percent of each client's own model, at that client; best round by source validation"
    assert comparison([one, other, plain], "source").rows["A"]["x"].mean == pytest.approx((20 + 10) / 2)
    assert own_comparison([plain], "last").columns == () and own_comparison([one], "held-out").columns == ()
    third = with_own(Cell("A", "p", 0, records("p", [(0.9, 0.1)])), {"q": 0.1})
    assert own_comparison([one, third], "last").columns[:3] == ("p, unseen: x", "q, unseen: x", "q, unseen: p")


def test_formats() -> None:
    table = comparison(cells(), "oracle")
    assert "| 85.00 |" in to_markdown(table) and "**" not in to_markdown(table) and "oracle" in to_markdown(table)
    tex = to_latex(table)
    assert r"\toprule" in tex and " 70.00 " in tex and r"\textbf" not in tex and r"$\pm$" in tex
    rows = list(csv.DictReader(io.StringIO(to_csv([table]))))
    assert len(rows) == 8 and float(rows[0]["mean"]) == pytest.approx(85) and rows[0]["rule"] == "oracle"


SPECIAL_TO_TEX = r"\&%$#_{}~^<>|["
SET_BY_TEX = re.compile(r"\\[&%$#_{}]|\\text[a-z]+\{\}|\{\[\}|\$\\?[a-z]+\$|\$-\$")  # what a special character may become


@given(st.text(st.sampled_from(SPECIAL_TO_TEX + "\n\r ") | st.characters(), min_size=1))
@example(r"\ & \\ \\[1] $x$ {y")
def test_names_are_escaped(name: str) -> None:
    table = comparison([Cell(name, "c", 0, records("c", ROWS))], "last")
    assert len(to_markdown(table).split("\n")) == 5 and "<" not in to_markdown(table)
    rows = [line for line in to_latex(table).splitlines() if line.endswith(r" \\")]
    assert len(rows) == 2, "the heading and one method"
    cell, *others = re.split(r"(?<!\\)&", rows[1].removesuffix(r" \\"))
    assert len(others) == len(table.columns), "the name stays in its cell"
    assert not set(SET_BY_TEX.sub("", cell)) & set(SPECIAL_TO_TEX)
    assert len(list(csv.reader(io.StringIO(to_csv([table]), newline="")))) == 2


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(BadInput, match="did you mean 'oracle'"):
        comparison([], "oracel")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex is installed: apt-get install texlive-latex-recommended")
def test_the_latex_compiles(tmp_path: Path) -> None:
    nasty = [
        r"a_b & 50 % of #1 $x$ {y} ~ ^ \z <b> |",
        "[1] α = 0.5, λ → ∞",
        "Łódź, Zürich, Kraków: “x” … — ß",
        "日本 😀 ą ŋ ς ſ",
        "a\nb\0\u0301 ≥ −",
    ]
    rows = [*cells(), *(Cell(name, fold, 0, records(fold, ROWS)) for name in nasty for fold in ("x", "y"))]
    table = to_latex(comparison(rows, "oracle"))
    text = r"\documentclass{article}\usepackage{booktabs}\begin{document}" + table + r"\end{document}"
    (tmp_path / "main.tex").write_text(text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout[-800:].decode(errors="replace")

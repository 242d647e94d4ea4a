"""The page: everything about a folder of runs in one HTML file that needs nothing else to be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unseen.errors import BadInput
from unseen.report.beside import beside
from unseen.report.between import Stands, between_sites
from unseen.report.charts import COLOURS, class_chart, line_chart
from unseen.report.collect import Collected, Run
from unseen.report.saying import what_was_found
from unseen.report.statistics import Comparison, compare, interval_within, scores_by_method
from unseen.report.summary import (
    client_bytes,
    curves,
    partitions,
    round_bytes,
    run_rows,
    settings,
    settings_beside,
    time_split,
    traffic,
)
from unseen.report.tables import AVERAGE, Stat, Table, comparison, own_comparison
from unseen.report.thumbnails import strips
from unseen.runs.selection import RULES, Rule

__all__ = ["page_environment", "render_page", "size_text"]

_SHOWN_PARTITIONS = 8  # more are folded away
_ALL_PAIRS = 8  # methods; with more, each is compared with the best alone


@dataclass(frozen=True)
class Ruled:
    """What depends on the selection rule."""

    rule: Rule
    table: Table
    own: Table  # of the clients' own models; without columns where there are none
    beside: Table  # other metrics
    tests: list[Comparison]
    against: str | None
    found: str  # in words


RUN_COLUMNS = (  # heading, and whether it is a column of words
    ("method", True),
    ("unseen", True),
    ("seed", False),
    ("rounds", False),
    ("last round", False),
    ("picked by source", False),
    ("round picked", False),
    ("source validation", False),
    ("time", False),
    ("left the clients", False),
    ("folder", True),
)


def render_page(found: Collected, title: str, *, live: bool = False, data: str | None = None, standings: Sequence[Stands] = ()) -> str:
    """The page as text. `live` makes it ask its server now and then whether there is something new.

    It shows images of embedded data and of data sets in the cache; `data` (folder:PATH, csv:FILE) says where others lie.
    """
    template = page_environment("unseen.report").get_template("page.html.j2")
    runs, finished = found.runs, found.finished
    numbers = {name: number for number, name in enumerate(dict.fromkeys(run.name for run in runs))}
    common, own, departures = settings(runs)
    metric = str(runs[0].about["metric"])
    charts = curves(runs, numbers)
    counted = finished or runs
    page: str = template.render(
        title=title,
        live=live,
        notes=found.notes,
        runs=runs,
        finished=len(finished),
        numbers=numbers,
        colours=COLOURS,
        metric=metric,
        ruled=_ruled(finished),
        paper=found.paper_numbers,
        average=AVERAGE,
        endless=float("inf"),
        curves={name: line_chart(lines, "round", f"{metric}, %") for name, lines in charts.items()},
        bytes_chart=line_chart(round_bytes(counted, numbers), "round", "MB from all clients", zero=True),
        traffic=traffic(counted),
        by_client=client_bytes(counted),
        times=time_split(counted),
        partitions=[(d, class_chart(d.by_class, d.labels) if d.by_class else "") for d in partitions(runs)],
        shown_partitions=_SHOWN_PARTITIONS,
        between_sites=any(run.about.get("between_sites") for run in runs),
        federations=between_sites(runs, standings),
        strips=strips(runs, data),
        rows=run_rows(runs),
        run_columns=RUN_COLUMNS,
        beside=settings_beside(counted),
        common=common,
        own=own,
        departures=departures,
    )
    return page


def _ruled(runs: Sequence[Run]) -> list[Ruled]:
    cells = [run.cell for run in runs]
    result = []
    for rule in RULES.values() if runs else ():
        table = comparison(cells, rule.name)
        if not table.columns:
            continue
        against = _best(table) if len(table.rows) > _ALL_PAIRS else None
        tests = compare(scores_by_method(cells, rule.name), against)
        own, others = own_comparison(cells, rule.name), beside(cells, rule.name)
        result.append(Ruled(rule, table, own, others, tests, against, what_was_found(cells, rule.name)))
    return result


def _best(table: Table) -> str:
    column = AVERAGE if AVERAGE in table.columns else table.columns[0]
    return max(table.rows, key=lambda name: table.rows[name][column].mean if column in table.rows[name] else float("-inf"))


def page_environment(package: str) -> Any:
    """Templates of a package: everything put into them is escaped, and a name that is not there is an error."""
    try:
        import jinja2
    except ImportError as error:
        raise BadInput("the page needs jinja2, which is not installed; install it with: pip install 'unseen[report]'") from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"size": size_text, "p": _p_text, "interval": _interval_text}
    return environment


def size_text(number: float) -> str:
    """Bytes for people.

    >>> [size_text(n) for n in (12, 4_300, 45_100_000)]
    ['12 B', '4.3 kB', '45.1 MB']
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number:.0f} B"


def _p_text(value: float | None) -> str:
    return "–" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _interval_text(stat: Stat, high: float = 100.0) -> str:
    bounds = interval_within(stat, 0.0, high)
    return f"{bounds[0]:.1f} to {bounds[1]:.1f}" if bounds else ""

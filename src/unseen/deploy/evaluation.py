"""Will it work here? An exported model on a site's own data: metrics with intervals, appearance, pass or fail. Nothing is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.data.checks.gap import random_features, style_of
from unseen.data.domain import Domain, DomainDataset
from unseen.deploy.card import ModelCard, style_from_text
from unseen.deploy.fitting import fitted
from unseen.deploy.model import Deployed, images_at_once
from unseen.errors import BadInput, nearest
from unseen.metrics import MaskMeter, calibration_error
from unseen.ops.style import style_gap
from unseen.report.statistics import bootstrap

__all__ = ["LOWER_IS_BETTER", "Acceptance", "evaluate", "lower_is_better"]

LOWER_IS_BETTER = ("loss", "ece", "hd", "hd95")
Statistic = Callable[[NDArray[np.int64]], dict[str, float]]
_STYLE_IMAGES = 200


@dataclass(frozen=True)
class Measured:
    """A metric over all cases, with its 95 % bootstrap interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Check:
    """A threshold: whether the value meets it, and whether the whole interval does."""

    metric: str
    limit: float
    value: float
    passed: bool
    sure: bool


@dataclass(frozen=True)
class Style:
    """How far the site's images look from those of each training site (0 to 1), and how far the training sites are apart."""

    distances: dict[str, float]
    nearest: str
    limit: float | None  # the largest distance of a training site to its nearest other one; None with a single site
    outside: bool


@dataclass(frozen=True)
class Acceptance:
    """The answer."""

    model: str
    origin: str  # who signed the model's card, or that nobody did
    data: str
    cases: list[dict[str, Any]]
    metrics: dict[str, Measured]
    sites: dict[str, dict[str, float]]
    groups: dict[str, dict[str, float]]
    classes: dict[str, dict[str, float]]
    style: dict[str, Style]
    checks: list[Check]
    warnings: list[str]

    @property
    def passed(self) -> bool | None:
        """None without thresholds: then nothing was asked."""
        return all(check.passed for check in self.checks) if self.checks else None

    def values(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}


def lower_is_better(metric: str) -> bool:
    """
    >>> [lower_is_better(m) for m in ("dice", "hd95_cup", "ece")]
    [False, True, True]
    """
    return metric.split("_")[0] in LOWER_IS_BETTER


def evaluate(
    model: Deployed,
    data: DomainDataset,
    *,
    thresholds: Mapping[str, float] | None = None,
    ids: Mapping[str, Sequence[str]] | None = None,
    draws: int = 1000,
) -> Acceptance:
    """Every domain of `data` is a site. `thresholds` are by metric (accuracy, dice, ece, ...); `ids` name the cases."""
    domains = fitted(data, model.card.what, model.card.channels, model.card.size)
    cases: list[dict[str, Any]] = []
    for domain in domains:
        names = ids[domain.name] if ids else [str(n) for n in range(len(domain))]
        cases += _cases(model, domain, names)
    statistic: Statistic = _ClassStatistic(cases) if model.card.task == "classification" else _MaskStatistic(cases)
    groups = [f"{case['site']}/{case['group']}" for case in cases] if all("group" in case for case in cases) else None
    intervals = bootstrap(statistic, len(cases), groups, draws=draws)
    values = statistic(np.arange(len(cases)))
    metrics = {name: Measured(value, *intervals.get(name, (None, None))) for name, value in values.items()}
    main = model.card.what.metric
    styles = {d.name: style for d in domains if (style := _style(model.card, d)) is not None}
    return Acceptance(
        model=model.card.title,
        origin=model.card.origin,
        data=data.name,
        cases=cases,
        metrics=metrics,
        sites=_split([case["site"] for case in cases], statistic),
        groups=_split(groups, statistic, only=main) if groups else {},
        classes=_split([case["label"] for case in cases], statistic, only=main, order=model.card.labels) if "label" in cases[0] else {},
        style=styles,
        checks=_checks(metrics, thresholds or {}),
        warnings=_warnings(model.card, cases, styles, intervals),
    )


def _cases(model: Deployed, domain: Domain, names: Sequence[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"case": str(name), "site": domain.name} for name in names]
    if domain.groups is not None:
        rows = [{**row, "group": str(group)} for row, group in zip(rows, domain.groups, strict=True)]
    meter = MaskMeter(model.card.labels, model.card.what.loss) if model.card.task == "segmentation" else None
    found: list[dict[str, Any]] = []
    batch = images_at_once(model.card.channels, model.card.size)
    for start in range(0, len(domain), batch):
        part = slice(start, start + batch)
        logits = model.logits(domain.images[part])
        truth = torch.from_numpy(np.array(domain.labels[part]))
        if meter is not None:
            meter.update(logits, truth, torch.from_numpy(np.array(domain.spacing[part])) if domain.spacing is not None else None)
        else:
            found += [_class_case(model.card, p, int(y)) for p, y in zip(model.probabilities(logits), truth, strict=True)]
    found = list(meter.cases()) if meter is not None else found
    return [{**row, **case} for row, case in zip(rows, found, strict=True)]


def _class_case(card: ModelCard, probability: Tensor, label: int) -> dict[str, Any]:
    best = int(probability.argmax())
    row: dict[str, Any] = {"label": card.labels[label], "prediction": card.labels[best], "probability": round(float(probability[best]), 6)}
    return {**row, "correct": best == label}


class _ClassStatistic:
    """Accuracy, balanced accuracy and calibration error of some of the cases."""

    def __init__(self, cases: Sequence[Mapping[str, Any]]) -> None:
        self.correct = np.array([case["correct"] for case in cases], dtype=np.float64)
        self.confidence = np.array([case["probability"] for case in cases])
        _, self.label = np.unique([case["label"] for case in cases], return_inverse=True)

    def __call__(self, drawn: NDArray[np.int64]) -> dict[str, float]:
        correct, label = self.correct[drawn], self.label[drawn]
        count = np.bincount(label)
        recall = np.bincount(label, correct)[count > 0] / count[count > 0]
        ece = calibration_error(torch.from_numpy(self.confidence[drawn]), torch.from_numpy(correct))
        return {"accuracy": float(correct.mean()), "balanced_accuracy": float(recall.mean()), "ece": ece}


class _MaskStatistic:
    """The mean of every number that cases have."""

    def __init__(self, cases: Sequence[Mapping[str, Any]]) -> None:
        names = [name for name, value in cases[0].items() if isinstance(value, float) and not name.startswith("unmatched")]
        self.table = {name: np.array([case[name] for case in cases]) for name in names}

    def __call__(self, drawn: NDArray[np.int64]) -> dict[str, float]:
        return {name: float(values[drawn].mean()) for name, values in self.table.items()}


def _split(keys: Sequence[str], statistic: Statistic, only: str | None = None, order: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """The metrics of each site, group or class alone, and its number of cases; in this order, or as they come."""
    table = {}
    for key in (name for name in order if name in keys) if order else dict.fromkeys(keys):
        here = np.array([n for n, k in enumerate(keys) if k == key])
        values = statistic(here)
        table[key] = {"cases": float(len(here)), **(values if only is None else {only: values[only]})}
    return table


def _style(card: ModelCard, domain: Domain) -> Style | None:
    if not card.styles:
        return None
    here = style_of(domain, card.pixels, random_features(card.channels), per_domain=_STYLE_IMAGES, seed=0)
    sites = {name: style_from_text(text) for name, text in card.styles.items()}
    if any(gram.shape != here.shape for gram in sites.values()):
        raise BadInput("the styles in the card were made with other filters; export the model again with this version")
    distances = {name: round(float(style_gap(here, gram)), 6) for name, gram in sites.items()}
    between = [min(float(style_gap(a, b)) for m, b in sites.items() if m != n) for n, a in sites.items() if len(sites) > 1]
    limit = max(between) if between else None
    closest = min(distances, key=lambda name: distances[name])
    return Style(distances, closest, limit, limit is not None and distances[closest] > limit)


def _checks(metrics: Mapping[str, Measured], thresholds: Mapping[str, float]) -> list[Check]:
    problems = [f"no metric {name!r}{nearest(name, metrics)}" for name in thresholds if name not in metrics]
    problems += [f"the threshold of {name} is {limit}; expected a number" for name, limit in thresholds.items() if not math.isfinite(limit)]
    if problems:
        raise BadInput(problems)
    checks = []
    for name, limit in thresholds.items():
        found, sign = metrics[name], -1 if lower_is_better(name) else 1
        worst = found.high if sign < 0 else found.low
        sure = worst is not None and sign * worst >= sign * limit
        checks.append(Check(name, limit, found.value, sign * found.value >= sign * limit, sure))
    return checks


def _warnings(card: ModelCard, cases: Sequence[Mapping[str, Any]], styles: Mapping[str, Style], intervals: Mapping[str, Any]) -> list[str]:
    found = []
    for site, style in styles.items():
        if style.outside:
            far = f"its distance to the nearest, {style.nearest}, is {style.distances[style.nearest]:.3f}"
            apart = f"no training site is further than {style.limit:.3f} from its nearest"
            found.append(f"{site} looks unlike every training site: {far}, while {apart}. Results may not carry over.")
    if not styles:
        found.append("the card has no style statistics, so whether this site looks like the training sites cannot be said")
    missing = [label for label in card.labels if card.task == "classification" and label not in {case["label"] for case in cases}]
    if missing:
        found.append(f"no case here is {', '.join(missing)}; nothing was learned about them")
    if not intervals:
        found.append("one case or one group alone: there are no intervals")
    return found

"""A study in plain words, for whoever has to decide: what is done, who takes part, what leaves, what is kept from whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unseen.federation.activity import amount
from unseen.federation.study.study import Leaving, Study, phase_of
from unseen.federation.sums.context import STEPS

__all__ = ["StudyInWords", "in_words", "task_in_words"]

_KINDS = {
    "model": "the weights of a network",
    "update": "a change of a network's weights",
    "gradient": "a gradient of a network's weights",
    "control": "a control variate, which is an average gradient",
    "statistic": "numbers computed from images or features",
    "spectrum": "amplitudes of images, without their phases",
    "score": "how well a model did",
    "count": "a number of samples",
    "number": "a plain number",
    "text": "words",
    "nothing": "nothing but the word that it is done",
}
_PHASES = {"start": "before round 1", "round": "in every round", "score": "after every round"}


@dataclass(frozen=True)
class StudyInWords:
    """The parts of a page, or of a screen."""

    name: str  # the study's hash
    lead: str
    facts: Sequence[tuple[str, str]]
    participants: Sequence[tuple[str, str, str]]  # name, what it does, fingerprint of its keys
    leaves: Sequence[tuple[str, str, str, str]]  # when, what, how much, who reads it
    settings: Sequence[tuple[str, str]]


def in_words(study: Study) -> StudyInWords:
    experiment, schema = study.experiment, study.schema
    evaluating = sorted(set(study.participants) - set(study.training))
    total = sum(_bytes_in_all(row) for row in study.plan if not row.grows)
    lead = (
        f"{len(study.training)} sites train one network for {schema['task']} with {experiment['method']} in {study.rounds} rounds. "
        f"About {amount(total)} leave each site that trains, all rounds together. No image and no label leaves."
    )
    facts = [
        ("method", str(experiment["method"])),
        ("network", f"{experiment.get('network') or schema['network']}, images of {' x '.join(map(str, schema['size']))} pixels"),
        ("classes", ", ".join(schema["classes"])),
        ("rounds", str(study.rounds)),
        ("seed", str(experiment["seed"])),
        ("validation", f"{float(experiment['validation']):.0%} of each site's samples are kept from training and scored on"),
        ("participation", f"{float(experiment['participation']):.0%} of the sites in each round"),
        ("first weights", _first_weights(study)),
        ("answers needed", f"{study.minimum_clients} for a round to count"),
        (
            "secure sums",
            "yes: the server gets sums over the sites and cannot read a single model"
            if study.sums
            else "no: the server reads every site's answers",
        ),
        ("other sites see", _passed_on(study)),
        ("noise", "each site decides by its own policy; its answers say what was spent, and its ledger"),
    ]
    return StudyInWords(
        name=study.digest,
        lead=lead,
        facts=facts,
        participants=[
            (name, "is scored on alone" if name in evaluating else "trains", site.fingerprint(name))
            for name, site in sorted(study.participants.items())
        ],
        leaves=[_leaves(row, study) for row in study.plan],
        settings=[(name, str(value)) for name, value in sorted(experiment.get("set", {}).items())],
    )


def task_in_words(study: Study, round_number: int, ask: int, step: int = 0) -> str:
    """What is asked at a place of a study."""
    task = (
        "score" if phase_of(round_number, ask) == "score" else study.task_at(round_number, ask) or "a question that the study does not have"
    )
    return f"{task}, {STEPS.get(step, 'a step')} of a sum" if step else task


def _leaves(row: Leaving, study: Study) -> tuple[str, str, str, str]:
    when = _PHASES[row.phase]
    if row.phase == "round" and (row.first, row.last) != (1, study.rounds):
        when = f"in rounds {row.first} to {row.last}" if row.first != row.last else f"in round {row.first}"
    network = (
        f" ({row.role}{'' if row.part == 'whole' else ', ' + row.part})"
        if row.role and row.kind in ("model", "update", "gradient", "control")
        else ""
    )
    what = f"{row.task}: {row.field + ', ' if row.field else ''}{_KINDS.get(row.kind, row.kind)}{network}"
    much = "" if row.kind == "nothing" else f"{amount(row.bytes)}{' for each image' if row.grows else ''}"
    who = "" if row.kind == "nothing" else "only the sum over the sites is read" if row.summed else "the server reads it"
    return when, what, much, who


def _bytes_in_all(row: Leaving) -> int:
    return row.bytes * (1 if row.phase == "start" else row.last - row.first + 1)


def _passed_on(study: Study) -> str:
    """What sites get of each other, one by one."""
    if not study.passed_on:
        return "nothing of a single site"
    return f"of each site: {', '.join(_KINDS.get(kind, kind) for kind in study.passed_on)}; the server passes it on"


def _first_weights(study: Study) -> str:
    source = study.experiment.get("weights")
    told = "drawn from the seed" if source is None else f"from {source}"
    return f"{told}; sha256 {', '.join(f'{field} {value[:16]}' for field, value in study.weights.items()) or 'not stated'}"

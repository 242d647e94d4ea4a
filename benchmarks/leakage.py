"""What every method lets a curious server learn, on the embedded data: the figures of docs/leakage.md.

    python benchmarks/leakage.py [ROW ...] > benchmarks/results/leakage.md

A process for each core, about half a minute of one for each row. One site (`plain` of styled-digits, `north` of phantom-sites), five
rounds, half of the images train.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

from unseen.data import load
from unseen.experiment import read_experiment
from unseen.federation.site.policy import Policy, Privacy
from unseen.leakage.attempts import Attempt
from unseen.leakage.meter import Leakage, measure
from unseen.leakage.playing import SITE

DIGITS = {"data": "styled-digits", "rounds": 5, "device": "cpu"}
PHANTOMS = {"data": "phantom-sites", "rounds": 3, "device": "cpu", "network": "unet:width=4,depth=3"}
DOMAINS = {"styled-digits": "plain", "phantom-sites": "north"}
NOISE = Policy(privacy=Privacy(on=True, clip=1.0, noise=0.05))
ROWS: dict[str, tuple[dict[str, Any], Policy | None]] = {
    "elcfs": ({**DIGITS, "method": "elcfs", "set": {"batch": 32}}, None),
    "fedadg": ({**DIGITS, "method": "fedadg", "set": {"classification_epochs": 1, "alignment_epochs": 1, "lr_f": 0.01}}, None),
    "fedavg": ({**DIGITS, "method": "fedavg", "set": {"batch": 32, "lr": 1e-3, "epochs": 2}}, None),
    "feddag": ({**DIGITS, "method": "feddag", "set": {"batch": 32, "lr": 0.01, "width": 4, "warmup": 1}}, None),
    "feddyn": ({**DIGITS, "method": "feddyn", "set": {"batch": 32, "epochs": 2}}, None),
    "fedgca": ({**DIGITS, "method": "fedgca", "set": {"batch": 32, "epochs": 1, "copies": 1}}, None),
    "fedprox": ({**DIGITS, "method": "fedprox", "set": {"batch": 32, "lr": 1e-3, "epochs": 2}}, None),
    "fedsam": ({**DIGITS, "method": "fedsam", "set": {"batch": 32, "epochs": 2}}, None),
    "fedsb": ({**DIGITS, "method": "fedsb", "set": {"batch": 32, "budget": 18, "lr": 1e-3}}, None),
    "fedavg, masks": ({**PHANTOMS, "method": "fedavg", "set": {"batch": 8, "lr": 1e-3, "epochs": 2}}, None),
    "elcfs, masks": ({**PHANTOMS, "method": "elcfs", "set": {"batch": 5}}, None),
    "fedavg, 20 rounds": ({**DIGITS, "rounds": 20, "method": "fedavg", "set": {"batch": 32, "lr": 1e-3, "epochs": 2}}, None),
    "fedavg, noise 0.05": ({**DIGITS, "method": "fedavg", "set": {"batch": 32, "lr": 1e-3, "epochs": 2}}, NOISE),
    "fedavg, one step on two images": (
        {**DIGITS, "method": "fedavg", "set": {"batch": 2, "steps": 1, "optimizer": "sgd", "lr": 0.1}},
        None,
    ),
    "fedavg, sha with rho 0.05, last batch of two": (
        {
            **DIGITS,
            "method": "fedavg",
            "set": {"batch": 134, "lr": 1e-3, "aggregation": {"name": "sha", "rho": 0.05, "float64": True, "direction": "last-batch"}},
        },
        None,
    ),
    "fedavg, sha with rho 0.05, a sample": (
        {**DIGITS, "method": "fedavg", "set": {"batch": 134, "lr": 1e-3, "aggregation": {"name": "sha", "rho": 0.05, "float64": True}}},
        None,
    ),
    "elcfs, spectra of 8 images": ({**DIGITS, "method": "elcfs", "set": {"batch": 32, "images_per_spectrum": 8}}, None),
    "elcfs, alpha 0.49": ({**DIGITS, "rounds": 1, "method": "elcfs", "set": {"batch": 32, "alpha": 0.49}}, None),
}
PASSES = {"batch": 32, "epochs": 2}
ROWS |= {
    name: ({**DIGITS, "method": name, "set": own}, None)
    for name, own in {
        "best": PASSES,
        "ccst": {**PASSES, "lr": 0.01},
        "copa": {**PASSES, "lr": 1e-3},
        "csac": {"batch": 32, "steps": 18, "private_steps": 18},
        "dann": {**PASSES, "lr": 1e-3},
        "ddaig": {**PASSES, "lr": 0.01, "warmup": 1, "width": 4},
        "epifcr": {**PASSES, "lr": 0.01},
        "fccl": {**PASSES, "public": "phantom-sites"},
        "fedbn": PASSES,
        "fedccrl": {**PASSES, "lr": 0.01},
        "fedgma": PASSES,
        "fediir": {**PASSES, "lr": 0.01},
        "fednova": PASSES,
        "fedsr": {"batch": 32, "steps": 18},
        "g2g": {**PASSES, "lr": 0.01},
        "moon": PASSES,
        "perfedavg": {"batch": 32, "lr": 0.01},
        "scaffold": PASSES,
    }.items()
}
COLUMNS = (
    ("images from the change", "images from the change of weights"),
    ("how many images", "how many images are behind it"),
    ("classes' shares", "classes' shares from the last layer"),
    ("falling loss", "membership: falling loss"),
    ("gradient", "membership: gradient along the change"),
    ("low loss", "membership: low loss"),
    ("against other models", "membership: loss against other models"),
    ("nearest spectrum", "membership: the nearest spectrum"),
    ("images from amplitudes", "images from amplitudes"),
)


def cell(attempts: list[Attempt]) -> str:
    """The largest figure of an attack over what it was run on; bold where it is better than guessing."""
    tried = [a for a in attempts if a.value is not None]
    if not tried:
        return "–" if not attempts else "says nothing"
    rank = {"images": 0, "better": 1, "guessing": 2, "silent": 3}
    worst = min(tried, key=lambda a: (rank[a.outcome], -abs((a.value or 0) - (a.baseline or 0))))
    text = f"{worst.value:.2f}".replace("-0.00", "0.00") if worst.measure != "rank" else f"{worst.value:.0f} of {worst.baseline:.0f}"
    text += f" (guess {worst.baseline:.2f})" if worst.measure in ("correlation", "overlap") else ""
    return f"**{text}**" if worst.outcome in ("images", "better") else f"{text}, says nothing" if worst.outcome == "silent" else text


def measured(name: str) -> Leakage:
    values, policy = ROWS[name]
    data = load(values["data"])
    site = replace(data, domains=(replace(data[DOMAINS[data.name]], name=SITE),))
    found = measure(read_experiment(values), site, policy=policy, budget=1200, steps=200, shadows=2)  # the clock must not decide
    print(f"{name}: {found.seconds:.0f} s", file=sys.stderr)
    return found


def main() -> None:
    chosen = sys.argv[1:] or list(ROWS)
    cores, began = len(os.sched_getaffinity(0)), time.monotonic()
    with ProcessPoolExecutor(min(cores, len(chosen)), multiprocessing.get_context("spawn")) as processes:
        found = dict(zip(chosen, processes.map(measured, chosen), strict=True))
    print("# Leakage of every method on the embedded data")
    print(
        f"`python benchmarks/leakage.py {' '.join(repr(n) for n in sys.argv[1:])}".rstrip()
        + f"`, {time.monotonic() - began:.0f} s on {cores} CPU cores\n"
    )
    print("Bold: better than guessing by its 99 % interval. Membership is the AUC, of which 0.5 is guessing.\n")
    print(f"| row | {' | '.join(title for title, _ in COLUMNS)} |")
    print(f"|---|{'---|' * len(COLUMNS)}")
    for name, one in found.items():
        print(f"| {name} | {' | '.join(cell([a for a in one.attempts if a.attack == attack]) for _, attack in COLUMNS)} |")
    for name, one in found.items():
        print(f"\n## {name}\n{one.headline} {one.rounds} of {one.planned} rounds, {one.images['trained']} images trained.\n")
        print("| what left | attack | figure | 99 % interval | guessing | control | verdict |\n|---|---|---|---|---|---|---|")
        for a in one.attempts:
            interval = f"{a.low:.3f} to {a.high:.3f}" if a.low is not None and a.high is not None else ""
            numbers = [f"{v:.3f}" if v is not None else "" for v in (a.value, a.baseline, a.control)]
            print(f"| {a.what} | {a.attack} | {numbers[0]} | {interval} | {numbers[1]} | {numbers[2]} | {a.verdict} |")


if __name__ == "__main__":
    main()

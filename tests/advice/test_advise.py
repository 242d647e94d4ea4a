"""Advice: what is looked at and what never is, distances by hand, costs that are measured, numbers that come from the committed tables."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from conftest import tiny_classification, tiny_segmentation
from unseen.advice import advising, costing
from unseen.advice.advising import RECOMMENDED, Request, advise, evidence
from unseen.advice.costing import Costs, steps_in_a_round, time_steps
from unseen.advice.looking import look_at, sources_of
from unseen.cli import app
from unseen.data.checks.gap import gaps_against_chance, random_features
from unseen.data.domain import UNIT, Domain
from unseen.errors import BadInput
from unseen.methods import METHODS, Best, FedAvg, FedSB, method_class
from unseen.ops.style import gram, style_gap
from unseen.runs.traffic import Travelled
from unseen.world import World

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).parents[1] / "four_domains.py"
invoke = CliRunner().invoke


class Untouchable:
    """Labels of which nobody may know more than their number."""

    def __len__(self) -> int:
        return 30

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("the labels of the target were read")

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("the labels of the target were read")


def test_no_image_or_label_of_a_named_target_is_looked_at() -> None:
    data = tiny_classification((30, 30, 30, 30))
    hidden = data["d"]
    object.__setattr__(hidden, "labels", Untouchable())
    with pytest.raises(AssertionError, match="were read"):
        look_at(data)
    sources = sources_of(data, "d")
    look = look_at(sources)
    assert set(look.images) == {"a", "b", "c"} == set(look.shares)
    assert time_steps(FedAvg(batch=4), sources, 5.0, network="small_cnn:width=2", device="cpu") is not None


def test_style_gaps_against_the_slow_version() -> None:
    data = tiny_classification((24, 20, 16))
    found = gaps_against_chance(data.domains, UNIT, per_half=6)
    assert found is not None and found.images == 6 and set(found.within) == {"a", "b", "c"} and len(found.between) == 3
    from unseen.randomness import generator

    look = random_features(3, 0)
    styles = {}
    for domain in data.domains[:2]:
        order = torch.randperm(len(domain), generator=generator(0, "halves", domain.name))
        for half, rows in (("first", order[:6]), ("second", order[6:12])):
            grams = [gram(look(torch.from_numpy(domain.images[[int(row)]]).float() / 255))[0].double() for row in rows]
            styles[domain.name, half] = sum(grams) / 6
    assert found.within["a"] == pytest.approx(float(style_gap(styles["a", "first"], styles["a", "second"])))
    assert found.between["a", "b"] == pytest.approx(float(style_gap(styles["a", "first"], styles["b", "first"])))
    assert found.times == pytest.approx((sum(found.between.values()) / 3) / (sum(found.within.values()) / 3))


def test_sites_of_one_style_are_as_far_apart_as_halves_of_one() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 40, 3, 16, 16), dtype=np.uint8)
    alike = [Domain(name, part, np.zeros(40, np.int64)) for name, part in zip("abc", images, strict=True)]
    same = gaps_against_chance(alike, UNIT)
    assert same is not None and 0.6 < same.times < 1.6
    dark = Domain("dark", (images[0] // 4).astype(np.uint8), np.zeros(40, np.int64))
    other = gaps_against_chance([*alike[1:], dark], UNIT)
    assert other is not None and other.times > 3
    assert gaps_against_chance(alike[:1], UNIT) is None
    assert gaps_against_chance([Domain("x", images[0][:3], np.zeros(3, np.int64)), alike[1]], UNIT) is None


def test_class_shares_by_hand() -> None:
    data = tiny_classification((30, 30))
    data["b"].labels[:] = np.array([0] * 15 + [1] * 15)  # thirds against halves of two: 1/2 (1/6 + 1/6 + 1/3) = 1/3
    look = look_at(data)
    assert look.uneven == pytest.approx(1 / 3)
    told = advise(look, Request("folder:ours", "x"), None, 2, "fedavg")
    assert any("differ between sites by up to 33 %" in text for text in told.warnings)
    assert told.commands == (
        "unseen run --method fedavg --data folder:ours --target x --rounds 20 --metric balanced_accuracy --out runs/fedavg",
    )
    assert any("2 sources: one cannot be held out" in text for text in told.warnings)


def test_costs_by_hand() -> None:
    sent = {"task": "train", "direction": "sent", "field": "model", "kind": "model", "bytes": 1_000_000, "grows": False, "clients": ["a"]}
    costs = Costs(0.5, 1.0, (sent, {**sent, "direction": "received"}), whole=True)  # type: ignore[arg-type, typeddict-item]
    look = replace(look_at(tiny_classification((100, 100, 200, 100))), gaps=None)
    method = FedAvg(batch=30, epochs=2.0)
    assert steps_in_a_round(method, "classification", 90) == 6 and steps_in_a_round(FedAvg(steps=7), "classification", 90) == 7
    assert steps_in_a_round(Best(batch=16, visits=3), "segmentation", 90) == 18, "three visits, of five batches and ten images each"
    assert steps_in_a_round(FedAvg(batch=16, epochs=2.5), "classification", 97) == 15, "no batch of one image, and half of six full ones"
    assert steps_in_a_round(Best(steps=7, visits=3), "classification", 90) == 21
    lines = advising._cost(look, method, Request("folder:ours", None, 10), costs, cores=2)
    # a site of 100: 1 + 6 / 2 = 4 s; that of 200: 1 + 12 / 2 = 7 s; 19 s in all over two cores
    assert lines[0] == "training, 10 rounds: about 95 s on this machine" and "about 70 s" in lines[1]
    assert "10.0 MB leave it, 10.0 MB reach it" in lines[3]
    minutes = [advising._tune_minutes(look, method, 10, costs, 3, cores) for cores in (1, 2, 8)]
    # 3 variants * 10 rounds * 19 s * 3 of 4 sites are 1710 s, over no more cores than three sites; 3 * 4 runs begin in 20 s each
    assert minutes == [39, 22, 17], "1.2 * (1710 + 240) s, 1.2 * (855 + 240) s, 1.2 * (570 + 240) s"
    assert advising._leaves(costs) == ("model (model), 1.0 MB a round",)


def test_steps_are_timed_and_a_limit_ends_it() -> None:
    sources = tiny_classification((30, 30, 30))
    costs = time_steps(FedAvg(batch=4), sources, 30.0, network="small_cnn:width=2", device="cpu")
    assert costs is not None and costs.whole and costs.step >= 0 and costs.seconds(3) > 0
    assert costs.bytes("sent") >= costs.bytes("received") > 0 and {row["kind"] for row in costs.travelled} == {"model", "count"}
    short = time_steps(FedAvg(batch=4), sources, 0.0, network="small_cnn:width=2", device="cpu")
    assert short is not None and not short.whole and short.step > 0
    assert time_steps(FedSB(), sources, 5.0) is None or "steps" in FedSB.__dataclass_fields__
    masks = time_steps(FedAvg(batch=4), tiny_segmentation((12, 12, 12)), 30.0, device="cpu")
    assert masks is not None and masks.step > 0


def test_a_step_is_one_of_those_that_are_made_however_many_are_made_for_one_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def a_second_each(world: World, memory: Path) -> tuple[float, tuple[Travelled, ...]]:
        steps = world.experiment.method.local_training("classification").steps
        return float((2 + steps) * len(world.clients)), ()

    monkeypatch.setattr(costing, "_round", a_second_each)
    for method in (FedAvg(batch=4), Best(batch=4, visits=3)):
        costs = time_steps(method, tiny_classification((30, 30, 30)), 30.0, network="small_cnn:width=2", device="cpu")
        assert costs is not None and (costs.step, costs.around) == (1.0, 2.0), "two seconds around the steps"


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_the_recommended_recipe_does_both_tasks_and_has_evidence_of_its_own(task: str) -> None:
    assert task in method_class(RECOMMENDED).tasks
    look = look_at(tiny_classification((30, 30)) if task == "classification" else tiny_segmentation((30, 30)))
    told = advise(look, Request("folder:ours", "x"), None, 2, RECOMMENDED)
    assert told.evidence and {(one.task, one.method) for one in told.evidence} == {(task, "best")}


def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evidence_advice", ROOT / "benchmarks/evidence/advice.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_said_comes_from_the_committed_tables() -> None:
    maker = program()
    rows = [*maker.findings()]
    assert maker.to_toml(rows) == (ROOT / "src/unseen/advice/evidence.toml").read_text(), "run benchmarks/evidence/advice.py"
    assert maker.BEGIN + maker.to_page(rows) + maker.END in (ROOT / "docs/which-method.md").read_text(), "run benchmarks/evidence/advice.py"
    assert len(evidence()) == len(rows) and all(one.method in METHODS for one in evidence())
    one = next(one for one in evidence() if one.table == "vessels" and one.row == "ELCFS")
    assert (one.difference, one.low, one.high) == (-1.71, -2.86, -0.56) and one.decision == "worse", (
        "as benchmarks/results/again/verdicts-first.md has it"
    )
    assert tomllib.loads(maker.to_toml(rows))["findings"] == rows


def test_the_command(tmp_path: Path) -> None:
    told = invoke(app, ["advise", "--data", f"{FILE}:four", "--target", "d", "--network", "small_cnn:width=2", "--device", "cpu"])
    assert told.exit_code == 0, told.output
    assert "unseen: d; its images and labels take no part here" in told.output and "What leaves a site" in told.output
    assert "3 sources: a 18, b 18, c 18" in told.output and "few images at a (18)" in told.output
    plain = invoke(app, ["advise", "--data", f"{FILE}:four", "--seconds", "0", "--json"])
    values = json.loads(plain.stdout)
    assert values["data"]["images"] == dict.fromkeys("abcd", 18) and values["advice"]["cost"][0].startswith("not measured: --seconds 0")
    assert max(len(line) for line in told.output.splitlines() if not line.startswith("  unseen ") and "timing" not in line) <= 100


def test_what_the_check_refuses_is_refused_with_its_words(tmp_path: Path) -> None:
    data = tiny_classification((30, 30, 30))
    data["b"].labels[3] = 9
    with pytest.raises(BadInput, match=r"b: .*9"):
        look_at(data)
    assert look_at(sources_of(data, "b")).images == {"a": 30, "c": 30}, "of a target nothing is read, its mistakes neither"
    (tmp_path / "ours" / "north").mkdir(parents=True)
    told = invoke(app, ["advise", "--data", f"folder:{tmp_path / 'ours'}", "--cache", str(tmp_path / "cache")])
    assert told.exit_code == 2, told.output
    lone = invoke(app, ["advise", "--data", f"{FILE}:three", "--target", "z"])
    assert lone.exit_code == 2 and "'z'; there are: a, b, c" in lone.output
    with pytest.raises(BadInput, match=r"has 1 source \(b\); expected two sites at least"):
        sources_of(tiny_classification((9, 9)), "a")

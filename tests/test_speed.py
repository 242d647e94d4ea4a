"""`unseen speed`: the arithmetic of its clocks and ratios, what it measures, and what it says to bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from unseen.cli import app
from unseen.cli.speed import _SHORT, _outside_options
from unseen.errors import BadInput
from unseen.networks import build_network
from unseen.speed.bare import bare_step
from unseen.speed.measuring import Case, SpeedMeasured, SpeedPlan, _cases, fastest, measure
from unseen.speed.split import PHASES, Split
from unseen.speed.start import seconds_to_first_batch
from unseen.speed.synthetic import TARGET, synthetic

TINY = {"networks": ("small_cnn:width=2",), "batch": 4, "size": 8, "steps": 2, "repeats": 1}


class Fake:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time

    def taking(self, *seconds: float, log: list[str] | None = None, name: str = "") -> Callable[[], None]:
        """Work that takes the first of these the first time, and so on."""
        left = list(seconds)

        def work() -> None:
            self.time += left.pop(0)
            if log is not None:
                log.append(name)

        return work


def test_sides_take_turns_and_the_fastest_counts() -> None:
    clock, order = Fake(), list[str]()
    sides = {
        "bare": clock.taking(0.1, 4.0, 2.0, 3.0, log=order, name="bare"),  # the first only warms up
        "round": clock.taking(0.1, 9.0, 5.0, 2.5, log=order, name="round"),
    }
    assert fastest(sides, repeats=3, clock=clock) == {"bare": pytest.approx(2.0), "round": pytest.approx(2.5)}
    assert order == ["bare", "round"] * 4


def test_a_phase_inside_another_is_not_counted_twice() -> None:
    clock = Fake()
    split = Split(clock)
    with split.phase("aggregation"):
        clock.time += 1
        with split.phase("rest of the client"):
            clock.time += 2
            for _ in range(2):
                with split.phase("data"):
                    clock.time += 4
                    with split.phase("augmentation"):
                        clock.time += 8
            with split.phase("forward and backward"):
                clock.time += 16
        clock.time += 32
    seconds = split.seconds
    assert seconds["aggregation"] == 33 and seconds["rest of the client"] == 2 and seconds["forward and backward"] == 16
    assert seconds["data"] == 8 and seconds["augmentation"] == 16
    assert sum(seconds.values()) == clock.time


def test_an_optimisers_step_is_a_phase_of_its_own() -> None:
    clock = Fake()
    split, weight = Split(clock), torch.zeros(1, requires_grad=True)

    class Slow(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            clock.time += 3

    with split.optimisers(), split.phase("forward and backward"):
        clock.time += 5
        Slow([weight]).step()
    Slow([weight]).step()  # the hooks are gone
    assert split.seconds["optimiser"] == 3 and split.seconds["forward and backward"] == 5


def test_ratios_are_to_the_bare_step() -> None:
    rates = {"bare": 200.0, "round": 190.0, "augmented": 150.0, "scored": 120.0, "beside": 95.0}
    row = SpeedMeasured("fedsam", "resnet18", images=96, passes=2.0, compiled=False, **rates, seconds={}, sent=1, received=2)
    assert row.ratio == 0.95 and row.plain()["augmented_ratio"] == 0.75 and row.pass_ratio == 1.9
    assert row.plain()["scoring_share"] == pytest.approx(0.2) and row.plain()["beside_ratio"] == 0.5


def test_passes_are_counted_by_operations() -> None:
    """FedAvg makes the bare step's pass of an image, FedSAM two; of four views the bare step makes as many."""
    plan = SpeedPlan(methods=("fedavg", "fedsam"), **{**TINY, "repeats": 1})
    passes = {row.method: row.passes for _, _, row in measure(plan)}
    assert passes["fedavg"] == pytest.approx(1, abs=0.01) and passes["fedsam"] == pytest.approx(2, abs=0.02)
    views = SpeedPlan(methods=("fedavg",), **{**TINY, "repeats": 1, "settings": {"views": {"name": "randconv", "styles": "randconv"}}})
    ((_, _, viewed),) = measure(views)
    assert 1 <= viewed.passes < 2  # the convolutions that restyle count, and four times the images in neither side or both


def test_made_up_data_have_whole_batches() -> None:
    data = synthetic(12, 5, 8)
    assert data.names == ("site1", "site2", "site3", TARGET)
    assert [int((d.split == "train").sum()) for d in data.domains[:3] if d.split is not None] == [12, 12, 12]
    masks = synthetic(4, 2, 8, segmentation=True)
    assert masks.domains[0].labels.shape == (6, 2, 8, 8) and set(np.unique(masks.domains[0].labels)) == {0, 1}


def test_the_bare_step_trains() -> None:
    """It must not be fast because it does less: each step moves the weights, and the loss on its one batch falls."""
    case = _cases(SpeedPlan(methods=("fedavg",), **TINY), print)[0]
    bare = bare_step(case.world, batch=4)

    def loss() -> float:
        with torch.no_grad():
            return float(bare._loss(bare._net(bare._x), bare._y))

    before = loss()
    bare.run(60)
    assert loss() < before
    weights = [p.clone() for p in bare._net.parameters()]
    bare.run_without_optimiser(1)
    assert all(torch.equal(a, b) for a, b in zip(weights, bare._net.parameters(), strict=True))


def test_every_method_is_measured() -> None:
    from unseen.methods import METHODS

    rows = {case.method: row for _, case, row in measure(SpeedPlan(**TINY))}
    assert list(rows) == list(METHODS)
    for name, row in rows.items():
        assert set(row.seconds) == set(PHASES) and all(row.seconds[p] > 0 for p in PHASES), name
        assert min(row.bare, row.round, row.augmented) > 0 and row.sent > 0 and row.received > 0
    # three clients with two batches of four
    assert rows["fedavg"].images == rows["fedsb"].images == rows["feddag"].images == rows["elcfs"].images == 3 * 2 * 4
    assert rows["fedadg"].images == 3 * 2 * 4  # and not the ten batches of its paper
    size = sum(
        v.numel() * v.element_size() for v in build_network("small_cnn:width=2", outputs=7, channels=3, size=(8, 8)).state_dict().values()
    )
    assert rows["fedavg"].received == 3 * size  # the model, to three clients
    assert rows["fedavg"].sent == 3 * (size + 8)  # the model and a count


def test_the_threads_are_given_back() -> None:
    torch.set_num_threads(2)
    for _ in measure(SpeedPlan(methods=("fedavg",), threads=1, **TINY)):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_of_all_methods_those_that_fit() -> None:
    """Of masks two are measured: the plain one, and one that differentiates twice."""
    masks, told = {**TINY, "networks": ("unet:width=2,depth=3",), "size": 16}, list[str]()
    cases = [case.method for case in _cases(SpeedPlan(**masks), told.append)]
    assert "fedavg" in cases and "elcfs" in cases and "feddag" not in cases
    assert any("feddag" in line and "classification" in line for line in told)
    assert [row.method for _, _, row in measure(SpeedPlan(methods=("fedavg", "elcfs"), **masks))] == ["fedavg", "elcfs"]
    with pytest.raises(BadInput, match="classification"):
        list(measure(SpeedPlan(methods=("feddag",), **masks)))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--methods", "fedavgg"], "did you mean 'fedavg'"),
        (["--networks", "resnet"], "no network 'resnet'"),
        (["--networks", ","], "give at least one"),
        (["--methods", ","], "or all"),
        (["--batch", "1", "--repeats", "0"], "2 problems"),
        (["--size", "4"], "size is 4; expected at least 8"),
        (["--device", "gpu"], "no device 'gpu'"),
        (["--precision", "fp16"], "no precision 'fp16'"),
        (["--augment", "much"], "no augmentation recipe 'much'"),
        (["--target", "photo"], "give --data too"),
        (["--data", "styled-digits", "--steps", "3"], "--steps"),
        (["--data", "nowhere"], "no data set 'nowhere'"),
        (["--json", "."], "expected a file"),
    ],
)
def test_bad_input_is_one_message(words: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["speed", *words])
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert says in result.output.replace("\n", " ")


def test_the_command_prints_both_tables_and_writes_json(tmp_path: Path) -> None:
    words = "speed --methods fedavg,fedsb --networks small_cnn:width=2 --batch 4 --size 8 --steps 1 --repeats 1 --threads 1 --device cpu"
    result = CliRunner().invoke(app, [*words.split(), "--json", str(tmp_path / "new/speed.json")])
    assert result.exit_code == 0, result.output
    for expected in ("bare step", "ratio", "augmented", "MB sent", "1/2 fedavg", "2/2 fedsb"):
        assert expected in result.output
    found = json.loads((tmp_path / "new/speed.json").read_text())
    assert found["plan"]["threads"] == 1 and found["machine"]["torch"] == torch.__version__
    assert set(_SHORT) == set(PHASES)
    rows = found["measured"]
    assert [row["method"] for row in rows] == ["fedavg", "fedsb"]
    assert all(row["ratio"] == pytest.approx(row["round"] / row["bare"]) for row in rows)


def test_what_was_measured_before_a_cut_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without progress: each row is printed and in the file before the next one begins."""
    from unseen.speed import measuring

    whole = measuring._measured

    def cut(case: Case, *rest: object) -> SpeedMeasured:
        if case.method == "fedsb":
            raise KeyboardInterrupt
        return whole(case, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(measuring, "_measured", cut)
    words = "speed --methods fedavg,fedsb --networks small_cnn:width=2 --batch 4 --size 8 --steps 1 --repeats 1 --threads 1 --device cpu -q"
    result = CliRunner().invoke(app, [*words.split(), "--json", str(tmp_path / "speed.json")])
    assert result.exit_code != 0 and "1/2 fedavg, small_cnn:width=2: bare" in result.output
    assert [row["method"] for row in json.loads((tmp_path / "speed.json").read_text())["measured"]] == ["fedavg"]


def test_methods_share_a_bare_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for those that compile and one for those that do not: made once for each network and batch."""
    from unseen.speed import measuring

    made, make = list[str](), measuring._bare
    monkeypatch.setattr(measuring, "_bare", lambda case, *rest: made.append(case.method) or make(case, *rest))
    rows = [row for _, _, row in measure(SpeedPlan(methods=("fedavg", "fedprox", "fedsam"), **TINY))]
    assert len(rows) == 3 and 1 <= len(made) <= 2 and made[0] == "fedavg"


def test_real_data_are_measured_as_they_are() -> None:
    words = "speed --methods fedavg --networks small_cnn:width=2 --data styled-digits --target plain --batch 64 --repeats 1"
    result = CliRunner().invoke(app, [*words.split(), "--threads", "1", "--device", "cpu", "-q"])
    assert result.exit_code == 0 and "styled-digits" in result.output, result.output


def test_options_of_a_network_have_commas_of_their_own() -> None:
    assert _outside_options("unet:width=8,depth=4,resnet18") == ["unet:width=8,depth=4", "resnet18"]


def test_a_round_with_other_settings_is_held_against_the_round() -> None:
    plan = SpeedPlan(methods=("fedavg",), **{**TINY, "beside": {"epochs": 4}})
    ((_, case, row),) = measure(plan)
    assert case.beside is not None and row.beside is not None
    assert row.beside_ratio == row.beside / row.round < 0.6  # four passes take longer than one


def test_the_start_is_timed_in_a_process_of_its_own() -> None:
    times = seconds_to_first_batch(SpeedPlan(methods=("fedsam",), **TINY), "small_cnn:width=2")
    assert times is not None and list(times) == ["python", "torch", "imports", "world", "data", "batch", "step"]
    assert sorted(times.values()) == list(times.values()) and times["python"] > 0
    assert seconds_to_first_batch(SpeedPlan(**TINY), "no-such-network") is None

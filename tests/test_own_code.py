"""A user's own parts: by FILE.py:NAME or as objects they give the bits that built-in ones give, in any process, and are told apart."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import own_code_for_tests as mine
import unseen
from unseen import BadInput, Experiment, FedAvg, FedSB
from unseen.cli import app
from unseen.client import Pool
from unseen.data.domain import DomainDataset
from unseen.device.graphs import _identity
from unseen.experiment import read_experiment
from unseen.front import run
from unseen.methods import METHODS
from unseen.own_code import Own, load
from unseen.parts.aggregation import Mean
from unseen.parts.sam import SAM
from unseen.parts.server_optimizers import MomentumServer
from unseen.runs.watch import Silent
from unseen.settings import parse_text, values_of
from unseen.training import train
from unseen.world import build_world

FILE = str(Path(mine.__file__).resolve())
SETTINGS = {"method": "fedavg", "target": "c", "data": f"{FILE}:sites", "rounds": 2}


def described(**values: Any) -> Experiment:
    return read_experiment({**SETTINGS, "network": "small_cnn:width=4", **values}, own_code=True)


def records(experiment: Experiment, out: Path, **how: Any) -> bytes:
    train(experiment, out, watch=Silent(), **how)
    return (out / "records.jsonl").read_bytes()


SAME = {
    "aggregation": ({"aggregation": f"{FILE}:MeanAgain:factor=2"}, {"aggregation": "mean"}),
    "optimizer": ({"optimizer": f"{FILE}:SGDAgain", "lr": 0.05}, {"optimizer": "sgd", "lr": 0.05}),
    "optimizer with options": ({"optimizer": f"{FILE}:SGDAgain:momentum=0.9", "lr": 0.05}, {"optimizer": "momentum", "lr": 0.05}),
    "sam": ({"sam": {"name": f"{FILE}:Climb", "rho": 0.1}}, {"sam": SAM(rho=0.1)}),
    "server": ({"server": f"{FILE}:Heavy:beta=0.5"}, {"server": MomentumServer(beta=0.5)}),
    "average": ({"average": f"{FILE}:Latest"}, {}),
}


@pytest.mark.parametrize("case", SAME)
def test_a_part_that_does_what_a_built_in_one_does_gives_its_bits(case: str, tmp_path: Path) -> None:
    own, known = SAME[case]
    first = records(described(set={"batch": 8, **own}), tmp_path / "own")
    assert first == records(described(set={"batch": 8, **known}), tmp_path / "known")


def test_a_network_that_is_a_built_in_one_gives_its_bits(tmp_path: Path) -> None:
    own, known = (records(described(network=name), tmp_path / name[-9:-5]) for name in (f"{FILE}:SmallAgain", "small_cnn:width=4"))
    assert _without_traffic(own) == _without_traffic(known)


def _without_traffic(lines: bytes) -> list[dict[str, Any]]:
    """The bytes of a model that travels hold the names of its entries, which differ."""
    return [{k: v for k, v in json.loads(line).items() if k not in ("travelled", "scoring")} for line in lines.splitlines()]


def test_augmentation_and_metric_that_do_what_built_in_ones_do(tmp_path: Path) -> None:
    plain = records(described(augment="none"), tmp_path / "plain")
    assert records(described(augment=f"{FILE}:unchanged"), tmp_path / "augment") == plain
    assert records(described(augment=f"{FILE}:darker:by=0.9"), tmp_path / "darker") != plain
    first, second = (json.loads(line) for line in records(described(metric=f"{FILE}:right"), tmp_path / "metric").splitlines())
    assert first["metric"] == "right" and first["target"]["c"]["right"] == first["target"]["c"]["accuracy"]
    assert second["source_mean"]["right"] == pytest.approx(second["source_mean"]["accuracy"])
    assert json.loads((tmp_path / "metric/run.json").read_text())["metric"] == "right"


def test_selection_can_go_by_another_known_metric(tiny: DomainDataset, tiny_masks: DomainDataset, tmp_path: Path) -> None:
    train(Experiment(FedAvg(batch=8), tiny, "c", rounds=1, metric="balanced_accuracy"), tmp_path / "a", watch=Silent())
    assert json.loads((tmp_path / "a/records.jsonl").read_text())["metric"] == "balanced_accuracy"
    assert build_world(Experiment(FedAvg(), tiny_masks, "c", metric="dice_cup")).dataset.task.metric == "dice_cup"
    with pytest.raises(BadInput, match=r"no metric where higher is better 'loss'"):
        build_world(Experiment(FedAvg(), tiny, "c", metric="loss"))
    with pytest.raises(BadInput, match="did you mean 'dice_cup'"):
        build_world(Experiment(FedAvg(), tiny_masks, "c", metric="dice_cups"))


def test_everything_at_once_in_workers_and_resumed_is_the_same(tmp_path: Path) -> None:
    whole = {
        "network": f"{FILE}:Tiny:width=6",
        "augment": f"{FILE}:darker",
        "metric": f"{FILE}:right",
        "partition": f"{FILE}:halves",
        "set": {"batch": 8, "aggregation": f"{FILE}:MeanAgain", "optimizer": f"{FILE}:SGDAgain", "views": f"{FILE}:Mirrored"},
    }
    alone = records(described(**whole), tmp_path / "alone")
    experiment = described(**whole)
    assert experiment.rebuildable
    again = read_experiment(json.loads(json.dumps(experiment.description())), own_code=True)
    assert again.description() == experiment.description()
    run(experiment.method, experiment.data, "c", out=tmp_path / "workers", workers=2, **_around(experiment))
    assert (tmp_path / "workers/records.jsonl").read_bytes() == alone
    records(described(**{**whole, "rounds": 1}), tmp_path / "resumed")
    assert records(described(**whole), tmp_path / "resumed", resume=True) == alone
    assert {json.loads(line)["metric"] for line in alone.splitlines()} == {"right"}
    with pytest.raises(BadInput, match="holds another experiment: network was"):
        records(described(**{**whole, "network": f"{FILE}:Tiny:width=7"}), tmp_path / "resumed", resume=True)


def _around(experiment: Experiment) -> dict[str, Any]:
    return {key: getattr(experiment, key) for key in ("network", "augment", "metric", "partition", "rounds")}


def test_a_file_is_imported_once_however_often_it_is_named(tmp_path: Path) -> None:
    count = tmp_path / "count"
    words = ["run", "--method", "fedavg", "--target", "c", "--rounds", "1", "--data", f"{FILE}:sites", "--network", f"{FILE}:Tiny"]
    words += ["--set", f"optimizer={FILE}:SGDAgain", "--set", f"aggregation={FILE}:Bare", "--metric", f"{FILE}:right", "--workers", "1"]
    environment = {**os.environ, "COUNT_IMPORTS_IN": str(count)}
    subprocess.run([sys.executable, "-m", "unseen", *words, "--out", str(tmp_path / "run")], env=environment, check=True)
    assert count.read_text() == "imported\n"
    assert load(f"{FILE}:Tiny")[1] is load(f"{Path(FILE).parent}/../tests/{Path(FILE).name}:Tiny")[1]


def test_what_lives_in_memory_is_said_and_runs_in_one_process(tiny: DomainDataset, tmp_path: Path) -> None:
    method = FedAvg(batch=8, aggregation=mine.MeanAgain(), optimizer=mine.SGDAgain)
    result = run(
        method, tiny, "c", rounds=1, network=mine.Tiny, metric=mine.right, augment=mine.darker, partition=mine.halves, out=tmp_path / "r"
    )
    about = json.loads((tmp_path / "r/run.json").read_text())["experiment"]
    assert (about["network"], about["metric"], about["augment"]) == ("memory:Tiny", "memory:right", "memory:darker")
    assert (about["set"]["optimizer"], about["set"]["aggregation"]["name"]) == ("memory:SGDAgain", "memory:MeanAgain")
    assert not result.world.experiment.rebuildable and about["partition"] == "memory:halves"
    assert isinstance(result.network.net, mine.Tiny)  # type: ignore[attr-defined]
    with pytest.raises(BadInput, match="made in Python and in no file"):
        read_experiment({**about, "data": "styled-digits", "set": {}, "method": "fedavg"})
    for part in ({"optimizer": mine.SGDAgain}, {"aggregation": mine.Bare()}, {"views": mine.Mirrored()}):
        assert not Experiment(FedAvg(**part)).rebuildable  # type: ignore[arg-type]
    assert Experiment(FedAvg(), network=load(f"{FILE}:Tiny")[1]).rebuildable  # it did come from a file
    assert Experiment(FedAvg(aggregation=Mean()), label="memory:only a label").rebuildable


def test_an_object_is_copied_and_a_partial_gives_options(tiny: DomainDataset) -> None:
    net = mine.Tiny(3)
    before = net.head.weight.detach().clone()
    result = run(FedAvg(batch=8, lr=0.05), tiny, "c", rounds=1, network=net)
    assert torch.equal(net.head.weight, before) and not torch.equal(result.state["net.head.weight"], before)
    assert torch.equal(result.world.fresh("task")["net.head.weight"], before)
    options = functools.partial(mine.Tiny, width=5, head="head")
    assert build_world(Experiment(FedAvg(), tiny, "c", network=options)).fresh("task")["net.conv.weight"].shape[0] == 5


def test_a_value_that_names_code_is_kept_whole_on_the_command_line() -> None:
    assert parse_text("a/b.py:Thing:key=1,other=x") == "a/b.py:Thing:key=1,other=x"
    assert parse_text("cea:beta=1") == {"name": "cea", "beta": 1}


def test_an_optimiser_of_ones_own_is_new_in_every_task_and_never_replayed() -> None:
    class Counting(torch.optim.SGD):
        """Some of its state lies where nobody looks."""

        def __init__(self, params: Any, lr: float, weight_decay: float = 0.0) -> None:
            super().__init__(params, lr=lr, weight_decay=weight_decay)
            self.steps = 0

        def step(self, closure: Any = None) -> None:
            self.steps += 1

    net = nn.Linear(1, 1)
    pool = Pool({"task": lambda: net}, torch.device("cpu"))
    for graphs in (None, object()):  # a GPU's pool keeps what it knows
        pool.graphs = graphs  # type: ignore[assignment]
        first = pool.optimizer(Counting, [net], {"lr": 0.1})
        first.step()
        assert pool.optimizer(Counting, [net], {"lr": 0.1}).steps == 0  # type: ignore[attr-defined]
        assert pool.optimizer(torch.optim.SGD, [net], {"lr": 0.1}) is pool.optimizer(torch.optim.SGD, [net], {"lr": 0.1})
        assert _identity(_step(net, first)) is None and _identity(_step(net, torch.optim.SGD(net.parameters()))) is not None


def _step(net: nn.Module, optimizer: Any) -> Any:
    def step(x: torch.Tensor) -> None:
        net(x).sum().backward()
        optimizer.step()

    return step


UNFIT = {"copa": "the head of OwnNet is one head", "csac": "3 stages are compared, and OwnNet names 0"}  # and why


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_a_network_of_ones_own_or_says_why_not(name: str, tiny: DomainDataset) -> None:
    from tiny_settings import SETTINGS as CASES

    if name in UNFIT:
        with pytest.raises(BadInput, match=UNFIT[name]):
            run(CASES[name].build(), tiny, "c", rounds=2, network=mine.Tiny)
        return
    world = run(CASES[name].build(), tiny, "c", rounds=2, network=mine.Tiny, partition=CASES[name].partition).world
    assert world.builders["task"]().feature_size == 8  # type: ignore[attr-defined]


def test_masks_too(tiny_masks: DomainDataset) -> None:
    for name in ("elcfs", "fedavg"):
        method = METHODS[name](batch=4, **({"feature_maps": 1} if name == "elcfs" else {}))
        result = run(method, tiny_masks, "c", rounds=1, network=mine.Masks)
        seen = result.model(torch.zeros(2, 3, 16, 16), full=True)
        assert seen.features.shape == (2, 8, 16, 16) == seen.maps[-1].shape and seen.logits.shape == (2, 2, 16, 16)


def test_a_metric_over_masks(tiny_masks: DomainDataset, tmp_path: Path) -> None:
    def overlap(probabilities: torch.Tensor, labels: torch.Tensor) -> float:
        assert probabilities.shape == labels.shape and len(labels) in (1, 8)
        return float(((probabilities > 0.5) & (labels > 0)).double().mean())

    run(FedAvg(batch=4), tiny_masks, "c", rounds=1, metric=overlap, out=tmp_path / "run")
    record = json.loads((tmp_path / "run/records.jsonl").read_text())
    assert record["metric"] == "overlap" and set(record["target"]["c"]) >= {"overlap", "dice"}


# What is refused, each with one message


def wrong(tmp_path: Path, *words: str) -> str:
    out = tmp_path / "refused"
    told = CliRunner().invoke(app, ["run", "--method", "fedavg", "--target", "outline", "--rounds", "1", "--out", str(out), *words])
    assert told.exit_code == 2 and not out.exists(), told.output
    assert told.exception is None or isinstance(told.exception, SystemExit)
    return " ".join(told.output.split())


BROKEN = """
import torch
from torch import nn

class Wide(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.fc = nn.Linear(3072, outputs + 1)
    def forward(self, x):
        return self.fc(x.flatten(1))

class Headless(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, 3072))
    def forward(self, x):
        return x.flatten(1) @ self.weight.T

class Failing(Headless):
    def forward(self, x):
        return x.nowhere

class Needy(Headless):
    def __init__(self, outputs, depth):
        super().__init__(outputs)

def one(x): return x
def pair(x, y, rng): return x
def smaller(x, y, rng): return x[:, :, 1:], y
def nan(probabilities, labels): return float("nan")
def text(probabilities, labels): return "good"
def crash(probabilities, labels): return labels.missing
def nobody(sources, seed): return []
def no_optimizer(params, lr, weight_decay): return None
def bad_optimizer(params, lr): return None
class NoDataclass: pass
mapping = {"a": [(torch.zeros(3, 16, 16), 0), (torch.zeros(3, 15, 16), 0)], "b": [(torch.zeros(3, 16, 16), 0)]}
"""
REFUSED = {
    "a missing file": (["--network", "nowhere.py:Net"], "no file"),
    "a missing name": (["--network", "FILE:Wid"], "did you mean 'Wide'"),
    "too many outputs": (["--network", "FILE:Wide"], r"gives [2, 11] for two images of [3, 32, 32]; expected logits [2, 10]"),
    "no head": (["--network", "FILE:Headless"], "runs no linear layer, so it is not known what its head is. Name the module"),
    "an unknown head": (["--network", "FILE:Headless:head=fc"], "has no module 'fc'"),
    "an error in it": (["--network", "FILE:Failing"], "broken.py): AttributeError: 'Tensor' object has no attribute 'nowhere'"),
    "an argument that nobody gives": (["--network", "FILE:Needy"], "needs 'depth'"),
    "an option that it does not take": (["--network", "FILE:Wide:widht=3"], "takes no option 'widht'"),
    "no option": (["--network", "FILE:Wide:width"], "'width' is no option"),
    "no network": (["--network", "FILE:one"], "'x'"),
    "another signature": (["--augment", "FILE:one"], "is called with (x, y, rng) and takes (x)"),
    "no pair": (["--augment", "FILE:pair"], "returned a Tensor; expected the images and the labels"),
    "another shape": (["--augment", "FILE:smaller"], "expected the same shapes"),
    "a metric of nan": (["--metric", "FILE:nan"], "returned nan"),
    "a metric of text": (["--metric", "FILE:text"], "returned a str"),
    "a metric that fails": (["--metric", "FILE:crash"], "AttributeError"),
    "no clients": (["--partition", "FILE:nobody"], "expected a list of unseen.data.Holding"),
    "no optimiser": (["--set", "optimizer=FILE:no_optimizer"], "makes a NoneType; expected a torch.optim.Optimizer"),
    "an optimiser of another signature": (["--set", "optimizer=FILE:bad_optimizer"], "cannot be made with (params, lr=, weight_decay=)"),
    "no part": (["--set", "aggregation=FILE:NoDataclass"], "no class that derives from unseen.parts.aggregation.Aggregation"),
    "no method": (["--method", "FILE:Wide"], "is no Method"),
    "unequal sizes": (["--data", "FILE:mapping"], "sample 1 of domain 'a' is 3 x 15 x 16 and the first is 3 x 16 x 16"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_is_one_message_and_leaves_nothing_behind(case: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    words, says = REFUSED[case]
    assert says in wrong(tmp_path, *(word.replace("FILE", str(tmp_path / "broken.py")) for word in words))


def test_an_error_in_the_file_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    for text, says in (("x = 1\ny = nowhere\n", "line 2"), ("x = (\n", "line 1"), ("import sys\nsys.exit(3)\n", "line 2")):
        file.write_text(text)
        told = wrong(tmp_path, "--network", f"{file}:Net")
        assert "cannot be imported" in told and says in told and str(file) in told


def test_mistakes_in_python_are_told_like_those_on_the_command_line(tiny: DomainDataset) -> None:
    with pytest.raises(BadInput, match=r"method is the class FedSB; give an object: FedSB\(\)"):
        unseen.run(unseen.FedSB, tiny, "c")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="FedSB has no field 'smothing'; did you mean 'smoothing'"):
        FedSB(smothing=0.1)  # type: ignore[call-arg]
    with pytest.raises(BadInput, match=r"aggregation is the class Mean; give an object: Mean\(\)"):
        FedAvg(aggregation=Mean)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="no setting 'round'; did you mean 'rounds'"):
        run(FedAvg(), tiny, "c", round=3)

    with pytest.raises(BadInput, match="has the field 'trim' but is no dataclass"):

        class Trimmed(Mean):
            trim: float = unseen.hyper(0.1, "share")

        Trimmed()
    with pytest.raises(BadInput, match="give its function a name of its own"):
        build_world(Experiment(FedAvg(), tiny, "c", metric=lambda p, y: 1.0))


def test_what_a_setting_expects_mentions_ones_own() -> None:
    with pytest.raises(BadInput, match="optimizer is 'adem'; did you mean 'adam'"):
        read_experiment({"method": "fedavg", "set": {"optimizer": "adem"}})
    assert values_of(FedAvg(optimizer=Own("x.py:Y", mine.SGDAgain)))["optimizer"] == "x.py:Y"


def test_exports_of_a_network_of_ones_own(tmp_path: Path) -> None:
    experiment = described(network=f"{FILE}:Tiny", rounds=1)
    train(experiment, tmp_path / "run", watch=Silent())

    def export(*options: str) -> Any:
        return CliRunner().invoke(app, ["export", str(tmp_path / "run"), *options])

    told = export("--to", "torchscript")
    assert told.exit_code == 2 and f"{FILE}:Tiny" in told.output and "--trust" in told.output
    told = export("--to", "safetensors", "--trust")
    assert told.exit_code == 2 and "weights alone" in told.output and not (tmp_path / "run/export-safetensors").exists()
    assert export("--to", "torchscript", "--trust").exit_code == 0
    pytest.importorskip("onnxruntime")
    told = export("--to", "onnx", "--trust")
    assert told.exit_code == 0, told.output


def test_a_benchmark_takes_them_too(tmp_path: Path) -> None:
    file = tmp_path / "bench.toml"
    file.write_text(
        f'data = "{FILE}:sites"\ntargets = "all"\nseeds = [0]\nrounds = 1\nnetwork = "{FILE}:Tiny"\n'
        f'methods = [{{ method = "fedavg", set = {{ aggregation = {{ name = "{FILE}:MeanAgain", factor = 3.0 }} }} }}]\n'
    )
    told = CliRunner().invoke(app, ["bench", str(file), "--out", str(tmp_path / "out"), "--jobs", "2"])
    assert told.exit_code == 0, told.output
    about = json.loads((tmp_path / "out/FedAvg/a/seed-0/run.json").read_text())["experiment"]
    assert about["set"]["aggregation"] == {"name": f"{FILE}:MeanAgain", "factor": 3.0}


def test_images_with_their_channels_last_and_tensors_in_a_domain() -> None:
    labels = np.zeros(2, dtype=np.int64)
    with pytest.raises(BadInput, match=r"channels last; give images.transpose\(0, 3, 1, 2\)"):
        unseen.Domain("a", np.zeros((2, 16, 16, 3), dtype=np.uint8), labels)
    made = unseen.Domain("a", torch.zeros(2, 3, 16, 16, dtype=torch.uint8), torch.zeros(2, dtype=torch.long))  # type: ignore[arg-type]
    assert isinstance(made.images, np.ndarray) and made.labels.dtype == np.int64


@pytest.mark.parametrize("method", ["fedavg", "feddyn", "fedadg", "elcfs", "feddag"])
def test_layers_that_an_own_network_froze_stay_frozen(method: str, tiny: DomainDataset) -> None:
    class Frozen(nn.Module):
        def __init__(self, outputs: int, channels: int) -> None:
            super().__init__()
            self.body, self.fc = nn.Conv2d(channels, 6, 3), nn.Linear(6, outputs)
            self.body.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(torch.relu(self.body(x)).mean((2, 3)))

    small = {"feddag": {"warmup": 0, "width": 4}, "fedadg": {"classification_epochs": 1, "alignment_epochs": 1}}.get(method, {})
    result = unseen.run(METHODS[method](batch=8, **small), tiny, "c", rounds=1, network=Frozen)
    begun = result.world.fresh("task")
    assert torch.equal(result.state["net.body.weight"], begun["net.body.weight"])
    assert not torch.equal(result.state["net.fc.weight"], begun["net.fc.weight"])

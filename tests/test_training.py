"""Runs: files, resume after a cut at every moment, folders that hold something else."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

import methods_for_tests as own
import unseen
from unseen import Experiment, FedAvg, FedSB
from unseen.data.domain import DomainDataset
from unseen.errors import BadInput
from unseen.runs.selection import RULES
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.training import Result, train
from unseen.world import World, build_world

FILES = ("records.jsonl", "model.safetensors", "best.safetensors", "run.json")


class Listening(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.done: list[int] = []

    def begin(self, world: World, done: int) -> None:
        self.done.append(done)

    def say(self, message: str) -> None:
        self.said.append(message)


def go(data: DomainDataset, out: Path, *, resume: bool = False, rounds: int = 4, watch: Silent | None = None, **settings: Any) -> Result:
    method = settings.pop("method", own.Exercise())
    experiment = Experiment(method=method, data=data, target=settings.pop("target", "c"), rounds=rounds, **settings)
    return train(experiment, out, resume=resume, watch=watch or Silent())


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    from conftest import tiny_classification

    folder = tmp_path_factory.mktemp("whole") / "run"
    go(tiny_classification(), folder)
    return contents(folder)


class Killed(BaseException):
    """Like kill -9: nothing catches it, nothing is tidied up afterwards."""


def cut_at(monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    """Let the process die at the n-th time it touches the disk for good."""
    left = [moment]

    def dying(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    dying("replace")
    dying("fsync")


def test_resume_after_a_cut_at_every_moment(
    tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, bytes]
) -> None:
    moment, done = 0, False
    while not done:
        folder = tmp_path / str(moment)
        with monkeypatch.context() as patch:
            cut_at(patch, moment)
            try:
                go(tiny, folder)
                done = True
            except Killed:
                pass
        go(tiny, folder, resume=True)
        assert contents(folder) == whole, f"cut at moment {moment}"
        moment += 5 if moment > 30 else 1
    assert moment > 50  # the run does touch the disk that often


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "records.jsonl", "timings.jsonl"])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99])
def test_a_file_cut_short_sends_the_run_back(tiny: DomainDataset, tmp_path: Path, whole: dict[str, bytes], name: str, keep: float) -> None:
    go(tiny, tmp_path / "run", rounds=3)
    file = tmp_path / "run" / name
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])
    watch = Listening()
    go(tiny, tmp_path / "run", resume=True, watch=watch)
    assert contents(tmp_path / "run") == whole
    assert bool(watch.said) == (name != "timings.jsonl")
    if name == "checkpoint.safetensors":
        assert watch.done == [2]  # the checkpoint before it was kept


def test_records_are_not_given_up_for_want_of_a_checkpoint(tiny: DomainDataset, tmp_path: Path, whole: dict[str, bytes]) -> None:
    go(tiny, tmp_path / "run", rounds=3)
    for file in (tmp_path / "run").glob("checkpoint*"):
        file.rename(tmp_path / file.name)
    before = (tmp_path / "run/records.jsonl").read_bytes()
    with pytest.raises(BadInput, match="records of 3 rounds and no checkpoint"):
        go(tiny, tmp_path / "run", resume=True)
    assert (tmp_path / "run/records.jsonl").read_bytes() == before
    for file in tmp_path.glob("checkpoint*"):
        file.rename(tmp_path / "run" / file.name)
    go(tiny, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == whole


def test_records_that_no_checkpoint_reaches_are_kept_aside(tiny: DomainDataset, tmp_path: Path, whole: dict[str, bytes]) -> None:
    folder = tmp_path / "run"
    go(tiny, folder, rounds=3)
    for time in (1, 2):
        for file in folder.glob("checkpoint*"):
            file.write_bytes(file.read_bytes()[:100])
        (folder / "model.safetensors").unlink()  # or the second time the run would be finished
        before, watch = (folder / "records.jsonl").read_bytes(), Listening()
        go(tiny, folder, resume=True, watch=watch)
        assert contents(folder) == whole
        assert (folder / f"records.lost-{time}.jsonl").read_bytes() == before
        assert watch.said[-1].endswith(f"its records are kept as records.lost-{time}.jsonl")


def test_garbage_in_the_records_sends_the_run_back(tiny: DomainDataset, tmp_path: Path, whole: dict[str, bytes]) -> None:
    go(tiny, tmp_path / "run", rounds=3)
    file = tmp_path / "run/records.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b"{garbage\n" + lines[2])
    go(tiny, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == whole


def test_rounds_may_be_raised_not_lowered(tiny: DomainDataset, tmp_path: Path, whole: dict[str, bytes]) -> None:
    go(tiny, tmp_path / "run", rounds=2)
    go(tiny, tmp_path / "run", rounds=4, resume=True)
    assert contents(tmp_path / "run") == whole
    with pytest.raises(BadInput, match="not fewer"):
        go(tiny, tmp_path / "run", rounds=3, resume=True)


def test_a_finished_run_is_left_alone(tiny: DomainDataset, tmp_path: Path, whole: dict[str, bytes]) -> None:
    go(tiny, tmp_path / "run")
    watch = Listening()
    go(tiny, tmp_path / "run", resume=True, watch=watch)
    assert contents(tmp_path / "run") == whole and "finished already" in watch.said[0]


def test_resume_starts_anew_in_a_missing_or_empty_folder(tiny: DomainDataset, tmp_path: Path, whole: dict[str, bytes]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/.run.json.1.tmp").write_text("{")  # left by a kill while run.json was written
    for name in ("missing", "empty"):
        go(tiny, tmp_path / name, resume=True)
        assert contents(tmp_path / name) == whole


def test_a_changed_experiment_is_refused_by_field(tiny: DomainDataset, tmp_path: Path) -> None:
    go(tiny, tmp_path / "run", method=FedSB(budget=1))
    before = contents(tmp_path / "run")
    with pytest.raises(BadInput) as caught:
        go(tiny, tmp_path / "run", method=FedSB(budget=2, lr=0.5), seed=1, resume=True)
    text = str(caught.value)
    assert "set.budget was 1 and is 2" in text and "set.lr" in text and "seed was 0 and is 1" in text
    assert contents(tmp_path / "run") == before


def test_an_occupied_folder_is_refused(tiny: DomainDataset, tmp_path: Path) -> None:
    go(tiny, tmp_path / "run", method=FedSB(budget=1), rounds=1)
    with pytest.raises(BadInput, match=r"holds a run already \(FedSB, fold c, seed 0\)"):
        go(tiny, tmp_path / "run", method=FedSB(budget=1), rounds=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").write_text("")
    with pytest.raises(BadInput, match=r"other files \(thesis.tex\)"):
        go(tiny, tmp_path / "other", resume=True)
    with pytest.raises(BadInput, match="is a file"):
        go(tiny, tmp_path / "other/thesis.tex")
    (tmp_path / "run/run.json").write_text("[]")
    with pytest.raises(BadInput, match="cannot be read as a run"):
        go(tiny, tmp_path / "run", resume=True)


def test_two_processes_cannot_share_a_folder(tiny: DomainDataset, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run/.lock"), pytest.raises(BadInput, match=r"another process is working in .*run; wait for it"):
        go(tiny, tmp_path / "run")
    go(tiny, tmp_path / "run", rounds=1)
    assert FileLock(tmp_path / "run/.lock", timeout=0).acquire(), "a run that ended lets its folder go"


def test_a_full_disk_leaves_a_run_that_can_go_on(
    tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, bytes]
) -> None:
    import unseen.runs.folder

    real, calls = unseen.runs.folder._append, [0]

    def full(file: Path, line: bytes, mode: int) -> None:
        calls[0] += 1
        if calls[0] == 5:  # half a line of round 3 still fits
            with file.open("ab") as stream:
                stream.write(line[: len(line) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file, line, mode)

    with monkeypatch.context() as patch:
        patch.setattr(unseen.runs.folder, "_append", full)
        with pytest.raises(OSError, match="No space"):
            go(tiny, tmp_path / "run")
    go(tiny, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == whole


def test_what_a_run_writes(tiny: DomainDataset, tmp_path: Path) -> None:
    result = go(tiny, tmp_path / "run", method=FedSB(smoothing=0.2, budget=2), rounds=3)
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["departures"] == {
        "smoothing": [0.1, 0.2],
        "budget": [30, 2],
        "rounds": [100, 3],
        "augment": ["domainbed", "none"],
    }
    assert run["experiment"]["seed"] == 0 and len(run["partition"]) == 64 and run["versions"]["unseen"] == unseen.__version__
    records = [json.loads(line) for line in (tmp_path / "run/records.jsonl").read_text().splitlines()]
    assert [r["round"] for r in records] == [1, 2, 3] and records == list(result.records)
    assert set(records[0]["target"]) == {"c"} and set(records[0]["source"]) == {"a", "b"}
    assert not any("time" in key or "second" in key for key in records[0])
    timings = [json.loads(line) for line in (tmp_path / "run/timings.jsonl").read_text().splitlines()]
    assert all(t["train"] > 0 and t["score"] > 0 for t in timings)
    model = load_file(tmp_path / "run/model.safetensors")
    assert all(torch.equal(model[k], v) for k, v in result.state.items()) and model.keys() == result.state.keys()


def test_best_is_the_round_that_the_source_rule_picks(tiny: DomainDataset, tmp_path: Path) -> None:
    result = go(tiny, tmp_path / "run", method=FedAvg(lr=0.02, batch=8), rounds=6)
    chosen = RULES["source"].picks(result.records)
    assert chosen is not None
    again = go(tiny, tmp_path / "again", method=FedAvg(lr=0.02, batch=8), rounds=chosen + 1)
    best = load_file(tmp_path / "run/best.safetensors")
    assert all(torch.equal(best[k], v) for k, v in again.state.items())


def test_run_from_python(tiny: DomainDataset) -> None:
    result = unseen.run(method=FedSB(smoothing=0.2, budget=4, lr=0.01, batch=16), data=tiny, target="c", rounds=8)
    assert len(result.records) == 8
    assert result.records[-1]["target"]["c"]["accuracy"] > 0.5  # three classes
    x = torch.rand(2, 3, 8, 8)
    assert result.model(x).shape == (2, 3) and not result.model.training
    assert "| FedSB |" in str(result.table())
    with pytest.raises(BadInput, match="no setting 'round'"):
        unseen.run(FedSB(), tiny, "c", round=3)


def test_the_target_cannot_be_reached_while_training(tiny: DomainDataset, tmp_path: Path) -> None:
    """With other images and labels in the target, everything but its own scores stays as it was, to the bit."""
    from dataclasses import replace

    a, b, c = tiny.domains
    other = replace(tiny, domains=(a, b, replace(c, images=255 - c.images, labels=c.labels[::-1].copy())))
    one, two = go(tiny, tmp_path / "one"), go(other, tmp_path / "two")
    assert all(torch.equal(one.state[k], two.state[k]) for k in one.state)
    for r, s in zip(one.records, two.records, strict=True):
        assert r["target"] != s["target"]
        assert {k: v for k, v in r.items() if k != "target"} == {k: v for k, v in s.items() if k != "target"}


def test_a_run_of_a_version_with_fewer_settings_is_the_same_experiment_and_stays_finished(tiny: DomainDataset, tmp_path: Path) -> None:
    """A folder of an older version lacks new settings, and its checkpoint may be of another form; its results are not made again."""
    experiment = Experiment(FedAvg(lr=0.02, batch=8), tiny, "c", rounds=2)
    whole = train(experiment, tmp_path / "run", watch=Silent())
    file = tmp_path / "run/run.json"
    about = json.loads(file.read_text())
    for gone in ("participation", "metric"):
        del about["experiment"][gone]
    for gone in ("server", "average", "weight_decay"):
        del about["experiment"]["set"][gone]
    file.write_text(json.dumps(about))
    for checkpoint in (tmp_path / "run").glob("checkpoint*"):
        checkpoint.write_bytes(b"of another form")
    before = (tmp_path / "run/records.jsonl").read_bytes()
    again = train(experiment, tmp_path / "run", watch=Silent(), resume=True)
    assert same_bits(again.state, whole.state) and (tmp_path / "run/records.jsonl").read_bytes() == before
    assert not list((tmp_path / "run").glob("records.lost*"))
    file.write_text(json.dumps(about))
    other = Experiment(FedAvg(lr=0.02, batch=8), tiny, "c", rounds=2, participation=0.5)
    with pytest.raises(BadInput, match=r"participation was 1\.0 and is 0\.5"):
        train(other, tmp_path / "run", watch=Silent(), resume=True)


def test_compiling_on_a_cpu_is_refused(tiny: DomainDataset) -> None:
    with pytest.raises(BadInput, match="device is 'cpu', where compiling costs more than it wins"):
        Experiment(FedAvg(), tiny, "c", device="cpu", compile="on")


def test_a_method_without_such_a_pass_is_not_compiled(tiny: DomainDataset) -> None:
    asked = Experiment(unseen.ELCFS(), tiny, "c", device="cpu")
    object.__setattr__(asked, "compile", "on")  # as on a GPU
    with pytest.raises(BadInput, match="ELCFS has no pass that is compiled; use --compile auto or off"):
        build_world(asked)


def test_what_is_written_is_in_order_and_a_failure_ends_it() -> None:
    from unseen.runs.writing import Writer

    writer, done = Writer(), list[int]()

    def fail() -> None:
        raise OSError(28, "no space left")

    for number in range(20):
        writer.later(done.append, number)
    writer.flush()
    assert done == list(range(20))
    writer.later(fail)
    writer.later(done.append, 99)
    with pytest.raises(OSError, match="no space left"):
        writer.flush()
    with pytest.raises(OSError, match="no space left"):
        writer.close()
    assert 99 not in done

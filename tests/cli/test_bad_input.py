"""A user's mistakes, command by command: one message, exit code 2, and nothing left behind that makes the corrected command fail."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from own_keys import everything
from unseen.cli import app

RUN = "run --method fedavg --data styled-digits --target plain --network small_cnn:width=2 --workers 1 --set steps=1 --rounds 1"
BENCH = "bench b.toml --out new --workers 1"
MODEL = "run/export-safetensors"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What lies around when somebody makes a mistake: a finished run, a model, small images, files of all kinds."""
    home = tmp_path_factory.mktemp("desk")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for line in (
            f"{RUN} --out run -q",
            "export run",
            "federation init c --server localhost",
            "federation request c/invitation.json --name north",
        ):
            done = CliRunner().invoke(app, line.split())
            assert done.exit_code == 0, done.output
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for kind in ("healthy", "ill"):
            (home / "sites" / site / kind).mkdir(parents=True)
            for number in range(3):
                Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(home / f"sites/{site}/{kind}/{number}.png")
    shutil.copytree(home / "sites", home / "broken")
    (home / "broken/north/ill/1.png").write_bytes(b"no image")
    (home / "empty").mkdir()
    (home / "other").mkdir()
    (home / "other/mine.txt").write_text("kept")
    (home / "file").write_text("a file")
    (home / "bad.toml").write_bytes(b"\x00\xff")
    (home / "wrong.toml").write_text('method = "fedsb"\nworkers = "two"\nout = 3\nround = 4\nset = 3\n')
    (home / "track.toml").write_text('method = "fedsb"\ntarget = "plain"\ntrack = 3\n')
    text = 'targets = ["plain"]\nrounds = 1\nnetwork = "small_cnn:width=2"\nmethods = ["fedavg", "fedsb"]\n'
    (home / "b.toml").write_text(text)
    (home / "r.toml").write_text('method = "fedavg"\ntarget = "plain"\n')
    (home / "pacs.toml").write_text('data = "pacs"\ntargets = ["photo", "sketch"]\nseeds = [0, 1, 2]\nmethods = ["fedavg", "fedsb"]\n')
    (home / "preset.toml").write_text('targets = ["plain"]\nmethods = [{ method = "fedsb", preset = [] }]\n')
    (home / "rows.toml").write_text('targets = ["plain"]\nmethods = [{ methd = "fedavg" }, 3]\n')
    (home / "numbers.toml").write_text('targets = ["plain"]\nmethods = ["fedavg"]\n[paper_numbers]\nFedAvg = "high"\n')
    (home / "mine.py").write_text("VALUE = 3\nclass Plain: ...\n")
    (home / "typo.py").write_text("def (:\n")
    (home / "table.csv").write_text("a,b\n1,2\n")
    for name, content in (("damaged", "{"), ("foreign", '{"experiment": 3, "name": "x", "fold": "y"}')):
        (home / name).mkdir()
        (home / name / "run.json").write_text(content)
    (home / "named").mkdir()
    own = json.loads((home / "run/run.json").read_text())
    own["experiment"]["method"] = "/tmp/evil.py:Method"
    (home / "named/run.json").write_text(json.dumps(own))
    return home


CASES = {
    # run
    "run": "method is None",
    "run --method fedavg --target plain --rounds 1.5": "is not a valid integer",
    "run --round 3": "No such option",
    "run missing.toml": "no file missing.toml",
    "run bad.toml": "is not a TOML file",
    "run empty": "cannot be read",
    "run wrong.toml": "did you mean 'rounds'",
    "run track.toml": "track is 3",
    f"{RUN} --method fedagv": "did you mean 'fedavg'",
    f"{RUN} --method nowhere.py:Mine": "no file",
    f"{RUN} --method mine.py:Missing": "has no 'Missing'",
    f"{RUN} --method mine.py:Plain": "Plain",
    f"{RUN} --method typo.py:Mine": "cannot be imported (line 1",
    f"{RUN} --data stiled-digits": "did you mean 'styled-digits'",
    f"{RUN} --data pacs --target photo": "unseen data prepare pacs",
    f"{RUN} --data folder:nowhere --target x": "does not exist",
    f"{RUN} --data folder:empty --target x": "empty",
    f"{RUN} --data folder:broken --size 8 --target north": "1 of 12 files",
    f"{RUN} --data csv:nowhere.csv --target x": "does not exist",
    f"{RUN} --data csv:table.csv --target x": "column",
    f"{RUN} --data mine.py:VALUE": "expected a torch Dataset",
    f"{RUN} --target nowhere": "no domain of styled-digits 'nowhere'",
    f"{RUN} --target outlin": "did you mean 'outline'",
    f"{RUN} --rounds 0": "rounds is 0",
    f"{RUN} --set rounds=3": "rounds is no field of fedavg but a key of the experiment; give it outside `set`: --rounds",
    f"{RUN} --seed -1": "seed is -1",
    f"{RUN} --size 4": "size is 4",
    f"{RUN} --size 64": "made at",
    f"{RUN} --validation 2": "validation is 2",
    f"{RUN} --clients 0": "clients is 0",
    f"{RUN} --participation 0": "participation is 0",
    f"{RUN} --participation 1.5": "participation is 1.5",
    f"{RUN} --minimum 5000": "5000",
    f"{RUN} --partition dial:x": "dial",
    f"{RUN} --partition dirichlet:-1": "dirichlet",
    f"{RUN} --partition file:nowhere.json": "cannot be read",
    f"{RUN} --partition splitt": "did you mean 'split'",
    f"{RUN} --weights nowhere.pth": "no weight file nowhere.pth",
    f"{RUN} --weights imagenet": "no ImageNet weights",
    f"{RUN} --weights file": "cannot be read as a weight file",
    f"{RUN} --augment zoom": "no augmentation recipe 'zoom'",
    f"{RUN} --metric f2": "f2",
    f"{RUN} --sources outline,nowhere": "nowhere",
    f"{RUN} --held-out nowhere": "nowhere",
    f"{RUN} --held-out plain": "plain",
    f"{RUN} --protocol single-source": "source",
    f"{RUN} --protocol double": "double",
    f"{RUN} --network small_cnn:width=0": "width",
    f"{RUN} --network small_cnn:wdth=2": "did you mean 'width'",
    f"{RUN} --network unet": "one answer per pixel",
    f"{RUN} --device gpu": "did you mean 'cuda'",
    f"{RUN} --precision fp64": "precision is 'fp64'",
    f"{RUN} --device cpu --compile on": "compile is 'on'",
    f"{RUN} --threads 0": "threads is 0",
    f"{RUN} --workers 0": "--workers",
    f"{RUN} --preset papper": "did you mean 'paper'",
    f"{RUN} --set lr": "expected FIELD=VALUE",
    f"{RUN} --set =3": "expected FIELD=VALUE",
    f"{RUN} --set lr=nan": "lr is nan",
    f"{RUN} --set lr=-1": "lr is -1",
    f"{RUN} --set batch=0": "batch is 0",
    f"{RUN} --set batch=ten": "batch is 'ten'",
    f"{RUN} --set lrr=1": "did you mean 'lr'",
    f"{RUN} --set aggregation=shaa": "did you mean 'sha'",
    f"{RUN} --set aggregation=3": "expected an Aggregation",
    f"{RUN} --set aggregation=sha:kk=2": "kk",
    f"{RUN} --set optimizer=adamm": "adamm",
    f"{RUN} --out file": "is a file",
    f"{RUN} --out other": "holds other files (mine.txt)",
    f"{RUN} --out /proc/x/y": "cannot be written",
    f"{RUN} --out file/below": "cannot be written",
    f"{RUN} --out run": "--resume",
    f"{RUN} --out damaged": "cannot be read as a run",
    f"{RUN} --engine flower": "needs --federation",
    f"{RUN} --engine flour": "did you mean 'flower'",
    f"{RUN} --deadline 3": "for runs between machines",
    f"{RUN} --federation nowhere": "no federation in nowhere",
    f"{RUN} --track mlfow": "did you mean 'mlflow'",
    f"{RUN} --trust": "--resume DIR",
    "run --resume nowhere": "no run in nowhere",
    "run --resume other": "no run in other",
    "run --resume damaged": "cannot be read as a run",
    "run --resume foreign": "cannot be read as a run",
    "run --resume named": "--trust",
    "run b.toml --resume run": "leave b.toml out",
    "run --resume run --out new": "leave --out new out",
    "run --resume run --workers 1 --seed 5": "seed was 0 and is 5",
    "run --resume run --workers 1 --set lr=0.5": "set.lr was",
    "run --resume run --rounds 0": "rounds is 0",
    # bench
    "bench": "Missing argument",
    "bench b.toml": "Missing option",
    "bench missing.toml --out new": "no file missing.toml",
    "bench bad.toml --out new": "is not a TOML file",
    "bench rows.toml --out new": "methods holds",
    "bench preset.toml --out new": "no preset []",
    "bench numbers.toml --out new": "paper_numbers.FedAvg",
    "bench pacs.toml --out new": "pacs is not prepared",
    f"{BENCH} --seeds a,b": "expected whole numbers",
    f"{BENCH} --seeds 0,0": "a seed twice",
    f"{BENCH} --seeds -1": "seed is -1",
    f"{BENCH} --row FedX": "no row 'FedX'",
    f"{BENCH} --targets outlin": "did you mean 'outline'",
    f"{BENCH} --targets ,": "expected names of domains",
    f"{BENCH} --rounds 0": "rounds is 0",
    f"{BENCH} --network resnet19": "did you mean 'resnet18'",
    f"{BENCH} --size 64": "made at",
    f"{BENCH} --set lr": "expected FIELD=VALUE",
    f"{BENCH} --set budgt=3": "did you mean 'budget'",
    f"{BENCH} --set fedsbb.lr=3": "did you mean 'fedsb'",
    f"{BENCH} --set fedavg.budget=3": "no method of the file has the field 'budget'",
    f"{BENCH} --set lr=-1": "lr is -1",
    f"{BENCH} --device gpu": "did you mean 'cuda'",
    f"{BENCH} --jobs 2": "choose one of them",
    "bench b.toml --out new --jobs 0": "expected auto",
    "bench b.toml --out new --engine slurmm": "no engine 'slurmm'",
    f"{BENCH} --address 10.0.0.1:6379": "--engine ray",
    f"{BENCH} --track mlfow": "did you mean 'mlflow'",
    "bench b.toml --out file": "cannot be written",
    "bench b.toml --out /proc/x/y": "cannot be written",
    # runs, report, watch, figure
    "runs nowhere": "no folder nowhere",
    "runs empty": "holds no runs",
    "runs run --clean everything": "no kind of runs",
    "runs run --yes": "add --clean",
    "runs run --clean all": "add --yes",
    "report nowhere": "no folder nowhere",
    "report empty": "holds no runs",
    "report run --format pdf": "no format 'pdf'",
    "report run --format latex": "did you mean 'tex'",
    "report run --rule best": "no selection rule 'best'",
    "report run --out empty": "is a folder",
    "report run --out file/x.md": "cannot be written",
    "report run --format table --out x.md": "leave --out away",
    "report damaged": "cannot be read as a run",
    "watch nowhere": "no folder nowhere",
    "watch run --port 99999": "port",
    "figure confusoin run": "did you mean 'confusion'",
    "figure confusion": "a figure needs a folder",
    "figure confusion run": "--out confusion.png",
    "figure confusion run --out x.bmp": "x.bmp",
    "figure confusion nowhere --out x.png": "nowhere",
    "figure confusion run --out x.png --rule best": "best",
    "figure overlays run --out x.png": "segmentation",
    "figure confusion run --out empty": "is a folder",
    # export, predict, evaluate
    "export nowhere": "nowhere",
    "export run --to onxx": "did you mean 'onnx'",
    "export run --rule best --out new": "best",
    "export run --out file": "file",
    "export run --sign nowhere --out new": "nowhere",
    "predict nowhere sites": "nowhere",
    f"predict {MODEL} nowhere": "nowhere",
    f"predict {MODEL} empty": "empty",
    f"predict {MODEL} sites --format xml": "no format 'xml'",
    f"predict {MODEL} sites --batch 0": "--batch",
    f"predict {MODEL} sites --out empty": "empty",
    "evaluate nowhere --data folder:sites": "nowhere",
    f"evaluate {MODEL} --data folder:nowhere": "does not exist",
    f"evaluate {MODEL} --data folder:sites --threshold high": "high",
    f"evaluate {MODEL} --data styled-digits --domain plain --threshold acuracy=0.9": "accuracy",
    f"evaluate {MODEL} --data styled-digits --domain nowhere": "nowhere",
    f"evaluate {MODEL}": "Missing option",
    # methods, networks, data, speed
    "methods fedbs": "did you mean 'fedsb'",
    "methods nowhere.py:Mine": "no file",
    "networks resnet18": "unexpected extra argument",
    "data prepar": "No such command",
    "data prepare pasc": "did you mean 'pacs'",
    "data prepare pacs": "--from",
    "data prepare pacs --from nowhere": "does not exist",
    "data prepare pacs --from sites": "not laid out as pacs",
    "data prepare folder:sites --size 2": "size is 2",
    "data prepare styled-digits": "made on the spot",
    "data check vlcs": "not prepared",
    "data check folder:nowhere": "does not exist",
    "data gap styled-digits --out x.bmp --per-domain 4": "x.bmp",
    "data gap styled-digits --per-domain 1": "--per-domain",
    "data partition styled-digits --target nowhere": "nowhere",
    "data partition styled-digits --target plain --partition nothing": "nothing",
    "data partition styled-digits --target plain --out file/x": "cannot be written",
    "speed --networks resnet19": "did you mean 'resnet18'",
    "speed --methods fedbs": "did you mean 'fedsb'",
    "speed --batch 0": "batch",
    "speed --steps 0": "steps",
    "speed --repeats 0": "repeats",
    "speed --device gpu": "did you mean 'cuda'",
    "speed --json empty": "is a folder",
    # tune, verdict, advise
    "tune missing.toml --out new": "no file missing.toml",
    "tune fedavg --out new": "needs --data",
    "verdict nowhere FedAvg FedSB": "no folder nowhere",
    "verdict run FedAvg FedX": "no row 'FedX'",
    "advise --data stiled-digits": "did you mean 'styled-digits'",
    # between machines
    "leakage nowhere.toml --data styled-digits": "nowhere.toml",
    "leakage bad.toml --data styled-digits": "bad.toml",
    "leakage r.toml --data folder:nowhere": "does not exist",
    "federation init file --server localhost": "file",
    "federation init d --server localhost --port 99999": "99999",
    "federation list nowhere": "no federation in nowhere",
    "federation propose r.toml --federation nowhere": "no federation in nowhere",
    "serve --dir nowhere": "no federation in nowhere",
    "serve --dir c --port 99999": "--port",
    "join nowhere --data folder:sites": "nowhere",
    "join site-north --data folder:nowhere": "nowhere",
    "join site-north --data folder:sites --domain north --policy nowhere.toml": "nowhere.toml",
    "study show nowhere.json": "nowhere.json",
    "study show b.toml": "b.toml",
    "study try nowhere.json --site site-north --data folder:sites": "nowhere.json",
    "ledger show nowhere": "nowhere",
    "ledger verify nowhere": "nowhere",
    "ledger verify file": "no signing.key",
    "ledger anew c south": "south",
    "nothing": "No such command",
}  # fmt: skip


def lying_on(desk: Path) -> dict[str, bytes]:
    """Every file, but for a site's log and lock and what Python compiled: they bar nothing."""
    return {name: content for name, content in everything(desk).items() if not name.endswith((".lock", "site.log", ".pyc"))}


@pytest.mark.parametrize("line", CASES)
def test_one_message_exit_code_2_and_nothing_left_behind(line: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("UNSEEN_CACHE", str(desk.parent / "cache"))
    words = line.split()
    if words[0] == "run" and "--out" not in words and "--resume" not in words and len(words) > 2 and "--method" in words:
        words += ["--out", "new"]
    before = lying_on(desk)
    result = CliRunner().invoke(app, words)
    said = " ".join(result.output.replace("│", " ").split())
    assert result.exit_code == 2, (result.exit_code, said, result.exception)
    messages = re.findall(r"^(unseen: |╭─ Error )", result.output, flags=re.MULTILINE)
    assert "Traceback" not in said and len(messages) == 1, said
    assert CASES[line] in said, said
    assert lying_on(desk) == before, "something was left behind"

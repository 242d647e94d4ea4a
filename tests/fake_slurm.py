"""A Slurm of one machine for tests: sbatch, srun, squeue, sacct and scancel that run jobs in the background.

`install` puts the commands on the PATH. `plan` says how the next jobs fare: `{}` runs as it should, `{"hold": true}` waits for ever,
`{"instead": COMMAND, "state": "TIMEOUT"}` runs something else and ends in that state.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMMANDS = ("sbatch", "srun", "squeue", "sacct", "scancel")


def install(folder: Path, monkeypatch: Any, *plan: dict[str, Any]) -> Path:
    """The folder with the state of all jobs."""
    programs, state = folder / "bin", folder / "slurm"
    programs.mkdir()
    state.mkdir()
    for name in COMMANDS:
        file = programs / name
        file.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S {shlex.quote(__file__)} {name} "$@"\n')
        file.chmod(0o755)
    (state / "plan.json").write_text(json.dumps(plan))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(state))
    return state


def jobs(state: Path) -> dict[str, dict[str, Any]]:
    """Every job that was submitted, by its number."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(state.glob("[0-9]*.json"))}


def _write(state: Path, job: str, told: dict[str, Any]) -> None:
    (state / f"{job}.new").write_text(json.dumps(told))
    (state / f"{job}.new").replace(state / f"{job}.json")


def sbatch(state: Path, words: list[str]) -> None:
    script = Path(words[-1])
    asked = dict(line.removeprefix("#SBATCH --").split("=", 1) for line in script.read_text().splitlines() if line.startswith("#SBATCH --"))
    if asked.get("partition") == "nowhere":
        sys.exit("sbatch: error: invalid partition specified: nowhere")
    if asked.get("qos") == "one" and any(told["state"] in ("PENDING", "RUNNING") for told in jobs(state).values()):
        sys.exit("sbatch: error: QOSMaxSubmitJobPerUserLimit")
    job = str(1000 + len(jobs(state)))
    plan = json.loads((state / "plan.json").read_text())
    fate = plan[int(job) - 1000] if int(job) - 1000 < len(plan) else {}
    _write(state, job, {"state": "PENDING", "asked": asked, "fate": fate})
    if not fate.get("hold"):
        here = [sys.executable, "-S", __file__, "supervise", job, str(script)]
        pipe = subprocess.DEVNULL
        subprocess.Popen(here, start_new_session=True, stdin=pipe, stdout=pipe, stderr=pipe)
    print(f"Submitted batch job {job}")


def supervise(state: Path, words: list[str]) -> None:
    job, script = words
    told = jobs(state)[job]
    _write(state, job, {**told, "state": "RUNNING", "pid": os.getpid()})
    one = {"SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    command = told["fate"].get("instead") or f"bash {shlex.quote(script)}"
    code = subprocess.run(["bash", "-c", command], env={**os.environ, **one, "SLURM_JOB_ID": job}).returncode
    state_now = told["fate"].get("state") or ("COMPLETED" if code == 0 else "FAILED")
    _write(state, job, {**jobs(state)[job], "state": state_now})


def srun(state: Path, words: list[str]) -> None:
    """Its options are --unbuffered, --output FILE and --error FILE."""
    job, options, rest = os.environ["SLURM_JOB_ID"], {}, list(words)
    while rest[0].startswith("--"):
        name = rest.pop(0)
        if name != "--unbuffered":
            options[name] = rest.pop(0).replace("%j", job).replace("%t", "0")
    with Path(options["--output"]).open("a") as out, Path(options["--error"]).open("a") as err:
        sys.exit(subprocess.run(rest, stdout=out, stderr=err).returncode)


def squeue(state: Path, words: list[str]) -> None:
    print("\n".join(job for job, told in jobs(state).items() if told["state"] in ("PENDING", "RUNNING")))


def sacct(state: Path, words: list[str]) -> None:
    print(jobs(state).get(words[-1], {}).get("state", ""))


def scancel(state: Path, words: list[str]) -> None:
    name = words[words.index("--name") + 1]
    for job, told in jobs(state).items():
        if told["asked"]["job-name"] == name and told["state"] in ("PENDING", "RUNNING"):
            if "pid" in told:
                os.killpg(told["pid"], signal.SIGKILL)
            _write(state, job, {**told, "state": "CANCELLED"})


def ended(state: Path, seconds: float = 30) -> None:
    """Wait until no job is at work."""
    until = time.monotonic() + seconds
    while any(told["state"] == "RUNNING" for told in jobs(state).values()) and time.monotonic() < until:
        time.sleep(0.05)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(os.environ["FAKE_SLURM"]), sys.argv[2:])

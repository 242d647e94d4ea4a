"""The runs of a benchmark one after the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from unseen.bench.cell import why
from unseen.bench.plan import BenchmarkCell, rounds_of
from unseen.engines.kept import Kept
from unseen.engines.workers import Workers
from unseen.report.trackers import Tracked
from unseen.runs.watch import ManyWatch
from unseen.training import train

__all__ = ["run_benchmark"]


def run_benchmark(cells: Sequence[BenchmarkCell], out: Path, workers: int, watch: ManyWatch, track: Sequence[str] = ()) -> dict[str, str]:
    """Run every cell; a cell that fails is reported and the others go on. `track` names trackers. Returns what failed, and why."""
    failed: dict[str, str] = {}
    watch.planned(rounds_of(cells))
    with ExitStack() as stack:
        experiment = cells[0].experiment
        pool = stack.enter_context(Workers(workers, experiment.threads)) if workers > 1 and experiment.rebuildable else None
        kept = Kept()
        for cell in cells:
            try:
                with Tracked(watch.started(cell.folder), track, out / cell.folder, cell.experiment, home=out) as tracked:
                    train(cell.experiment, out / cell.folder, resume=True, workers=pool, watch=tracked, kept=kept)
            except OSError:  # a full disk is not this cell's fault, and the next would meet it too
                raise
            except Exception as error:
                failed[cell.folder] = why(error)
                kept.clear()
            watch.ended(cell.folder, failed.get(cell.folder, ""))
    return failed

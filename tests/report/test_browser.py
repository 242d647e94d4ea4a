"""The page in a real browser, and what axe-core finds there for people who hear it or use keys alone. Skipped where there is none."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from synthetic_runs import write_bench, write_run
from unseen.deploy.acceptance_page import render_acceptance
from unseen.deploy.evaluation import Acceptance, Check, Measured, Style
from unseen.federation.study.study import Leaving, Participant, Study
from unseen.report.collect import collect
from unseen.report.page import render_page
from unseen.report.study_page import render_study

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
ROOT = Path(__file__).parents[2]
AXE = next((f for place in (ROOT, Path.home()) if (f := place / "node_modules/axe-core/axe.min.js").is_file()), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium is installed: apt-get install chromium")

# Written into the page's copy: what a person would see, as attributes of the outer document.
LOOK = """<script>addEventListener("load", () => {
  document.querySelector("input[value=oracle]").click();
  document.querySelector("[data-toggle]").click();
  document.querySelector("#theme").click();
  const shown = [...document.querySelectorAll("[data-rule]")].filter((part) => part.offsetParent !== null).map((part) => part.dataset.rule);
  document.title = ["seen", Math.round(performance.now()), document.documentElement.scrollWidth, [...new Set(shown)].join("+"),
    getComputedStyle(document.querySelector("path[data-m='0']")).display, document.documentElement.dataset.theme, "end"].join(" ");
})</script></body>"""


# Sorting and filtering, as a person would.
USE = """<script>addEventListener("load", () => {
  const rows = () => [...document.querySelectorAll("#all-runs tbody tr")].filter((row) => !row.hidden);
  const column = (number) => rows().map((row) => row.cells[number].textContent).join(",");
  const sort = document.querySelectorAll("[data-sort]")[4], filter = document.getElementById("filter");
  sort.click(); const up = column(4); sort.click(); const down = column(4);
  filter.value = "fedprox 1"; filter.dispatchEvent(new Event("input"));
  document.title = "seen " + JSON.stringify([up, down, sort.closest("th").getAttribute("aria-sort"), column(0), column(2),
    document.getElementById("shown").textContent]) + " end";
})</script></body>"""


def opened(page: str, folder: Path, *options: str) -> str:
    """What a browser makes of the page, as text."""
    (folder / "page.html").write_text(page)
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", *options]
    done = subprocess.run([*command, "--dump-dom", (folder / "page.html").as_uri()], capture_output=True, text=True, timeout=120)
    return done.stdout


def test_runs_are_sorted_and_filtered(tmp_path: Path) -> None:
    write_bench(tmp_path / "b", 2, 2, rounds=4)
    found = re.search("<title>seen (.*) end</title>", opened(render_page(collect(tmp_path / "b"), "x").replace("</body>", USE), tmp_path))
    assert found
    up, down, order, names, seeds, shown = json.loads(found.group(1))
    numbers = [float(text) for text in up.split(",")]
    assert len(numbers) == 16 and numbers == sorted(numbers) and [float(text) for text in down.split(",")] == numbers[::-1]
    assert (
        order == "descending" and set(names.split(",")) == {"FedProx"} and set(seeds.split(",")) == {"0", "1"} and shown == "8 of 16 runs"
    )


def obstacles(page: str, folder: Path, width: int, theme: str) -> list[str]:
    """What axe-core finds wrong, with every folded part open."""
    assert AXE is not None
    page = page.replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">')
    page = page.replace("<details ", "<details open ").replace("<details>", "<details open>")
    look = f"""<script>{AXE.read_text()}</script><script>addEventListener("load", async () => {{
      const toggle = document.querySelector("[data-toggle]");
      if (toggle) toggle.click();
      const found = await axe.run();
      document.title = "seen " + JSON.stringify([found.passes.length, found.violations.map((v) => v.id + ": " + v.help + " " +
        v.nodes.slice(0, 3).map((n) => n.html.slice(0, 120) + " | " + n.failureSummary).join("; "))]) + " end";
    }})</script></body>"""
    text = opened(page.replace("</body>", look), folder, f"--window-size={width},900", "--virtual-time-budget=20000")
    found = re.search("<title>seen (.*?) end</title>", text, flags=re.DOTALL)
    assert found, text[-500:]
    passes, violations = json.loads(html.unescape(found.group(1)))
    assert passes > 15
    return [str(violation) for violation in violations]


with_axe = pytest.mark.skipif(AXE is None, reason="axe-core is not installed: npm install axe-core")


@with_axe
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 500])
def test_axe_finds_no_obstacle(theme: str, width: int, tmp_path: Path) -> None:
    """Labels, roles, headings, keyboard and contrast."""
    write_bench(tmp_path / "b", 3, 3, rounds=4)
    write_run(tmp_path / "b/own", "Personal", seed=9, rounds=4, own={"photo": 0.8, "cartoon": 0.7})
    write_run(tmp_path / "b/early", "FedAvg", "art", 8, rounds=4, done=2)
    (tmp_path / "b/bench.json").write_text(json.dumps({"paper_numbers": {"FedAvg": {"average": 50.0}}}))
    assert not obstacles(render_page(collect(tmp_path / "b"), "Runs"), tmp_path, width, theme)


STUDY = Study(
    federation="f" * 16,
    proposal="p",
    experiment={"method": "fedavg", "rounds": 3, "seed": 0, "validation": 0.1, "participation": 1.0, "set": {"lr": 0.1}, "weights": None},
    schema={"task": "classification", "classes": ["a", "b"], "size": [8, 8], "channels": 3, "network": "small_cnn", "name": "x"},
    participants={name: Participant("0" * 64, "n", "b", name == "target") for name in ("north", "target")},
    minimum_clients=2,
    sums=False,
    passed_on=(),
    weights={"model": "0" * 64},
    plan=(Leaving("round", 1, "train", "model", "model", "task", "whole", 100, False, False, None, 1, 3),),
)
ANSWER = Acceptance(
    model="FedAvg on x",
    origin="not signed",
    data="ours",
    cases=[{"case": "1.png", "site": "north", "right": 1.0}],
    metrics={"accuracy": Measured(0.8, 0.7, 0.9), "ece": Measured(0.1)},
    sites={"north": {"cases": 1.0, "accuracy": 0.8}},
    groups={"P1": {"cases": 1.0, "accuracy": 0.8}},
    classes={"a": {"cases": 1.0, "accuracy": 0.8}},
    style={"north": Style({"plain": 0.4}, "plain", 0.3, True)},
    checks=[Check("accuracy", 0.9, 0.8, False, False)],
    warnings=["looks unlike"],
)


@with_axe
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", [lambda: render_study(STUDY, "signed"), lambda: render_acceptance(ANSWER)], ids=["study", "acceptance"])
def test_axe_finds_no_obstacle_on_the_other_pages(page: Callable[[], str], theme: str, tmp_path: Path) -> None:
    assert not obstacles(page(), tmp_path, 500, theme)


def looked_at(page: str, width: int, folder: Path) -> list[str]:
    """Milliseconds until it is laid out, width of the content, the rules shown, whether a hidden line is drawn, the theme after a press."""
    (folder / "page.html").write_text(page.replace("</body>", LOOK))
    outer = folder / "outer.html"  # a window cannot be as narrow as a phone, a frame can
    outer.write_text(
        f'<iframe src="page.html" width="{width}" height="800" onload="document.body.append(this.contentDocument.title)"></iframe>'
    )
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += [f"--user-data-dir={folder / 'profile'}", "--dump-dom", outer.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r"seen (.*) end", done.stdout)
    assert found, done.stdout[-500:] + done.stderr[-500:]
    print(f"width {width}: {len(page)} bytes, {found.group(1)}")
    return found.group(1).split()


@pytest.mark.parametrize(("methods", "seeds", "width"), [(2, 1, 390), (10, 5, 1280), (10, 5, 390)])
def test_it_loads_fast_fits_and_answers(methods: int, seeds: int, width: int, tmp_path: Path) -> None:
    write_bench(tmp_path / "b", methods, seeds, rounds=30)
    page = render_page(collect(tmp_path / "b"), "Runs")
    milliseconds, wide, rule, hidden, theme = looked_at(page, width, tmp_path)
    assert len(page) < 5_000_000 and float(milliseconds) < 2000
    assert int(wide) <= width  # nothing but tables scrolls sideways, and those inside their own box
    assert (rule, hidden, theme) == ("oracle", "none", "dark")

"""The page in a real browser. Skipped where there is none."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from synthetic_runs import write_bench
from unseen.report.collect import collect
from unseen.report.page import render_page

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
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

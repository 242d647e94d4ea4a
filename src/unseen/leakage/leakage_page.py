"""What the leakage meter found, as one HTML file."""

from __future__ import annotations

from importlib.resources import files

from unseen.leakage.attempts import WORDS
from unseen.leakage.meter import Leakage
from unseen.report.page import page_environment

__all__ = ["render_leakage"]


def render_leakage(found: Leakage) -> str:
    style = files("unseen.report").joinpath("page.css").read_text()
    order = list(WORDS)
    rows = sorted(found.attempts, key=lambda attempt: order.index(attempt.outcome))
    page: str = page_environment("unseen.leakage").get_template("leakage.html.j2").render(f=found, rows=rows, words=WORDS, style=style)
    return page

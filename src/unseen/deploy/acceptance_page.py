"""The answer of an acceptance test as one HTML file."""

from __future__ import annotations

from importlib.resources import files

from unseen.deploy.evaluation import Acceptance
from unseen.report.page import page_environment

__all__ = ["render_acceptance"]


def render_acceptance(acceptance: Acceptance) -> str:
    style = files("unseen.report").joinpath("page.css").read_text()
    page: str = page_environment("unseen.deploy").get_template("acceptance.html.j2").render(a=acceptance, style=style)
    return page

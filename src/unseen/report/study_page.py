"""A study as one HTML file, for whoever has to decide about it."""

from __future__ import annotations

from importlib.resources import files

from unseen.federation.study.study import Study
from unseen.federation.study.words import in_words
from unseen.report.page import page_environment

__all__ = ["render_study"]


def render_study(study: Study, signed: str) -> str:
    """The page; `signed` says what is known of the study's signature."""
    style = files("unseen.report").joinpath("page.css").read_text()
    page: str = page_environment("unseen.report").get_template("study.html.j2").render(s=in_words(study), signed=signed, style=style)
    return page

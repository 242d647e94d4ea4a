"""Parts that several methods can take, by the name configuration gives them."""

from __future__ import annotations

from unseen.settings import Configured

__all__ = ["PARTS"]

PARTS: dict[str, type[Configured]] = {}

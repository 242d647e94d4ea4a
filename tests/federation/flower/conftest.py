"""What several tests of the Flower carrier begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from unseen.federation.flower.pieces import Pieces


@pytest.fixture
def pieces(tmp_path: Path) -> Pieces:
    return Pieces(tmp_path / "pieces")

"""A trained model that leaves the project: export with a card, predictions, acceptance at a new site."""

from __future__ import annotations

from unseen.deploy.card import ModelCard
from unseen.deploy.evaluation import Acceptance, evaluate
from unseen.deploy.exporting import export
from unseen.deploy.model import Deployed, load_model
from unseen.deploy.prediction import predict

__all__ = ["Acceptance", "Deployed", "ModelCard", "evaluate", "export", "load_model", "predict"]

"""How fast this machine trains, and how much of that a federation costs: behind `unseen speed`."""

from unseen.speed.measuring import Case, SpeedMeasured, SpeedPlan, measure
from unseen.speed.split import PHASES

__all__ = ["PHASES", "Case", "SpeedMeasured", "SpeedPlan", "measure"]

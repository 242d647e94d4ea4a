"""How fast this machine trains, and how much of that a federation costs: behind `unseen speed`."""

"""What a curious server could learn from what leaves a site: the study played here, and attacks on what left of it.

`playing.py` plays the study on the site's own data and keeps what leaves. Each attack sees that and what a server knows. `meter.py` runs
them all; `leakage_page.py` writes it down for people.
"""

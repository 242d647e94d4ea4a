"""Flower carries the letters. Everything that touches its interfaces is in this folder."""

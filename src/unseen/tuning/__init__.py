"""`unseen tune`: free choices of a plan, tried on the source domains alone, and the one that is taken."""

"""A federation between machines: who belongs to it, what a site lets out, and what left it."""

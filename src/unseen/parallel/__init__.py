"""Many cells of a benchmark at once: in processes of this machine, or over a Ray cluster."""

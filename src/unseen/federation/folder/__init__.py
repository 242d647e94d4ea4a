"""The carrier without a line: signed messages as encrypted files in a share, in a synchronised folder, or on a stick."""

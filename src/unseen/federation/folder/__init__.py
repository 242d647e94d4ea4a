"""The carrier without a line: signed messages as encrypted files in a share, in a synchronised folder, or on a stick."""

from unseen.federation.folder.carrier import FolderCarrier
from unseen.federation.folder.place import parse_carrier
from unseen.federation.folder.site import answer_letters

__all__ = ["FolderCarrier", "answer_letters", "parse_carrier"]

"""Clips and mechanisms: what bounds a record's influence and what hides it."""

from isthmus.privacy.clips import Clip, PerLeafClip
from isthmus.privacy.mechanisms import Exact, Mechanism

__all__ = ["Clip", "Exact", "Mechanism", "PerLeafClip"]

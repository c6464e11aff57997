"""The names that scripts for Opacus import: change `from opacus` to `from isthmus.opacus_compat` and run them.

What the names mean here is in docs/engine.md, "Coming from Opacus"; what differs, and which names are missing, in
docs/migrating/opacus.md.  Names whose only use is to look at, or change,
what private training must keep to itself can be imported, and say so when they are used.
"""

from isthmus.opacus_compat import utils
from isthmus.opacus_compat.engine import OpacusEngine as PrivacyEngine
from isthmus.opacus_compat.grad_sample import GradSampleModule

__all__ = ["GradSampleModule", "PrivacyEngine", "utils"]

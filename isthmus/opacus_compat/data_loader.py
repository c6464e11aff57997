"""`DPDataLoader`: the private loader, which only `make_private` makes."""

from isthmus.engine.loader import PrivateLoader as DPDataLoader

__all__ = ["DPDataLoader"]

"""A holder of records, as pages and programs of earlier releases import it."""

from isthmus.core.pipeline import Client

__all__ = ["Client"]

"""What an algorithm is made of: a `Pipeline` of `Stage`s of `Release`s, and what it promises."""

from isthmus.core.pipeline import Pipeline, Promise, Purchase, Release, Stage, slots

Before = Purchase  # as it was called in earlier releases
__all__ = ["Before", "Pipeline", "Promise", "Purchase", "Release", "Stage", "slots"]

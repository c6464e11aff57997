"""What an algorithm is made of: a `Pipeline` of `Stage`s of `Release`s, and what it promises."""

from isthmus.core.pipeline import Before, Pipeline, Promise, Release, Stage, slots

__all__ = ["Before", "Pipeline", "Promise", "Release", "Stage", "slots"]

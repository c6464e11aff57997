"""The former name of `isthmus.algorithms.suggest`, for parts of one's own that import it."""

from isthmus.algorithms.suggest import *  # noqa: F403

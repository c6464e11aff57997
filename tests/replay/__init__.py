"""Whole trainings through every door, replayed on neighbours: inputs of mechanisms, and everything public, compared."""

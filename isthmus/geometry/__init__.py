"""Convex sets, sketches that carry R^d to R^m, and lifts that come back."""

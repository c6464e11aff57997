"""Ranks, clients and clusters: how the round travels."""

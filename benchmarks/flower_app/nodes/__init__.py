"""The app of benchmarks/flower_nodes.py."""

"""The app of lab/measurements/flower_nodes.py."""

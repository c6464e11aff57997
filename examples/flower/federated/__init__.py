"""Logistic regression over clients that send sketches."""

"""Datasets, their splits, and the way from files to batches."""

"""Scores of binary codes."""

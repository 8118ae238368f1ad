"""Weights of networks trained elsewhere: their files, and how they fit our networks."""

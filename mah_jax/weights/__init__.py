"""Weights of networks trained elsewhere: fetched, read, and fitted to our networks."""

"""Search: an exact index of binary codes."""

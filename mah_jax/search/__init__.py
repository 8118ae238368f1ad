"""Search: the index, the database of a run, and what is built on them."""

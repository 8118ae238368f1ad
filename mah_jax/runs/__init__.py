"""The run folder: its files, its results, and the tables and reports made of them."""

"""The stories of the program: one file for each --mode."""

"""Runs, evaluations, episodes and environments as rows of data: the view serves them, the command line prints them."""

"""The hostile programs, and what judges them."""

"""What runs inside the container: standard library only, Python 3.9 or later, sent in as one argument."""

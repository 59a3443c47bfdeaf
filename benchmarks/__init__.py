"""The scripts behind the figures of docs/results.md that are run again."""

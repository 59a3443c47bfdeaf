"""Plays an environment without any model and looks for faults: what can be gamed, crashes, changes or overlaps.

`check.py` puts it together; `probes/` holds what is said to the environment, `stream.py` what is asked of its tasks,
`repeats.py` what has to be the same twice. What counts as a finding: docs/environment_checks.md.
"""

"""Fuzzers of what reads untrusted bytes. `benchmarks/fuzz_sandbox.py` runs them for long, `test_fuzz.py` briefly."""

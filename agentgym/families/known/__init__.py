"""The families that are known: each module has `FAMILIES`, and is found by `families.registry` without being named."""

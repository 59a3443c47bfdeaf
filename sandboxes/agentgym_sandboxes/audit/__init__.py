"""Hostile programs and reward hacks that prove a sandbox on the user's own machine: `verify(backend)`."""

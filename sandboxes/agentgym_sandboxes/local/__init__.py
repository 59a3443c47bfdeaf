"""Sandboxes that are processes of this machine, each used for one call: what bubblewrap and unsafe_subprocess share."""

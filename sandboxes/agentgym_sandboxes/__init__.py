"""The sandboxes that run model-written code, as plugins."""

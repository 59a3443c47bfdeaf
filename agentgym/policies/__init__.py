"""Policies that this library does not sample: served models, agent programs at the endpoint, people, scripts."""

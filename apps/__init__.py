"""Recipes: a config and one call each. Not part of the installed package."""

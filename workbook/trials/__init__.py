"""Trials: one configuration each, its recipe by name, and its label."""

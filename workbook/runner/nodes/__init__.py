"""Trials that several nodes of a cluster run together. This folder is all that several nodes need beside ranks."""

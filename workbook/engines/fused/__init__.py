"""Inference by our own kernels: a network read as layers, each computed with all that follows it by one kernel."""

"""Inference by kernels of our own: a network read into layers, each with all that follows it one kernel."""

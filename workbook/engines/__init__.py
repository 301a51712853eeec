"""Engines that run training steps and predictions: eager, compiled or captured. None reads the host's clock."""

"""Telemetry of devices and host during a measurement: a process that samples them, and windows cut from its series.

Importing this package imports nothing else, so that the sampling process stays small.
"""

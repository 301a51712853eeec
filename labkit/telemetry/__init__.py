"""What the devices and the host did while a trial ran: a process that samples them, and windows cut from its series.

Importing this room imports nothing else, so that the sampling process stays small.
"""

"""Faults from outside: signals at random moments of a report, full disks, missing networks, clock steps and others."""

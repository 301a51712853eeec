"""Reports that a batch system places: one script, one job, one line that follows it. Slurm schedules, not labkit."""

from labkit.cluster.submit import report_on_slurm

__all__ = ["report_on_slurm"]

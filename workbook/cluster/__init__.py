"""Runs a report as a Slurm job: one script per profile, submitted once and followed to its end."""

from workbook.cluster.submit import report_on_slurm

__all__ = ["report_on_slurm"]

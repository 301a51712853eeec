"""Merge records that were made elsewhere, also by strangers: an archive is read, checked by the record, and merged.

Nothing of an archive is executed or imported. Only files of the three folders of a report are read: records, hosts and
telemetry.
"""

from workbook.collect.merge import collect

__all__ = ["collect"]

"""Sets of images on disk, in the forms that people store them in. Torch is not needed."""

from __future__ import annotations

from workbook.storage.forms import FORMS, Sample, StoredSet, open_stored
from workbook.storage.make import cache_folder, make_from_folder, make_set

__all__ = ["FORMS", "Sample", "StoredSet", "cache_folder", "make_from_folder", "make_set", "open_stored"]

"""Execute notebooks, render pages and write the site. Only this package uses papermill, nbconvert and scrapbook."""

import sys

# nbformat imports jsonschema, which imports rfc3987_syntax and with it builds a grammar of international URLs: 2 s in
# every process, for a check that no notebook's schema asks for. Without this module jsonschema skips the check.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

from workbook.report.scraps import answer  # noqa: E402 - after the line above

__all__ = ["answer"]

"""The only room that knows papermill, nbconvert and scrapbook: executes notebooks, renders pages, writes the site."""

import sys

# jsonschema, which nbformat needs, builds a grammar of international URLs when it is imported, 2 s in every process,
# for a check that no notebook's schema asks for. It does without when there is no such module.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

from labkit.report.scraps import answer, publish  # noqa: E402 - after the line above

__all__ = ["answer", "publish"]

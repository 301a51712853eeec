"""The only room that knows papermill, nbconvert and scrapbook: executes notebooks, renders pages, writes the site."""

from labkit.report.scraps import publish

__all__ = ["publish"]

"""Verdicts on the papers' claims from recorded trials.

evidence     the trials that a test selects, and their values by pass
cases        one effect compared with a test's bound and with the published magnitude
shapes       the shapes of a test: level, ratio, difference, trend (`trends`), order, alike, differs
judge        the verdict on a claim from its cases
scope        how the trials differ from the paper's set-up, and what of the claim's sentence is not judged
cases_table  the cases of a test as HTML
findings     claims with their verdicts as HTML and as a table
"""

from workbook.claims.evidence import Evidence
from workbook.claims.findings import Findings, finding_html, newer_tests
from workbook.claims.judge import judge, judge_all
from workbook.claims.verdict import GROUPS, MARKS, VERDICTS, Case, Finding, Group, Judged, Verdict

__all__ = [
    "GROUPS",
    "MARKS",
    "VERDICTS",
    "Case",
    "Evidence",
    "Finding",
    "Findings",
    "Group",
    "Judged",
    "Verdict",
    "finding_html",
    "judge",
    "judge_all",
    "newer_tests",
]

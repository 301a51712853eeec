"""Verdicts on the papers' claims from recorded trials.

papers       the papers with their claims, and when the rule of a verdict last changed
stories      a paper told in a paragraph, with the outcomes that its sentences rest on
evidence     the trials that a test selects, and their effects by the arithmetic of `workbook.results`
effects      effects over images, and of epochs to a target that some runs never reach
verdict      bounds, cases, judged tests and findings
cases        one effect compared with a test's bound and with the published magnitude
shapes       the shapes of a test: level, ratio, difference, trend, order, alike, differs
judge        the verdict on a claim from its cases
scope        how the trials differ from the paper's set-up, and what of the claim's sentence is not judged
rows         claims and cases as plain data for the templates of `workbook.show`
findings     claims with their verdicts: counted, in sentences and as a frame
"""

from workbook.claims.evidence import Evidence
from workbook.claims.findings import Findings, headline, newer_tests
from workbook.claims.judge import judge, judge_all
from workbook.claims.rows import claim_row
from workbook.claims.schema import Group
from workbook.claims.verdict import GROUPS, MARKS, VERDICTS, Case, Finding, Judged, Verdict

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
    "claim_row",
    "headline",
    "judge",
    "judge_all",
    "newer_tests",
]

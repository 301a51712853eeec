"""Claims and records in, verdicts out.

evidence   the trials that a test selects, and their values by pass
cases      an effect held against a bound and against what was published
shapes     level, ratio, difference, trend (`trends`), order, alike, differs
judge      what the cases of a claim say together, and in what they differ from the paper's set-up
findings   claims with their verdicts as HTML and as a table
"""

from labkit.claims.evidence import Evidence
from labkit.claims.findings import MARKS, Findings, finding_html
from labkit.claims.judge import judge, judge_all
from labkit.claims.verdict import VERDICTS, Case, Finding, Judged, Verdict

__all__ = [
    "MARKS",
    "VERDICTS",
    "Case",
    "Evidence",
    "Finding",
    "Findings",
    "Judged",
    "Verdict",
    "finding_html",
    "judge",
    "judge_all",
]

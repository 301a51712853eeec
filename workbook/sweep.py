"""`make sweep`: one report per profile elsewhere, their records brought together, and all profiles side by side."""

from __future__ import annotations

from dataclasses import replace

from labkit.errors import LabkitError, UserError
from workbook.clusters import SLURM, archive_of, check_on, report_by_template, templates
from workbook.collect.merge import collect
from workbook.paths import as_typed
from workbook.report.compare import is_comparable, make_compare
from workbook.report.make import Request
from workbook.slurm import checked, follow_report, submit_report
from workbook.words import listing


def sweep(request: Request, on: str, *, nodes: int = 1) -> int:
    """Make a report for each profile that `hw` lists, all jobs of Slurm at once; return the largest exit code.

    Archives are collected, and the comparison is written if two profiles have records. Raise UserError for a mistake
    in any of them before the first is submitted.
    """
    names = list(dict.fromkeys(request.hw.replace(",", " ").split()))
    if not names or not on:
        ways = listing([SLURM, *templates()], "or")
        raise UserError(f'a sweep needs profiles and a place: `make sweep HW="h100 l40s" ON=slurm`; ON= is {ways}.')
    check_on(on)
    requests = [replace(request, hw=name) for name in names]
    for of_profile in requests:
        checked(of_profile, on)
    jobs = [submit_report(of_profile, nodes=nodes) for of_profile in requests] if on == SLURM else []
    codes = []
    for number, of_profile in enumerate(requests):
        try:
            code = follow_report(jobs[number], of_profile.hw) if jobs else report_by_template(of_profile, on)
        except LabkitError as error:  # the other profiles' reports go on
            print(f"labkit: {of_profile.hw}: {error}", flush=True)
            code = error.exit_code
        codes.append(code)
    if not jobs:
        codes += [_collected(name) for name in names]
    if is_comparable():
        codes.append(make_compare())
    return max(codes)


def _collected(name: str) -> int:
    """Collect the archive of a profile, or say how to; return an exit code."""
    archive = archive_of(name)
    if not archive.exists():
        print(f"Once the archive is there: make collect FROM={as_typed(archive)} HW={name}, then make compare")
        return 0
    try:
        for sentence in collect(str(archive), name):
            print(sentence, flush=True)
    except LabkitError as error:
        print(f"labkit: {name}: {error}", flush=True)
        return error.exit_code
    return 0

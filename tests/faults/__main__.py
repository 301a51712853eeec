"""Send signals to reports at random moments: `python -m tests.faults --points 50 --seed 1` (`make test-faults`).

Each point gets a row of a Markdown table. The exit code is 1 if any point has a problem.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.faults.project import STUDIES, Project, apart_from, copy
from tests.faults.signals import HEAD, Point, campaign
from workbook.paths import ROOT


def main() -> int:
    """Run the campaign and print its table. Return 1 if a point has a problem, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--points", type=int, default=50, help="number of reports that get a signal")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="point n has the seed SEED + n")
    parser.add_argument("--study", default="", help="a study of this project, in place of the short reports")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="labkit-faults-"))  # the folders of points with problems stay
    if asked.study:
        project = Project(folder, apart_from(folder, folder / "cache", ROOT), ROOT)
    else:
        project = copy(folder, folder / "cache")
    # Several studies are rendered side by side, and a single one alone.
    chosen = [tuple(asked.study.split(","))] if asked.study else [STUDIES, STUDIES[1:], STUDIES[1:]]
    campaigns = {studies: campaign(project, studies) for studies in dict.fromkeys(chosen)}
    for studies, of in campaigns.items():
        print(f"A whole report of {', '.join(studies)} has {len(of.pairs)} records and took {of.full_s:.1f} s.")
    print(f"Points with problems keep their folders in {folder}.\n\n{HEAD}", flush=True)
    made: list[Point] = []
    for number in range(asked.points):
        made.append(campaigns[chosen[number % len(chosen)]].point(number, asked.seed + number))
        print(made[-1].row(), flush=True)
    print(summary(made))
    return 1 if any(point.problems for point in made) else 0


def summary(made: list[Point]) -> str:
    """Return the counts of all points in one sentence."""
    signalled = sum(not point.target.startswith("nobody") for point in made)
    said = [problem for point in made for problem in point.problems]
    counts = {word: sum(word in problem for problem in said) for word in ("lost", "doubled", "orphan", "hung")}
    resumed = sorted(point.resume_s for point in made)
    counted = ", ".join(f"{number} {word}" for word, number in counts.items())
    return (
        f"\n{len(made)} points, {signalled} of them before the report had ended: {counted}, "
        f"{len(said)} problems in all. A resume took {resumed[0]:.1f} to {resumed[-1]:.1f} s, "
        f"median {resumed[len(resumed) // 2]:.1f} s."
    )


if __name__ == "__main__":
    raise SystemExit(main())

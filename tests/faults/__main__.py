"""Send signals to reports at random moments: `python -m tests.faults --points 50 --seed 1` (`make test-faults`).

Each point gets a row of a Markdown table. The exit code is 1 if any point has a problem.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from labkit.places import ROOT
from tests.faults.project import STUDIES, Project, apart_from, copy
from tests.faults.signals import HEAD, Point, campaign, points, report_by_make


def main() -> int:
    """Run the campaign and print its table. Return 1 if a point has a problem, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--points", type=int, default=50, help="number of reports that get a signal")
    parser.add_argument("--seed", type=int, default=1, help="point n has the seed SEED + n")
    parser.add_argument("--study", default="", help="a study of this project, in place of the short reports")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="labkit-faults-"))  # the folders of points with problems stay
    if asked.study:
        project = Project(folder, apart_from(folder, folder / "cache", ROOT), ROOT)
    else:
        project = copy(folder, folder / "cache")
    studies = tuple(asked.study.split(",")) if asked.study else STUDIES
    of = campaign(project, report_by_make(*studies), studies)
    print(f"A whole report has {len(of.pairs)} records and took {of.full_s:.1f} s. Folder: {folder}\n\n{HEAD}", flush=True)
    made: list[Point] = []
    for point in points(of, asked.points, asked.seed):
        made.append(point)
        print(point.row(), flush=True)
    print(summary(made))
    return 1 if any(point.problems for point in made) else 0


def summary(made: list[Point]) -> str:
    """Return the counts of all points in one sentence."""
    said = [problem for point in made for problem in point.problems]
    counts = {word: sum(word in problem for problem in said) for word in ("lost", "doubled", "orphan", "hung")}
    resumed = sorted(point.resume_s for point in made)
    return (
        f"\n{len(made)} points: {', '.join(f'{number} {word}' for word, number in counts.items())}, "
        f"{len(said)} problems in all. A resume took {resumed[0]:.1f} to {resumed[-1]:.1f} s, "
        f"median {resumed[len(resumed) // 2]:.1f} s."
    )


if __name__ == "__main__":
    raise SystemExit(main())

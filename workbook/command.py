"""The installed command `labkit`. Where labkit is installed without the workbook, it says how to get the rest."""

import sys
from importlib.util import find_spec

from workbook.lifetime import exit_on_request
from workbook.paths import ROOT

NEEDED = ("jinja2", "nbconvert", "papermill", "pyarrow", "scrapbook", "seaborn", "typer", "yaml")


def main() -> None:
    """Run the command line. Exit with code 2 and one sentence if packages or notebooks of the suite are missing."""
    exit_on_request()  # Ctrl-C within an import would print a traceback
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing or not (ROOT / "notebooks").is_dir():
        lacks = f"the packages {', '.join(missing)}" if missing else "the notebooks"
        sys.stderr.write(
            f"labkit: the command belongs to the workbook, and {lacks} are not here; clone the project and run "
            "`make report` in its folder, or `pip install -e '.[workbook]'` there.\n"
        )
        sys.exit(2)
    from workbook.cli import main as run

    run()

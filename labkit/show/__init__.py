"""What readers see: tables and figures from tidy DataFrames, in the words of the field.

Figure, Table      show themselves in a notebook and on a page
table, plots       make them (`plots.lines`, `plots.dots`, `plots.bars`, …)
label, heading     the words for a value and for a column
theme_css          the colours of figures as CSS variables, for a page
"""

from labkit.show import plots
from labkit.show.figure import Figure, theme_css
from labkit.show.labels import heading, label
from labkit.show.setup import setup_line
from labkit.show.table import Table, table

__all__ = ["Figure", "Table", "heading", "label", "plots", "setup_line", "table", "theme_css"]

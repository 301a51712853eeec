"""Tables and figures for notebooks and pages, made from tidy DataFrames and labelled in the terms of the field.

Figure, Table      objects that notebooks and pages display
table, plots       functions that make them (`plots.lines`, `plots.dots`, …)
label, heading     the display text of a value and of a column
theme_css          the colours of figures as CSS variables, for a page
"""

from labkit.show import plots
from labkit.show.figure import Figure, theme_css
from labkit.show.labels import heading, label
from labkit.show.setup import setup_line
from labkit.show.table import Table, table

__all__ = ["Figure", "Table", "heading", "label", "plots", "setup_line", "table", "theme_css"]

"""Tables and figures for notebooks and pages, made from tidy DataFrames and labelled in the terms of the field.

Figure, Table      objects that notebooks and pages display
table, plots       functions that make them (`plots.lines`, `plots.dots`, …)
theme_css          the colours of figures as CSS variables, for a page
"""

from workbook.show import plots
from workbook.show.figure import Figure, theme_css
from workbook.show.setup import setup_line
from workbook.show.table import Table, table

__all__ = ["Figure", "Table", "plots", "setup_line", "table", "theme_css"]

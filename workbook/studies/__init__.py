"""Named rules of the studies: functions that take and return DataFrames and write no sentences."""

"""Rules with a name that studies need: functions that take and return DataFrames and write no sentences."""

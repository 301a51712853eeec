"""The parsers. Each module has `run(data)`, the mutation that fits its input, and `LEAST`, the share of executions."""

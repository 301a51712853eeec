"""Two networks trained against each other: their updates, one iteration, its correctness check, what is supported."""

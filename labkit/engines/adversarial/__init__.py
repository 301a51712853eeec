"""Two networks trained against each other: their updates, one iteration of them, its gate, and what is supported."""

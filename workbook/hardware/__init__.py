"""Hardware: profiles of the expected hardware, this host, their match, frameworks, and processor limits."""

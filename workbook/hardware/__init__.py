"""Hardware: profiles, this host and its identity, their match, frameworks, and limits of processors and memory."""

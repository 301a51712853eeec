"""Hardware expected and found: profiles, this host, whether both match, frameworks, processor limits."""

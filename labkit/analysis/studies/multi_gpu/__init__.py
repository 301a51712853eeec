"""The study of several devices: its trials, what is expected of them, and what its page says and shows."""

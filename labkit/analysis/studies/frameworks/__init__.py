"""The study of frameworks: its trials, what stands beside what, and what its page says and shows."""

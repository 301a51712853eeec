"""The study of where the time goes: its trials, what traces and counters say of them, and what bounds each."""

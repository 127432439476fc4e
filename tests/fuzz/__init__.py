"""Malformed files at the real command line: `python -m tests.fuzz --minutes 10` for a long campaign."""

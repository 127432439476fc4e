"""Files that survive being killed at and shared: append-only JSON lines, and JSON replaced whole."""

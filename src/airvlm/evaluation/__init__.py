"""Running methods over tasks, storing every answer, and saying what the answers show."""

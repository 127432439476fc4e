"""Running methods over tasks, storing every answer, and saying what the answers show.

Here stands what the command line's help must know before anything heavy is imported.
"""

BATCH_SIZE = 16  # questions that run together unless told otherwise

# the paper's own sweeps by name; what each varies is in sweeps.py
SWEEPS = ("layers", "top_q", "tau", "patches", "eps", "length", "components", "controls", "noise")

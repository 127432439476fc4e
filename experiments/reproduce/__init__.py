"""The paper's tables measured again, and the tables of the documentation: `python -m experiments.reproduce --help`."""

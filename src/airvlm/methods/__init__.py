"""The methods, each one file: a frozen dataclass that is its configuration and its context manager."""

"""The machinery that knows transformers and no paper: methods as context managers, hooks, passes, generate."""

"""What methods cost in time and memory: `airvlm bench`."""

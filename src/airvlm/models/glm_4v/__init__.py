"""GLM-4V-9B, on transformers' own GLM decoder."""

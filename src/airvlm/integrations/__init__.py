"""Where users already are: lmms-eval, vLLM and transformers' own doors. Each is imported by its host, never by us."""

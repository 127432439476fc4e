"""airvlm inside other tools: transformers' pipelines and generate, lmms-eval, and vLLM."""

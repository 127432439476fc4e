"""Scripts for those who work on airvlm; nothing of the package imports them."""

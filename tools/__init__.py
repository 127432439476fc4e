"""Scripts for those who work on airvlm; the package imports none of them."""

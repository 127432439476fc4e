"""Results as people read them: tables, plots, and a page."""

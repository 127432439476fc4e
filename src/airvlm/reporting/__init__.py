"""What people read: tables, plots, the page, and the paper's printed figures."""

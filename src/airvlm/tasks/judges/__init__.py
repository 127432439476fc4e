"""Language models as judges, and the file that keeps their verdicts."""

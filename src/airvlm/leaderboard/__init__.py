"""The leaderboard: every method on the same model and items, with what its controls explain and what it costs."""

"""Pictures and figures of what methods do."""

"""Drawings and figures of what methods do."""

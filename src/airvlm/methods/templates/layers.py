"""Layers of a decoder, given as a span or scaled from a published setting."""

from __future__ import annotations

__all__ = ["layer_span", "scale_span"]


def layer_span(layers: tuple[int, int], depth: int) -> range:
    """(first, one after the last) as layers of a decoder of `depth` layers, or an error."""
    if layers[1] > depth:
        raise ValueError(f"layers = {layers}, but the decoder has {depth} layers: the span may end at {depth}")
    return range(*layers)


def scale_span(layers: tuple[int, int], published_depth: int, depth: int) -> range:
    """A span that was published for a decoder of `published_depth` layers, scaled to `depth`; at least one layer."""
    first = min(depth - 1, round(layers[0] * depth / published_depth))
    return range(first, max(first + 1, round(layers[1] * depth / published_depth)))

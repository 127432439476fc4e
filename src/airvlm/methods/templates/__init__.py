"""Templates: what most methods share, so that a method only says what it changes, and when.

* `VisualTokenMethod`: the visual tokens at the decoder's input, in prefill. Write `visual_tokens`.
* `FeedForwardMethod`: the feed-forward output of some layers, in every pass. Write `feed_forward`.
* `AttentionMethod`: the attention scores of the image's keys, for the text after it. Write `key_weights`.
* `LogitsMethod`: the logits of every pass. Write `next_logits`.

Batch rows, beams, caches, padding, counting, the report and strength 0 are handled here; rows without an image are left
alone. A method that keeps state from pass to pass subclasses `Intervention` instead.
"""

from airvlm.methods.templates.attention import AttentionMethod
from airvlm.methods.templates.feed_forward import FeedForwardMethod
from airvlm.methods.templates.layers import layer_span
from airvlm.methods.templates.logits import LogitsMethod
from airvlm.methods.templates.visual_tokens import VisualTokenMethod

__all__ = ["AttentionMethod", "FeedForwardMethod", "LogitsMethod", "VisualTokenMethod", "layer_span"]

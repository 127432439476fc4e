"""Templates: what most methods share, so that a method only says what it changes, and when.

* `VisualTokenMethod`: the visual tokens at the decoder's input, in prefill. Write `visual_tokens`.
* `FeedForwardMethod`: the feed-forward output of some layers, in every pass. Write `feed_forward`.
* `AttentionMethod`: the attention scores of the image's keys, for the text after it. Write `key_weights`.
* `HeadMethod`: the output of every attention head, by how much it attends to the image. Write `head_factors`.
* `SteeringMethod`: hidden states along a direction per layer, found by a probe. Write `probe_directions` and `steer`.
* `LogitsMethod`: the logits of every pass. Write `next_logits`.
* `LensMethod`: the logits, by what earlier layers would have said. Write `lens_layers` and `next_logits`.
* `ContrastiveMethod`: the logits, by those of extra streams (other pixels, no image, another prompt, edited
  embeddings, hidden keys). Write `streams` and `weights`.
* `ReAskMethod`: the images and the prompt of a call, replaced by what a probe found. Write `reask`.
* `LoopMethod`: a decoding loop of its own. Write the `decode` of a LoopIntervention.

Batch rows, beams, caches, padding, counting, the report and strength 0 are handled here; rows without an image are left
alone. A method that keeps state from pass to pass subclasses `Intervention` instead.
"""

from airvlm.methods.templates.attention import AttentionMethod, HeadMethod
from airvlm.methods.templates.contrastive import ContrastiveMethod
from airvlm.methods.templates.feed_forward import FeedForwardMethod
from airvlm.methods.templates.layers import layer_span
from airvlm.methods.templates.lens import LensMethod
from airvlm.methods.templates.logits import LogitsMethod
from airvlm.methods.templates.loop import LoopMethod
from airvlm.methods.templates.reask import ReAskMethod
from airvlm.methods.templates.steering import SteeringMethod
from airvlm.methods.templates.visual_tokens import VisualTokenMethod

__all__ = [
    "AttentionMethod",
    "ContrastiveMethod",
    "FeedForwardMethod",
    "HeadMethod",
    "LensMethod",
    "LogitsMethod",
    "LoopMethod",
    "ReAskMethod",
    "SteeringMethod",
    "VisualTokenMethod",
    "layer_span",
]

"""DeepSeek-VL for airvlm: what differs from other families, as one row.

transformers has the model; airvlm finds its decoder, feed-forwards and image encoder by transformers' own accessors.
What is left to say is how an image becomes visual tokens: one square view, pixels as (images, 3, H, W).
"""

from airvlm.models.families import Family

DEEPSEEK_VL = Family(
    model_type="deepseek_vl",  # transformers' config.model_type, and the entry point's name
    title="DeepSeek-VL",
    checkpoint="deepseek-community/deepseek-vl-1.3b-chat",
    resolution="fixed square",
    plain_pixels=True,
)

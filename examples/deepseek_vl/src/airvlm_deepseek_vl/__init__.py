"""DeepSeek-VL for airvlm: one row with what differs from other families.

transformers has the model, and airvlm finds its decoder, feed-forwards and image encoder by transformers' accessors.
The row says how an image becomes visual tokens: one square view, pixels as (images, 3, H, W).
"""

from airvlm.models.families import Family

DEEPSEEK_VL = Family(
    model_type="deepseek_vl",  # transformers' config.model_type, and the name of the entry point
    title="DeepSeek-VL",
    checkpoint="deepseek-community/deepseek-vl-1.3b-chat",
    resolution="fixed square",
    plain_pixels=True,
)

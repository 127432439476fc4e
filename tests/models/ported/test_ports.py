"""The released sizes: built without memory, the models have exactly the published numbers of parameters."""

import pytest
import torch

from airvlm.models import PORTS


@pytest.mark.parametrize(
    ("model_type", "parameters", "rows", "image_token_id"),
    [("qwen", 9_656_935_168, 256, 151859), ("chatglm", 13_906_320_896, 1600, 151343)],
)
def test_the_released_model_has_the_published_size(
    model_type: str, parameters: int, rows: int, image_token_id: int
) -> None:
    port = PORTS[model_type]
    config = port.config(**{port.section: {}})  # all defaults are the released values
    with torch.device("meta"):
        model = port.model(config)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert (config.image_rows, config.image_token_id) == (rows, image_token_id)

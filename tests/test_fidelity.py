"""What docs/explanation/fidelity.md says of the paper's figures, where it can be computed."""

import pytest
import torch

from airvlm.methods.evidence.transport import sinkhorn


@pytest.mark.parametrize("eps", [0.005, 0.1])
def test_transport_does_not_separate_what_cosine_separates_in_the_counter_example(eps: float) -> None:
    C = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 0.2], [0.2, 0.0]]])
    by_transport = sinkhorn(C, eps).cost
    by_cosine = C.mean(dim=(1, 2))
    assert float((by_transport[0] - by_transport[1]).abs()) < 0.03
    assert float((by_cosine[0] - by_cosine[1]).abs()) == pytest.approx(0.4)

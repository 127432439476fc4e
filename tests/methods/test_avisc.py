"""AvisC against the decoder written out, with visual tokens set to zero by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.methods.avisc import AvisC, find_blind
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.testing import small_models
from tests.methods.reference import IMAGE, TOKENS, Written, answer, check_close, pass_over

LOWEST = torch.finfo(torch.float32).min


def blind_tokens(ids: Tensor, gamma: float, lam: float, row: int = 0) -> list[int]:
    """Positions of the blind tokens, in numpy from the attention of the prompt's last token."""
    written = Written(row)
    written.run(ids)
    image = (ids == IMAGE).nonzero().flatten().numpy()
    last = len(ids) - TOKENS - 1
    rows = [p.double().numpy().mean(0)[last][image] for p in written.attention]
    mass = np.array([a.sum() for a in rows])
    order = np.argsort(-mass / mass.sum())
    count = int((np.cumsum(mass[order] / mass.sum()) < gamma).sum()) + 1
    a = np.mean([rows[i] for i in order[:count]], 0)
    return [int(i) for i in image[a >= a.mean() + lam * a.std(ddof=1)]]


def contrast(ids: Tensor, method: AvisC, row: int = 0) -> Tensor:
    kept = torch.ones(len(ids), dtype=torch.bool)
    kept[ids == IMAGE] = False
    kept[blind_tokens(ids, method.gamma, method.lam, row)] = True
    seen = pass_over(ids, row=row)[-TOKENS - 1 : -1]
    other = Written(row, embeds=lambda h: h * kept[:, None]).run(ids)[-TOKENS - 1 : -1]
    p = seen.softmax(-1)
    mixed = (1 + method.alpha) * seen - method.alpha * other
    return mixed.masked_fill(p < method.beta * p.amax(-1, keepdim=True), LOWEST)


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize(("gamma", "lam"), [(0.5, 1.0), (0.9, 0.0), (1.0, -0.5)])
@pytest.mark.parametrize("use_cache", [True, False])
def test_the_blind_tokens_alone_are_subtracted(row: int, gamma: float, lam: float, use_cache: bool) -> None:
    method = AvisC(alpha=0.8, beta=0.02, gamma=gamma, lam=lam)
    ids, logits, report = answer(method, row=row, use_cache=use_cache)
    check_close(logits, contrast(ids, method, row))
    blind = blind_tokens(ids, gamma, lam, row)
    assert 0 < len(blind) < int((ids == IMAGE).sum())
    assert report.rows[0].extra["blind_tokens"] == len(blind)


def test_features_that_are_added_later_are_zeroed_too() -> None:
    """With every token zeroed, a family with deepstack sees nothing of the image."""
    ids, logits, _ = answer(AvisC(alpha=1.0, beta=0.0, lam=10.0), "qwen3_vl")
    seen = pass_over(ids, "qwen3_vl")[-TOKENS - 1 : -1]

    def zero(module: Any, args: Any, kwargs: Any) -> Any:
        embeds = kwargs["inputs_embeds"] * (ids != IMAGE)[None, :, None]
        later = [torch.zeros_like(one) for one in kwargs["deepstack_visual_embeds"]]
        assert later
        return args, {**kwargs, "inputs_embeds": embeds, "deepstack_visual_embeds": later}

    model, _ = small_models.shared_model("qwen3_vl")
    handle = model.get_decoder().register_forward_pre_hook(zero, with_kwargs=True)
    other = pass_over(ids, "qwen3_vl")[-TOKENS - 1 : -1]
    handle.remove()
    check_close(logits, 2 * seen - other)


def test_faithful_acts_only_when_sampling() -> None:
    with pytest.warns(MethodInactiveWarning, match="not sampled"):
        ids, logits, _ = answer(AvisC(faithful=True))
    assert torch.equal(ids, answer(None)[0])
    torch.manual_seed(0)
    ids, logits, _ = answer(AvisC(faithful=True), do_sample=True)
    check_close(logits, contrast(ids, AvisC()))


def test_wrong_options_are_refused() -> None:
    for options in ({"alpha": -1.0}, {"gamma": 2.0}, {"lam": 11.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            AvisC(**options)  # type: ignore[arg-type]


def test_an_only_visual_token_is_blind_like_any_at_the_mean() -> None:
    visual = torch.tensor([[False, True, False], [False, False, False]])
    attention = torch.full((2, 2, 3), 1 / 3)
    assert torch.equal(find_blind(attention, visual, 0.5, 1.0), visual)

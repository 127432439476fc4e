"""Controls of steering methods: what they change, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from airvlm.methods.crop_blend import CropBlend
from airvlm.methods.direction_controls import OppositeDirections, OtherDirections, RandomDirections
from airvlm.methods.names import parse_method
from airvlm.methods.nullu import Nullu
from airvlm.methods.rudder import RUDDER
from airvlm.methods.vista import VISTA
from airvlm.methods.vti import VTI
from airvlm.testing import check_method, small_models
from tests.methods.direct import forward, read, rows_with_images, write_artifact

STEERING = VISTA(gamma=0.0, strength=0.5)


def logits(method: Any, rows: Any) -> Tensor:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, rows)
    with method(model), torch.no_grad():
        out: Tensor = model(**batch).logits[:, -1]
    return out


def test_opposite_and_random_directions_against_the_formula() -> None:
    model, processor = small_models.shared_model("llava")
    rows = rows_with_images()[:1]
    batch = small_models.build_inputs(processor, rows)
    ids = batch["input_ids"][:, (batch["input_ids"][0] != small_models.IMAGE)]
    blind = read(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, "residual")
    v = [a[0, -1] - b[0, -1] for a, b in zip(read(model, batch, "residual"), blind, strict=True)]

    def steered(directions: list[Tensor]) -> Tensor:
        def move(i: int, r: Tensor) -> Tensor:
            moved = r + 0.5 * directions[i]
            return moved * r.norm(dim=-1, keepdim=True) / moved.norm(dim=-1, keepdim=True)

        return forward(model, batch, residual=move)[:, -1]

    torch.testing.assert_close(logits(STEERING, rows), steered(v), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        logits(OppositeDirections(STEERING), rows), steered([-d for d in v]), rtol=1e-3, atol=1e-3
    )
    control = RandomDirections(STEERING, seed=3)
    random = [control.direction(None, i, d[None])[0] for i, d in enumerate(v)]  # type: ignore[arg-type]
    for one, own in zip(random, v, strict=True):
        assert one.norm().item() == pytest.approx(own.norm().item(), rel=1e-4)
        assert abs(torch.cosine_similarity(one, own, 0)) < 0.7
    torch.testing.assert_close(logits(control, rows), steered(random), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(logits(RandomDirections(STEERING, seed=4), rows), logits(control, rows), atol=1e-2)


def test_other_directions_are_those_of_the_next_row_with_an_image() -> None:
    rows = small_models.sample_rows()[:3]  # the second has no image
    found = logits(OtherDirections(STEERING), rows)
    plain = logits(STEERING, rows)
    assert not torch.allclose(found[0], plain[0], atol=1e-2) and not torch.allclose(found[2], plain[2], atol=1e-2)
    torch.testing.assert_close(found[1], plain[1])
    with pytest.raises(ValueError, match="two or more rows with an image"):
        logits(OtherDirections(STEERING), rows[:1])


def test_random_bases_of_a_projection_have_its_rank(tmp_path: Path) -> None:
    path, _ = write_artifact(Nullu, "llava", tmp_path)
    model, _ = small_models.shared_model("llava")
    session = RandomDirections(Nullu(artifact=path, rank=3))(model)
    for V in session.intervention.bases.values():  # type: ignore[attr-defined]
        torch.testing.assert_close(V.T @ V, torch.eye(3), atol=1e-5, rtol=0)
    rows = rows_with_images()
    one, other = (logits(m, rows) for m in (RandomDirections(Nullu(artifact=path)), Nullu(artifact=path)))
    assert not torch.allclose(one, other, atol=1e-2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomDirections(CropBlend()), "does not steer"),
        (lambda: RandomDirections(RUDDER(strength=0)), "does nothing"),
        (lambda: RandomDirections(VISTA(strength=0)), "no state is moved"),
        (lambda: OppositeDirections(Nullu(artifact="x")), "has no opposite"),
        (lambda: OtherDirections(VTI(artifact="x")), "the same directions for every image"),
    ],
)
def test_a_control_that_would_change_nothing_raises(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_spelling_and_report() -> None:
    control = parse_method("random-directions(vista:strength=0.5):seed=3")
    assert control == RandomDirections(VISTA(strength=0.5), seed=3)
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, rows_with_images())
    with control(model) as run:
        model.generate(**batch, max_new_tokens=2)
    assert run.report.method["name"] == "random-directions"
    assert run.report.method["method"]["name"] == "vista"


@pytest.mark.parametrize("control", [RandomDirections(VISTA(strength=0.3)), OppositeDirections(RUDDER(strength=0.5))])
def test_laws(control: Any) -> None:
    check_method(control, ["llava", "qwen2_5_vl"])

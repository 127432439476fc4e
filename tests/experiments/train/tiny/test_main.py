"""The whole recipe in miniature: every stage runs, a second run resumes, and the result is a model that answers."""

from pathlib import Path

import pytest
from PIL import Image

from airvlm import VLM
from experiments.train.tiny import __main__ as train
from experiments.train.tiny.recipe import Recipe

MINIATURE = Recipe(
    "miniature",
    seed=0,
    scenes=4,
    vision_width=32,
    vision_layers=1,
    vision_steps=2,
    place_steps=1,
    vision_batch=4,
    width=32,
    layers=2,
    heads=2,
    feed_forward=48,
    align_steps=2,
    joint_steps=2,
    joint_batch=2,
)


@pytest.mark.slow
def test_the_recipe_makes_a_model_that_answers_and_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "RECIPES", {"miniature": MINIATURE})
    monkeypatch.setattr("sys.argv", ["train", "--recipe", "miniature", "--folder", str(tmp_path)])
    train.main()
    assert {"vision", "align", "joint"} <= {line.split()[1] for line in capsys.readouterr().out.splitlines()}
    answer = VLM.load(tmp_path / "miniature" / "model").ask(
        Image.new("RGB", (64, 64)), "Is there a dog?", max_new_tokens=3
    )
    assert answer.tokens
    train.main()
    assert "stage" not in capsys.readouterr().out  # nothing is trained twice

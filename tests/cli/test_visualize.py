"""`airvlm visualize`: a drawing per image."""

from pathlib import Path

from PIL import Image

from tests.cli.conftest import Run


def test_one_drawing_is_written_per_image(run: Run, model: str, image: str, tmp_path: Path) -> None:
    target = tmp_path / "drawing.png"
    line = ["visualize", image, "is there a fork ?", "--image", image, "-m", model, "-o", str(target)]
    told = run(*line, "--set", "num_crops=3", "--max-new-tokens", "2", "--json").json
    assert told["output"] == str(target)
    assert told["changed_at"] == "the decoder's input"
    for path in (target, tmp_path / "drawing-2.png"):
        with Image.open(path) as drawing:
            assert drawing.width > 600


def test_a_method_that_acts_in_layers_is_drawn_too(run: Run, model: str, image: str, tmp_path: Path) -> None:
    line = ["visualize", image, "-m", model, "-o", str(tmp_path / "a.png"), "--max-new-tokens", "2", "--json"]
    assert run(*line, "--method", "air:keep=2").json["changed_at"].startswith("layer")

"""The comparison with the original: what agrees is said to agree, what differs is found. The original is played."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from airvlm.models.ported import verify
from airvlm.testing.small_models import sample_image
from tests.models.ported import tiny_checkpoints as tiny

QUESTION = "Is there a dog?"


@pytest.mark.slow
@pytest.mark.parametrize("model_type", tiny.MODELS)
@pytest.mark.parametrize("spoilt", [None, "tokens", "prompt"])
def test_agreement_and_difference_are_found(
    tmp_path: Path, model_type: str, spoilt: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny.save(tmp_path / "model", model_type)
    image = tmp_path / "scene.png"
    sample_image(1).save(image)
    said, _, config = verify.run_port(str(folder), str(image), QUESTION, 5, "float32")
    player = tmp_path / "player.py"
    player.write_text(f"print('loading'); print({json.dumps(json.dumps(official(said, config, spoilt)))})")
    code = verify.main(
        [str(folder), str(image), "--question", QUESTION, "--tokens", "5", "--dtype", "float32"]
        + ["--python", sys.executable, str(player)]
    )
    out = capsys.readouterr().out
    assert code == (0 if spoilt is None else 1)
    assert ("DIFFERENT" in out) == (spoilt == "prompt")
    assert f"the first {3 if spoilt == 'tokens' else 5} of 5 tokens agree" in out


def official(said: dict[str, list[int]], config: Any, spoilt: str | None) -> dict[str, list[int]]:
    """Our own answer, with the image written as the original writes it, and perhaps a mistake."""
    prompt = [65 if token == config.image_token_id else token for token in said["prompt"]]
    tokens = list(said["tokens"])
    if spoilt == "tokens":
        tokens[3] += 1
    if spoilt == "prompt":
        prompt[-2] += 1
    return {"prompt": prompt, "tokens": tokens}


def test_an_original_that_fails_ends_the_comparison(tmp_path: Path) -> None:
    player = tmp_path / "player.py"
    player.write_text("raise SystemExit(3)")
    with pytest.raises(SystemExit, match="exit code 3"):
        verify.run_original("qwen", "x", "y", "z", 1, "float32", (sys.executable, str(player)))

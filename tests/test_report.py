"""What a report tells, in words and as JSON."""

import json

from airvlm.report import Crop, NormRatio, Report, Sinkhorn

CROPS = ((Crop((0, 0, 4, 4), 0.2, True), Crop((4, 0, 8, 4), 0.4, False)),)


def acted(**more: object) -> Report:
    values = {
        "method": {"name": "air"},
        "fired": True,
        "layers": (-1, 3),
        "tokens": 7,
        "crops": CROPS,
        "norm_ratio": NormRatio(0.1, 0.2, {-1: 0.1, 3: 0.1}),
        "sinkhorn": Sinkhorn(20, True),
        "seconds": {"crops": 0.5, "transport": 0.01},
    }
    return Report(**{**values, **more})  # type: ignore[arg-type]


def test_words_say_where_how_much_and_with_what() -> None:
    text = str(acted())
    for part in ("air", "decoder's input", "layer 3", "7 tokens", "1 of 2 crops", "0.100", "crops 0.500 s"):
        assert part in text


def test_words_say_in_how_many_rows_it_acted() -> None:
    silent = Report({"name": "air"}, fired=False, reason="there is no image in this row")
    assert "in 1 of 2 rows" in str(acted(rows=(acted(), silent)))


def test_words_say_why_it_did_not_act() -> None:
    report = Report({"name": "air"}, fired=False, reason="no crop is within tau = 0.06")
    assert str(report) == "air: did not act (no crop is within tau = 0.06)"


def test_json_holds_everything_with_rows_inside() -> None:
    data = json.loads(json.dumps(acted(rows=(acted(),)).to_json()))
    assert data["fired"] is True
    assert data["rows"][0]["crops"][0][0] == {"box": [0, 0, 4, 4], "distance": 0.2, "kept": True}
    assert data["norm_ratio"]["layers"] == {"-1": 0.1, "3": 0.1}
    assert data["sinkhorn"] == {"iterations": 20, "converged": True}


def test_kept_counts_over_all_images() -> None:
    assert acted(crops=CROPS * 3).kept == 3

"""Reports: as text, as JSON, and merged over calls."""

import json

import pytest

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


def test_the_text_tells_where_how_much_and_with_what() -> None:
    text = str(acted())
    for part in ("air", "decoder's input", "layer 3", "7 tokens", "1 of 2 crops", "0.100", "crops 0.500 s"):
        assert part in text


def test_the_text_tells_in_how_many_rows_it_acted() -> None:
    silent = Report({"name": "air"}, fired=False, reason="there is no image in this row")
    assert "in 1 of 2 rows" in str(acted(rows=(acted(), silent)))


def test_the_text_tells_why_it_did_not_act() -> None:
    report = Report({"name": "air"}, fired=False, reason="no crop is within tau = 0.06")
    assert str(report) == "air: did not act (no crop is within tau = 0.06)"


def test_json_holds_everything_with_rows_inside() -> None:
    data = json.loads(json.dumps(acted(rows=(acted(),)).to_json()))
    assert data["fired"] is True
    assert data["rows"][0]["crops"][0][0] == {"box": [0, 0, 4, 4], "distance": 0.2, "kept": True}
    assert data["norm_ratio"]["layers"] == {"-1": 0.1, "3": 0.1}
    assert data["sinkhorn"] == {"iterations": 20, "converged": True}


def test_kept_crops_are_counted_over_all_images() -> None:
    assert acted(crops=CROPS * 3).kept == 3


# -- several calls


def idle(reason: str, **more: object) -> Report:
    return Report({"name": "air"}, fired=False, reason=reason, **more)  # type: ignore[arg-type]


def test_one_report_merged_is_itself() -> None:
    one = acted(rows=(acted(),))
    assert Report.merge([one]) is one


def test_counts_and_seconds_are_summed_and_layers_united() -> None:
    one = acted(passes=2, rows=(acted(),))
    other = acted(tokens=3, passes=4, layers=(5,), norm_ratio=NormRatio(0.6, 0.9), seconds={"crops": 0.25}, crops=())
    merged = Report.merge([one, other])
    assert merged.fired and merged.reason is None
    assert (merged.tokens, merged.passes, merged.calls, merged.layers) == (10, 6, 2, (-1, 3, 5))
    assert merged.seconds == {"crops": 0.75, "transport": 0.01}
    assert merged.norm_ratio is not None
    assert merged.norm_ratio.mean == pytest.approx((0.1 * 7 + 0.6 * 3) / 10) and merged.norm_ratio.max == 0.9
    assert merged.crops == CROPS and merged.rows == () and merged.method == one.method
    assert "in 2 of 2 calls" in str(merged)


def test_calls_that_did_nothing_do_not_hide_one_that_did() -> None:
    merged = Report.merge([idle("no image"), acted(), idle("no image")])
    assert merged.fired and merged.reason is None and merged.calls == 3 and merged.tokens == 7
    assert "in 1 of 3 calls" in str(merged)
    assert "in 2 of 4 calls" in str(Report.merge([merged, acted()]))


def test_where_no_call_acted_the_first_reason_is_told() -> None:
    merged = Report.merge([idle("no image", expected=True), idle("something else")])
    assert not merged.fired and merged.reason == "no image" and not merged.expected
    assert Report.merge([idle("its weight is 0", expected=True)] * 2).expected
    assert merged.norm_ratio is None and merged.sinkhorn is None


def test_the_slowest_transport_of_all_calls_counts() -> None:
    merged = Report.merge([acted(), acted(sinkhorn=Sinkhorn(90, False)), acted(sinkhorn=None)])
    assert merged.sinkhorn == Sinkhorn(90, False)


def test_parts_of_compositions_are_merged_part_by_part() -> None:
    both = Report({"name": "composed"}, fired=True, tokens=7, parts=(acted(), idle("no layer was unsure")))
    merged = Report.merge([both, both])
    assert [part.tokens for part in merged.parts] == [14, 0] and merged.tokens == 14
    assert [part.fired for part in merged.parts] == [True, False] and merged.parts[0].calls == 2


def test_the_text_of_a_composition_is_that_of_its_parts() -> None:
    both = Report({"name": "composed"}, fired=True, parts=(acted(), idle("no layer was unsure")))
    assert str(both).startswith("air: acted") and str(both).endswith("air: did not act (no layer was unsure)")


def test_the_text_names_a_control_and_the_method_inside() -> None:
    report = Report({"name": "random-crops", "method": {"name": "crop-blend"}}, fired=False, reason="x")
    assert str(report) == "random-crops(crop-blend): did not act (x)" and repr(report) == f"<Report {report}>"

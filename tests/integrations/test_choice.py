"""A method as users of other tools give it."""

import json

import pytest

from airvlm import AIR, VAF, Composed
from airvlm.integrations.choice import chosen_method


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("air:weight=0.4,keep=3", AIR(weight=0.4, keep=3)),
        ("'air:weight=0.4,keep=3'", AIR(weight=0.4, keep=3)),
        ('"air+vaf"', Composed(AIR(), VAF())),
        ("vanilla", None),
        (None, None),
        (VAF(), VAF()),
        (AIR(keep=2).to_json(), AIR(keep=2)),
    ],
)
def test_every_form_names_the_same_method(given, expected):
    assert chosen_method(given) == expected


@pytest.mark.parametrize("method", [AIR(weight=0.4), Composed(AIR(), VAF()), None])
def test_a_calibration_is_read_from_its_file(tmp_path, method):
    file = tmp_path / "calibration.json"
    told = None if method is None else method.to_json()
    file.write_text(json.dumps({"method": told, "fingerprint": "0"}))
    assert chosen_method(f"@{file}") == method


@pytest.mark.parametrize("content", ["nothing", "{}", '{"method": {"name": "strange"}}', "[]"])
def test_a_file_without_a_method_is_refused(tmp_path, content):
    file = tmp_path / "calibration.json"
    file.write_text(content)
    with pytest.raises(ValueError, match="holds no method"):
        chosen_method(f"@{file}")
    with pytest.raises(ValueError, match="holds no method"):
        chosen_method(f"@{tmp_path / 'absent.json'}")

"""A method as users of other tools give it."""

import json

import pytest

from airvlm import VAF, Composed, CropBlend
from airvlm.integrations.choice import chosen_method


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("air:weight=0.4,keep=3", CropBlend(weight=0.4, keep=3)),
        ("'air:weight=0.4,keep=3'", CropBlend(weight=0.4, keep=3)),
        ('"air+vaf"', Composed(CropBlend(), VAF())),
        ("vanilla", None),
        (None, None),
        (VAF(), VAF()),
        (CropBlend(keep=2).to_json(), CropBlend(keep=2)),
    ],
)
def test_every_form_names_the_same_method(given, expected):
    assert chosen_method(given) == expected


def test_a_calibration_is_read_from_its_file(tmp_path):
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps({"method": CropBlend(weight=0.4).to_json(), "model": {"fingerprint": "0"}}))
    assert chosen_method(f"@{file}") == CropBlend(weight=0.4)
    with pytest.raises(ValueError, match="absent"):
        chosen_method(f"@{tmp_path / 'absent.json'}")

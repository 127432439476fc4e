"""check_family: models of the registry pass, and wrong rows of the table are told by the law they break."""

from dataclasses import replace
from typing import Any

import pytest

from airvlm.models import families
from airvlm.models.parts import ModelParts
from airvlm.testing import check_family, small_models
from airvlm.testing.family_laws import FAMILY_LAWS


def test_a_model_type_or_a_model_with_its_processor_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    names = [law.name for law in FAMILY_LAWS]
    assert check_family("llava", verbose=True) == names
    assert capsys.readouterr().out.splitlines() == [f"llava: {name}" for name in names]
    assert check_family(*small_models.build("qwen2_5_vl")) == names
    with pytest.raises(ValueError, match="give the model's processor as well"):
        check_family(small_models.build("llava")[0])
    with pytest.raises(ValueError, match="no small model of 'nowhere' is known"):
        check_family("nowhere")


@pytest.mark.parametrize(
    ("family", "changes", "law"),
    [
        ("llava", {"layout": "patches"}, "its parts are found"),
        ("qwen2_5_vl", {"plain_pixels": True}, "pixels have the declared layout"),
        ("internvl", {"one_view": {}, "tiles_key": None}, "images are encoded as if each were alone"),
    ],
)
def test_a_wrong_row_of_the_table_is_told(family: str, changes: Any, law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(families.FAMILIES, family, replace(families.FAMILIES[family], **changes))
    with pytest.raises(AssertionError, match=f"{family} breaks the law {law!r}"):
        check_family(family)


def test_parts_that_are_not_called_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor = small_models.build("llava")
    usual = ModelParts.of(model)
    spare, _ = small_models.build("llava")
    wrong = replace(usual, ffns=ModelParts.of(spare).ffns)
    monkeypatch.setitem(families.FAMILIES, "llava", replace(families.FAMILIES["llava"], parts=lambda _: wrong))
    with pytest.raises(AssertionError, match="breaks the law 'every site can be changed, and off is vanilla'"):
        check_family(model, processor)


def test_a_family_can_be_added_to_the_small_models() -> None:
    config = small_models.CONFIGS["llava"]
    image_processor, settings = small_models.IMAGE_PROCESSORS["llava"]
    small_models.add_family("vipllava_again", config, image_processor, settings, token_types="token_type_ids")
    try:
        assert "vipllava_again" in small_models.list_families()
        assert small_models.TOKEN_TYPES["vipllava_again"] == "token_type_ids"
    finally:
        for table in (small_models.CONFIGS, small_models.IMAGE_PROCESSORS, small_models.TOKEN_TYPES):
            del table["vipllava_again"]

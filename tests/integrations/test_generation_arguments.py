"""A task's generation arguments are honored, have no effect, or are refused by name."""

import pytest

from airvlm.integrations.lmms_eval.arguments import read_generation


def test_the_usual_greedy_task_is_greedy():
    given = {"max_new_tokens": 16, "temperature": 0, "top_p": 1.0, "num_beams": 1, "do_sample": False}
    assert read_generation(given) == {"max_new_tokens": 16, "do_sample": False, "num_beams": 1}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"temperature": 0.7, "top_p": 0.9}, {"do_sample": True, "temperature": 0.7, "top_p": 0.9}),
        ({"do_sample": True}, {"do_sample": True}),
        ({"do_sample": True, "temperature": 0}, {"do_sample": False}),
        ({"do_sample": False, "temperature": 0.7}, {"do_sample": False}),
        ({"temperature": None, "top_p": None}, {"do_sample": False}),
    ],
)
def test_sampling_is_what_the_task_says(given, expected):
    options = read_generation(given)
    assert options.pop("max_new_tokens") == 1024
    assert options == expected


@pytest.mark.parametrize("name", ["max_new_tokens", "max_tokens", "max_gen_toks"])
def test_the_limit_is_honored_in_every_spelling(name):
    assert read_generation({name: 7})["max_new_tokens"] == 7


@pytest.mark.parametrize("name", ["repetition_penalty", "length_penalty", "no_repeat_ngram_size", "num_beams", "seed"])
def test_what_transformers_supports_is_passed_on(name):
    assert read_generation({name: 2})[name] == 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"until": ["\n\n", "USER"]}, ["\n\n", "USER"]),
        ({"until": "."}, ["."]),
        ({"stop_sequences": ["a", ""]}, ["a"]),
        ({"until": []}, None),
        ({}, None),
    ],
)
def test_stop_strings_are_passed_on(given, expected):
    assert read_generation(given).get("stop_strings") == expected


@pytest.mark.parametrize("given", [{"image_aspect_ratio": "pad"}, {"best_of": 2}, {"num_return_sequences": 3}])
def test_what_cannot_be_honored_is_refused_by_name(given):
    [name] = given
    with pytest.raises(ValueError, match=f"{name} = .*ignore={name}"):
        read_generation(given)
    assert read_generation(given, ignore=[name])["do_sample"] is False


def test_what_has_no_effect_is_accepted():
    read_generation({"image_aspect_ratio": "original", "skip_special_tokens": True, "use_cache": True})

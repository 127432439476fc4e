"""A task's generation arguments are honoured, say nothing, or are refused by name."""

import pytest

from airvlm.integrations.lmms_eval.arguments import generation


def test_the_usual_greedy_task_is_greedy():
    how = generation({"max_new_tokens": 16, "temperature": 0, "top_p": 1.0, "num_beams": 1, "do_sample": False})
    assert how.options == {"max_new_tokens": 16, "do_sample": False, "num_beams": 1}


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
    options = dict(generation(given).options)
    assert options.pop("max_new_tokens") == 1024
    assert options == expected


@pytest.mark.parametrize("name", ["max_new_tokens", "max_tokens", "max_gen_toks"])
def test_the_limit_is_honoured_in_every_spelling(name):
    assert generation({name: 7}).options["max_new_tokens"] == 7


@pytest.mark.parametrize("name", ["repetition_penalty", "length_penalty", "no_repeat_ngram_size", "num_beams"])
def test_what_transformers_knows_is_handed_on(name):
    assert generation({name: 2}).options[name] == 2


def test_an_answer_ends_before_the_first_stop_string():
    how = generation({"until": ["\n\n", "USER"]})
    assert how.ended("yes USER no\n\nmore") == "yes "
    assert how.ended("nothing to stop at") == "nothing to stop at"
    assert generation({"until": "."}).ended("a. b") == "a"
    assert generation({"until": []}).until == ()


@pytest.mark.parametrize("given", [{"image_aspect_ratio": "pad"}, {"best_of": 2}, {"num_return_sequences": 3}])
def test_what_cannot_be_honoured_is_refused_by_name(given):
    [name] = given
    with pytest.raises(ValueError, match=f"{name} = .*ignore={name}"):
        generation(given)
    assert generation(given, ignore=[name]).options["do_sample"] is False


def test_what_asks_for_nothing_is_accepted():
    generation({"image_aspect_ratio": "original", "skip_special_tokens": True, "use_cache": True})


def test_a_seed_is_kept():
    assert generation({"seed": 3}).seed == 3

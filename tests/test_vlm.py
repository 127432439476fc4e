"""VLM: what a person can ask, and that asking in one way equals asking in another."""

import base64
import gc
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from airvlm.inputs.images import BadImage
from airvlm.inputs.prompts import DESCRIBE
from airvlm.methods import AIR, CropBlend
from airvlm.methods.vcd import VCD
from airvlm.runtime.locks import ModelInUseError
from airvlm.runtime.session import MethodNotApplied
from airvlm.testing import small_models
from airvlm.testing.small_models import sample_image
from airvlm.vlm import VLM, PromptTooLong
from tests.all_families import FAMILIES
from tests.checkpoints import save_llava

QUESTION = "is there a fork in the image ?"
METHOD = AIR(keep=2, num_crops=4, num_prototypes=4, strength=2.0, layers=(0, 3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def vlm(folder: Path) -> VLM:
    return VLM.load(folder)


class Chatting:
    """A small processor with a chat template, which its word tokenizer can read."""

    chat_template = "words, each after a space"

    def __init__(self, processor: Any) -> None:
        self.inner, self.tokenizer = processor, processor.tokenizer
        self.image_processor, self.image_token = processor.image_processor, processor.image_token

    def __call__(self, **arguments: Any) -> Any:
        return self.inner(**arguments)

    def apply_chat_template(self, messages: Any, **_: Any) -> str:
        names = {"system": ".", "user": "USER:", "assistant": "ASSISTANT:"}
        words = []
        for turn in messages:
            words += [names[turn["role"]], *(part.get("text", "<image>") for part in turn["content"])]
        return " ".join([*words, "ASSISTANT:"])


def build_vlm(family: str) -> VLM:
    model, processor = small_models.shared_model(family)
    return VLM(model, Chatting(processor))


@pytest.mark.parametrize("family", FAMILIES)
def test_ask_gives_what_generate_gives(family: str) -> None:
    vlm = build_vlm(family)
    model, processor = vlm.model, vlm.processor
    answer = vlm.ask(sample_image(1), QUESTION, max_new_tokens=6)
    assert answer.text == vlm.ask(sample_image(1), QUESTION, max_new_tokens=6).text  # with cached features
    inputs = processor(text=[answer.prompt], images=[[sample_image(1)]])
    ids = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert answer.text == processor.tokenizer.decode(ids, skip_special_tokens=True).strip()
    assert answer.report is None


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3", "idefics3", "llava_next", "internvl"])
def test_a_batch_is_its_rows_asked_alone_in_their_order(family: str) -> None:
    vlm = build_vlm(family)
    requests = [
        (sample_image(1), QUESTION),
        (None, "how many ?"),
        ([sample_image(2), sample_image(3)], "what is left and right ?"),
        (sample_image(1), "is there a dog with the cat on the table near the small red chair ?"),
        (sample_image(4), "what color ?"),
    ]
    alone = [vlm.ask(image, question, max_new_tokens=5).text for image, question in requests]
    together = vlm.batch(iter(requests), batch_size=2, max_new_tokens=5, progress=False)
    assert [answer.text for answer in together] == alone


def test_a_batch_reads_its_requests_as_they_are_needed(vlm: VLM) -> None:
    taken = []

    def endless() -> Iterator[tuple[Image.Image, str]]:
        while True:
            taken.append(1)
            yield sample_image(1), "what ?"

    answers = vlm.batch(endless(), batch_size=2, max_new_tokens=2, progress=False)
    assert next(answers).tokens <= 2
    assert len(taken) == 16


def test_many_questions_about_one_image_encode_it_once(folder: Path) -> None:
    vlm = VLM.load(folder)
    for question in ("what ?", "is there a dog ?", "is there a cat ?"):
        vlm.ask(sample_image(7), question, max_new_tokens=1)
    list(vlm.batch([(sample_image(7), "how many ?"), (sample_image(8), "what ?")], max_new_tokens=1, progress=False))
    assert vlm.builder.cache.computed["features"] == 2


def test_cached_features_do_not_keep_the_batch_they_came_in(folder: Path) -> None:
    vlm = VLM.load(folder)
    vlm.builder.build([vlm.builder.read(sample_image(i), "what ?") for i in range(4)])
    kept = [value for (kind, _), (value, _) in vlm.builder.cache._values.items() if kind == "features"]
    assert len(kept) == 4
    assert all(one.untyped_storage().nbytes() == one.nbytes for one, _ in kept)


def test_streamed_pieces_add_up_to_the_answer(vlm: VLM) -> None:
    pieces, stream = [], vlm.stream(sample_image(1), QUESTION, max_new_tokens=8)
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            answer = end.value
            break
    asked = vlm.ask(sample_image(1), QUESTION, max_new_tokens=8)
    assert "".join(pieces) == asked.text == answer.text
    assert (answer.tokens, answer.finished) == (asked.tokens, asked.finished)


def test_a_stream_that_is_closed_early_ends_its_generation(vlm: VLM) -> None:
    stream = vlm.stream(sample_image(1), QUESTION, max_new_tokens=400)
    next(stream)
    stream.close()
    assert not vlm.model._forward_pre_hooks


@pytest.mark.slow
def test_a_dropped_stream_ends_its_generation_and_frees_the_model(vlm: VLM) -> None:
    stream = vlm.stream(sample_image(1), QUESTION, max_new_tokens=4000)
    next(stream)
    del stream
    gc.collect()
    assert vlm.lock.waiting == 0


def test_streams_read_in_turn_do_not_disturb_each_other(vlm: VLM) -> None:
    asked = [(sample_image(1), METHOD), (sample_image(2), None), (sample_image(3), CropBlend())]
    expected = [vlm.ask(image, QUESTION, method=method, max_new_tokens=8).text for image, method in asked]
    streams = [vlm.stream(image, QUESTION, method=method, max_new_tokens=8) for image, method in asked]
    texts = [""] * len(streams)
    for pieces in zip_longest(*streams, fillvalue=""):
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
    assert [text.strip() for text in texts] == expected


def test_a_question_during_a_stream_waits_for_its_generation(vlm: VLM) -> None:
    stream = vlm.stream(sample_image(1), QUESTION, method=METHOD, max_new_tokens=20)
    first = next(stream)
    between = vlm.ask(sample_image(2), QUESTION, max_new_tokens=6).text
    text = first + "".join(stream)
    assert between == vlm.ask(sample_image(2), QUESTION, max_new_tokens=6).text
    assert text.strip() == vlm.ask(sample_image(1), QUESTION, method=METHOD, max_new_tokens=20).text


@pytest.mark.slow
def test_threads_get_the_answers_that_they_would_get_alone(vlm: VLM) -> None:
    methods = [None, METHOD, CropBlend(), VCD(alpha=0.5)]
    jobs = [(seed, method) for seed in range(4) for method in methods]
    alone = [vlm.ask(sample_image(seed), QUESTION, method=method, max_new_tokens=6).text for seed, method in jobs]
    vlm.builder.cache.clear()
    with ThreadPoolExecutor(4) as pool:

        def answer(job: tuple[int, Any]) -> str:
            seed, method = job
            if (seed + methods.index(method)) % 3 == 0:
                return "".join(vlm.stream(sample_image(seed), QUESTION, method=method, max_new_tokens=6)).strip()
            return vlm.ask(sample_image(seed), QUESTION, method=method, max_new_tokens=6).text

        together = list(pool.map(answer, jobs))
    assert together == alone
    assert not vlm.model._forward_pre_hooks and "generate" not in vlm.model.__dict__
    assert vlm.lock.waiting == 0


def test_a_call_from_inside_a_call_is_refused_instead_of_waiting_for_itself(vlm: VLM) -> None:
    def inside(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        vlm.ask(sample_image(2), QUESTION, max_new_tokens=1)
        return scores

    with pytest.raises(ModelInUseError, match="from inside a call"):
        vlm.ask(sample_image(1), QUESTION, max_new_tokens=2, logits_processor=[inside])
    assert vlm.lock.waiting == 0


def test_an_error_while_streaming_reaches_the_reader(vlm: VLM) -> None:
    with pytest.raises(MethodNotApplied):
        list(vlm.stream(None, QUESTION, method=METHOD, max_new_tokens=2))


def test_compare_answers_under_each_method_by_its_name(vlm: VLM) -> None:
    answers = vlm.compare(sample_image(1), QUESTION, {"plain": None, "mine": METHOD}, max_new_tokens=8)
    assert list(answers) == ["plain", "mine"]
    assert answers["plain"].text == vlm.ask(sample_image(1), QUESTION, max_new_tokens=8).text
    assert answers["plain"].report is None
    report = answers["mine"].report
    assert report is not None
    assert report.fired
    assert report.kept == 2
    assert answers["mine"].text != answers["plain"].text


def test_compare_takes_a_list_and_names_answers_by_their_labels(vlm: VLM) -> None:
    methods = [None, "crop-blend:weight=0.9", METHOD, "vaf+eos-bias:bias=2"]
    answers = vlm.compare(sample_image(1), QUESTION, methods, max_new_tokens=6)
    assert list(answers) == ["vanilla", "crop-blend:weight=0.9", METHOD.label, "vaf+eos-bias:bias=2"]
    for (_, answer), method in zip(answers.items(), methods, strict=True):
        assert answer.text == vlm.ask(sample_image(1), QUESTION, method=method, max_new_tokens=6).text
    assert vlm.compare(sample_image(1), QUESTION, [None, "vanilla"], max_new_tokens=1).keys() == {"vanilla"}


def test_compare_refuses_a_text_in_place_of_its_list(vlm: VLM) -> None:
    with pytest.raises(TypeError, match="takes a list of methods, not the text 'crop-blend'"):
        vlm.compare(sample_image(1), QUESTION, "crop-blend")


SPELLED, OBJECT = "air:keep=2,num_crops=4,num_prototypes=4,strength=2.0,layers=(0,3)", METHOD


def test_every_call_takes_a_spelling_in_place_of_an_object(vlm: VLM) -> None:
    image, options = sample_image(1), {"max_new_tokens": 6}

    def read(stream: Any) -> Any:
        while True:
            try:
                next(stream)
            except StopIteration as end:
                return end.value

    turns = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": QUESTION}]}]
    calls = {
        "ask": lambda method: vlm.ask(image, QUESTION, method=method, **options),
        "describe": lambda method: vlm.describe(image, method=method, **options),
        "chat": lambda method: vlm.chat(turns, method=method, **options),
        "stream": lambda method: read(vlm.stream(image, QUESTION, method=method, **options)),
        "batch": lambda method: next(vlm.batch([(image, QUESTION)], method=method, progress=False, **options)),
        "compare": lambda method: vlm.compare(image, QUESTION, {"one": method}, **options)["one"],
    }
    for name, call in calls.items():
        spelled, built = call(SPELLED), call(OBJECT)
        assert spelled.report.method == built.report.method == OBJECT.to_json(), name
        assert spelled.report.fired and spelled.text == built.text, name
        assert call("vanilla").text == call(None).text and call("vanilla").report is None, name
    likely = vlm.likelihood(image, QUESTION, ["yes", "no"], method=SPELLED)
    assert likely == vlm.likelihood(image, QUESTION, ["yes", "no"], method=OBJECT)
    assert likely != vlm.likelihood(image, QUESTION, ["yes", "no"], method="vanilla")


def test_a_wrong_method_is_refused_before_anything_runs(vlm: VLM) -> None:
    image = sample_image(1)
    with pytest.raises(TypeError, match=r"CropBlend is a class; pass an object: CropBlend\(\)"):
        vlm.ask(image, QUESTION, method=CropBlend)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean crop-blend"):
        vlm.compare(image, QUESTION, [None, "crop-blnd"])
    with pytest.raises(ValueError, match="unknown method"):
        next(vlm.stream(image, QUESTION, method="magic"))
    with pytest.raises(ValueError, match="unknown method"):
        next(vlm.batch([(image, QUESTION)], method="magic", progress=False))
    assert vlm.lock.waiting == 0
    assert vlm.ask(image, QUESTION, max_new_tokens=1)


def test_in_a_batch_every_row_has_its_own_report(vlm: VLM) -> None:
    requests = [(sample_image(1), QUESTION), (None, "what ?"), ([sample_image(2), sample_image(3)], "what ?")]
    answers = list(vlm.batch(requests, method=METHOD, max_new_tokens=3, progress=False))
    reports = [answer.report for answer in answers]
    assert [len(report.crops) for report in reports if report] == [1, 0, 2]
    assert reports[1] is not None
    assert reports[1].reason == "this request has no image"
    assert [a.text for a in answers] == [
        vlm.ask(image, text, method=METHOD if image else None, max_new_tokens=3).text for image, text in requests
    ]


def test_a_method_that_needs_pixels_is_given_pixels(vlm: VLM) -> None:
    vlm.ask(sample_image(1), QUESTION, max_new_tokens=2)  # its features are cached from here on
    answer = vlm.ask(sample_image(1), QUESTION, method=VCD(alpha=0.5), max_new_tokens=4)
    assert answer.report is not None
    assert answer.report.fired


def test_a_method_without_an_image_is_an_error(vlm: VLM) -> None:
    with pytest.raises(MethodNotApplied):
        vlm.ask(None, QUESTION, method=METHOD, max_new_tokens=2)


def test_images_come_in_every_form(vlm: VLM, tmp_path: Path) -> None:
    image = sample_image(5)
    path = tmp_path / "scene.png"
    image.save(path)
    asked = {
        vlm.ask(form, QUESTION, max_new_tokens=6).text
        for form in (image, path, str(path), path.read_bytes(), np.asarray(image))
    }
    assert len(asked) == 1


def test_web_addresses_are_refused_unless_allowed(vlm: VLM) -> None:
    with pytest.raises(BadImage, match="web address"):
        vlm.ask("https://example.org/a.png", QUESTION)


def test_the_likelihood_is_the_mean_log_probability_of_the_option(vlm: VLM) -> None:
    options = ["yes", "a red dog", "no"]
    scores = vlm.likelihood(sample_image(1), QUESTION, options)
    request = vlm.builder.read(sample_image(1), QUESTION)
    asked = vlm.processor(text=[request.prompt], images=[[sample_image(1)]], return_tensors="pt")
    for option, score in zip(options, scores, strict=True):
        words = vlm.processor.tokenizer(option, add_special_tokens=False)["input_ids"]
        # token by token: the definition
        ids, total = asked["input_ids"], 0.0
        for word in words:
            with torch.no_grad():
                mask = torch.ones_like(ids)
                out = vlm.model(input_ids=ids, attention_mask=mask, pixel_values=asked["pixel_values"])
            total += float(out.logits[0, -1].log_softmax(-1)[word])
            ids = torch.cat([ids, torch.tensor([[word]])], dim=1)
        assert score == pytest.approx(total / len(words), abs=1e-4)


def test_the_likelihood_under_a_method_differs(vlm: VLM) -> None:
    options = ["yes", "no"]
    assert vlm.likelihood(sample_image(1), QUESTION, options, method=METHOD) != vlm.likelihood(
        sample_image(1), QUESTION, options
    )


def test_describe_uses_the_prompt_of_the_evaluations(vlm: VLM) -> None:
    assert DESCRIBE in vlm.describe(sample_image(1), max_new_tokens=1).prompt


def test_an_answer_tells_whether_the_model_ended_it(vlm: VLM) -> None:
    cut = vlm.ask(sample_image(1), QUESTION, max_new_tokens=3)
    assert (cut.tokens, cut.finished) == (3, False)
    ended = vlm.ask(sample_image(1), QUESTION, max_new_tokens=3, forced_eos_token_id=[2])
    assert (ended.tokens, ended.finished) == (2, True)


@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_refused(vlm: VLM, question: str) -> None:
    with pytest.raises(ValueError, match="question is empty"):
        vlm.ask(sample_image(1), question)


def test_a_question_cannot_contain_an_image_placeholder(vlm: VLM) -> None:
    with pytest.raises(ValueError, match="placeholder"):
        vlm.ask(sample_image(1), "what is <image> ?")


def test_several_sequences_are_refused(vlm: VLM) -> None:
    with pytest.raises(ValueError, match="num_return_sequences"):
        vlm.ask(sample_image(1), QUESTION, num_return_sequences=2, num_beams=2)


# -- conversations, stop strings, sampling, errors


def test_chat_writes_every_turn_in_the_models_own_form() -> None:
    vlm = build_vlm("llava")
    messages = [
        {
            "role": "user",
            "content": [{"type": "image", "image": sample_image(1)}, {"type": "text", "text": "what"}],
        },
        {"role": "assistant", "content": "a dog ."},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": data_uri(sample_image(2))}},
                {"type": "text", "text": "and this ?"},
            ],
        },
    ]
    answer = vlm.chat(messages, system="describe the image", method=CropBlend(), max_new_tokens=4)
    said = ". describe the image USER: <image> what ASSISTANT: a dog . USER: <image> and this ? ASSISTANT:"
    assert answer.prompt == said
    assert answer.report is not None and len(answer.report.crops) == 2
    turns = [{"role": "system", "content": "describe the image"}, *messages]
    for turn in turns[1:]:
        if isinstance(turn["content"], list):
            turn["content"][0] = {"type": "image"}
    assert answer.text == vlm.ask([sample_image(1), sample_image(2)], turns, method=CropBlend(), max_new_tokens=4).text


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("what ?", "list of turns"),
        ([{"role": "user"}], "turn 0"),
        ([{"role": "user", "content": 7}], "turn 0"),
        ([{"role": "user", "content": ["what"]}], "turn 0"),
        ([{"role": "user", "content": [{"type": "image"}]}], "holds no image"),
        ([{"role": "assistant", "content": "a dog"}], "end with a turn of the user"),
    ],
)
def test_a_conversation_that_cannot_be_read_is_refused(vlm: VLM, messages: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vlm.chat(messages)


def data_uri(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def test_stop_strings_end_an_answer_and_are_left_out(vlm: VLM) -> None:
    whole = vlm.ask(sample_image(1), QUESTION, max_new_tokens=12).text
    words = whole.split()
    stop = f" {words[2]}"
    expected = whole[: whole.index(stop)].strip()
    asked = {"max_new_tokens": 12, "stop_strings": [stop, "never said"]}
    answer = vlm.ask(sample_image(1), QUESTION, **asked)
    assert (answer.text, answer.finished) == (expected, True)
    assert answer.tokens < 12
    assert "".join(vlm.stream(sample_image(1), QUESTION, **asked)).strip() == expected
    rows = [(sample_image(1), QUESTION), (sample_image(2), QUESTION)]
    first, second = vlm.batch(rows, progress=False, **asked)
    assert (first.text, first.tokens, first.finished) == (expected, answer.tokens, True)
    assert second.text == vlm.ask(sample_image(2), QUESTION, **asked).text


def test_a_seed_makes_sampling_repeatable_and_leaves_the_generator_alone(vlm: VLM) -> None:
    def draw(**options: Any) -> str:
        return vlm.ask(sample_image(1), QUESTION, max_new_tokens=12, **options).text

    torch.manual_seed(5)
    state = torch.get_rng_state()
    one = draw(temperature=2.0, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert one == draw(temperature=2.0, seed=1) != draw(temperature=2.0, seed=2)
    assert draw(temperature=0) == draw() == draw(seed=3)


def test_a_request_that_cannot_be_read_raises_or_is_kept(vlm: VLM) -> None:
    rows = [
        (sample_image(1), "what ?"),
        (b"no image", "what ?"),
        (sample_image(2), ""),
        (sample_image(2), "what ?"),
    ]
    with pytest.raises(BadImage, match="request 1: 8 bytes"):
        list(vlm.batch(rows, max_new_tokens=2, progress=False))
    answers = list(vlm.batch(rows, max_new_tokens=2, progress=False, errors="keep"))
    assert [type(answer.error) for answer in answers] == [type(None), BadImage, ValueError, type(None)]
    assert "request 2: the question is empty" in str(answers[2].error)
    assert [answers[0].text, answers[3].text] == [
        vlm.ask(sample_image(i), "what ?", max_new_tokens=2).text for i in (1, 2)
    ]
    with pytest.raises(ValueError, match="choose raise or keep"):
        list(vlm.batch(rows, errors="ignore"))  # type: ignore[arg-type]


def test_reports_of_ask_and_batch_tell_where_the_time_went(folder: Path) -> None:
    vlm = VLM.load(folder)
    alone = vlm.ask(sample_image(1), QUESTION, method=METHOD, max_new_tokens=2).report
    rows = list(
        vlm.batch([(sample_image(i), "what ?") for i in (2, 3)], method=METHOD, max_new_tokens=2, progress=False)
    )
    for report in (alone, *(row.report for row in rows)):
        assert report is not None
        assert report.seconds["crops"] > 0 and report.seconds["transport"] > 0


# -- prompts beyond the model's length


def test_a_prompt_that_the_model_cannot_read_whole_is_refused(vlm: VLM) -> None:
    image, long = small_models.sample_image(1), "is there a dog ? " * 300
    longest = vlm.model.config.get_text_config().max_position_embeddings
    for call in (
        lambda: vlm.ask(image, long, max_new_tokens=2),
        lambda: vlm.ask(None, long, max_new_tokens=2),
        lambda: next(vlm.stream(image, long, max_new_tokens=2)),
        lambda: vlm.likelihood(image, long, ["yes", "no"]),
        lambda: list(vlm.batch([(image, "is there a dog ?"), (image, long)], progress=False, max_new_tokens=2)),
    ):
        with pytest.raises(PromptTooLong, match=f"tokens, and .* reads at most {longest}"):
            call()
    assert vlm.lock.waiting == 0
    vlm.ask(image, "is there a dog ?", max_new_tokens=2)
    asked_for = VLM(vlm.model, vlm.processor, allow_long_prompts=True)
    assert asked_for.ask(image, long, max_new_tokens=2).tokens >= 0


def test_a_batch_that_keeps_errors_answers_the_prompts_that_fit(vlm: VLM) -> None:
    image, long = small_models.sample_image(1), "is there a dog ? " * 300
    requests = [(image, "is there a dog ?"), (image, long), (image, "what color ?"), (None, long)]
    answers = list(vlm.batch(requests, progress=False, errors="keep", max_new_tokens=3))
    assert [isinstance(answer.error, PromptTooLong) for answer in answers] == [False, True, False, True]
    alone = vlm.ask(image, "what color ?", max_new_tokens=3)
    assert answers[2].text == alone.text


def test_padding_does_not_make_a_prompt_too_long(vlm: VLM) -> None:
    image = small_models.sample_image(1)
    longest = vlm.model.config.get_text_config().max_position_embeddings
    row = vlm.builder.read(image, "is there a dog ?")
    fits = vlm.builder.build([row])["input_ids"].shape[1]
    words = longest - fits  # exactly as many tokens as the model reads
    answer = vlm.ask(image, "dog " * words + "is there a dog ?", max_new_tokens=1)
    assert answer.tokens >= 0
    with pytest.raises(PromptTooLong, match=f"the prompt has {longest + 1} tokens"):
        vlm.ask(image, "dog " * (words + 1) + "is there a dog ?", max_new_tokens=1)


def test_an_embedded_model_is_loaded_without_progress_bars(capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.enable_progress_bar()
    try:
        VLM.load("tiny")
        assert capfd.readouterr().err == ""
        assert logging.is_progress_bar_enabled()
    finally:
        if not shown:
            logging.disable_progress_bar()

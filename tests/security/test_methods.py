"""A request imports no module and opens no file, however it spells a method."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import httpx
import pytest

from airvlm import VLM, CropBlend, Method
from airvlm.methods import METHODS
from airvlm.methods.requests import MethodLimits, method_from_request
from airvlm.serve.completions import choose_method
from airvlm.serve.errors import ApiError
from airvlm.serve.limits import Limits
from airvlm.serve.schema import parse_request
from tests.security.conftest import Audit, Canary

NAMED = {"name": "crop-blend"}


def requests(spelled: str) -> list[dict[str, Any]]:
    """One text in every place of a request in which it could be taken for a method, an option or a value."""
    methods: list[Any] = [
        spelled,
        [spelled],
        {"name": spelled},
        {"name": [spelled]},
        {"name": {"name": spelled}},
        {spelled: 1},
        NAMED | {"match": spelled},
        NAMED | {"weight": spelled},
        NAMED | {"weight": [spelled]},
        NAMED | {"num_crops": {"name": spelled}},
        NAMED | {spelled: 1},
        NAMED | {f"weight=0.4+{spelled}": 1},
        {"name": "vaf", "layers": [1, spelled]},
        {"name": "random-crops", "method": spelled},
        {"name": "random-crops", "method": {"name": spelled}},
        {"name": "random-crops", "method": NAMED | {"match": spelled}},
        {"name": "random-crops", "method": NAMED | {"keep": 2, spelled: 1}},
        {"name": "composed", "methods": spelled},
        {"name": "composed", "methods": [spelled]},
        {"name": "composed", "methods": [NAMED, {"name": spelled}]},
        {"name": "composed", "methods": [NAMED, {"name": "random-crops", "method": {"name": spelled}}]},
    ]
    bodies = [{"airvlm": {"method": method}} for method in methods]
    bodies += [{"airvlm": value} for value in (spelled, [spelled], {spelled: 1}, {"name": spelled})]
    bodies += [{"airvlm": {"method": "vaf", spelled: 1}}]
    return bodies


def names(spelled: str) -> list[dict[str, Any]]:
    """The same in the name of the model."""
    return [{"model": f"tiny+{spelled}"}, {"model": f"tiny+crop-blend+{spelled}"}]


@pytest.fixture(scope="module")
def server(serve: Callable[..., Any]) -> Iterator[str]:
    with serve(method=CropBlend()) as address:
        yield address


def test_the_canaries_and_the_audit_work(canary: Canary, audit: Audit) -> None:
    def touch() -> None:
        __import__(canary.module)
        canary.secret.read_text()

    with audit.watch() as events:
        thread = threading.Thread(target=touch)
        thread.start()
        thread.join()
    assert ("import", canary.module) in events
    assert ("open", str(canary.secret)) in events
    assert canary.imported.exists()
    canary.imported.unlink()
    del sys.modules[canary.module]


def test_no_spelling_reaches_a_module_or_a_file_of_the_server(server: str, canary: Canary, audit: Audit) -> None:
    message = {"role": "user", "content": "Is there a dog?"}
    with httpx.Client(timeout=60) as client:

        def post(body: dict[str, Any]) -> httpx.Response:
            whole = {"model": "tiny", "messages": [message], "max_tokens": 1} | body
            return client.post(f"{server}/v1/chat/completions", json=whole)

        # what these import for the first time is not the attacks' doing
        assert post({}).status_code == 200
        assert post({"model": "tiny+nothing"}).status_code == 400
        with audit.watch() as events:
            # every spelling in a few places each, so that every place is taken often
            for number, spelled in enumerate(canary.spellings()):
                for body in [*requests(spelled), *names(spelled)][number % 9 :: 9]:
                    answer = post(body)
                    assert answer.status_code == 400, (body, answer.text[:300])
                    assert "hunter2" not in answer.text
                    assert "Traceback" not in answer.text
        assert post({}).status_code == 200
    assert events == []
    assert not canary.imported.exists()


def test_no_spelling_in_no_place_reaches_a_module_or_a_file(vlm: VLM, canary: Canary, audit: Audit) -> None:
    """All places and all spellings, without HTTP around them."""
    message = {"role": "user", "content": "Is there a dog?"}

    def attack(spellings: list[str]) -> None:
        for spelled in spellings:
            for body in [*requests(spelled), *names(spelled)]:
                sent = json.dumps({"model": "tiny", "messages": [message]} | body).encode()
                for default in (None, CropBlend()):
                    with pytest.raises(ApiError) as refused:
                        choose_method(parse_request(sent, Limits()), vlm.name, default, Limits())
                    assert refused.value.status == 400
                    assert "hunter2" not in refused.value.message

    _run(lambda: attack(canary.spellings()[:3]))  # imports what it needs
    with audit.watch() as events:
        _run(lambda: attack(canary.spellings()))
    assert events == []
    assert not canary.imported.exists()


def test_no_spelling_reaches_a_module_or_a_file_by_the_settings_of_vllm(canary: Canary, audit: Audit) -> None:
    from airvlm.integrations.vllm import settings

    def attack(spellings: list[str]) -> None:
        for spelled in spellings:
            for body in requests(spelled):
                setting = json.loads(json.dumps(body["airvlm"]))
                for server in (True, False, {"method": NAMED}):
                    with pytest.raises(ValueError):
                        settings.resolve(server, setting)
                with pytest.raises(ValueError):  # in the server's own hf_overrides
                    settings.resolve(setting)

    _run(lambda: attack(canary.spellings()[:3]))  # imports what it needs
    with audit.watch() as events:
        _run(lambda: attack(canary.spellings()))
    assert events == []
    assert not canary.imported.exists()


def test_no_spelling_reaches_a_module_or_a_file_by_the_page(canary: Canary, audit: Audit) -> None:
    from airvlm.serve.page import STRENGTHS, choose_methods

    def attack(spellings: list[str]) -> None:
        for spelled in spellings:
            with pytest.raises(ValueError):
                choose_methods([spelled], {})
            with pytest.raises(ValueError):
                choose_methods(["crop-blend", spelled], {})
            for name in STRENGTHS:
                with pytest.raises(ValueError):
                    choose_methods([name], {name: spelled})  # type: ignore[dict-item]  # as a forged request would

    _run(lambda: attack(canary.spellings()[:3]))
    with audit.watch() as events:
        _run(lambda: attack(canary.spellings()))
    assert events == []
    assert not canary.imported.exists()


def _run(function: Callable[[], None]) -> None:
    """In another thread, since the audit leaves the test's own out."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_words_are_accepted_only_where_the_option_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method of a package may have an option that is a path: no request can set it."""
    from dataclasses import dataclass
    from typing import ClassVar

    from airvlm.methods import METHODS, option

    opened = []

    @dataclass(frozen=True)
    class Steering(Method):
        name: ClassVar[str] = "steering-from-a-file"
        path: str = option("", "a file with directions")
        paths: tuple[str, ...] = option((), "several")

        def __post_init__(self) -> None:
            opened.append(self.path)

    # get_type_hints must find what the annotations name
    monkeypatch.setitem(Steering.__init__.__globals__, "ClassVar", ClassVar)
    METHODS[Steering.name] = Steering
    try:
        for options in ({"path": "/etc/passwd"}, {"paths": ["/etc/passwd"]}):
            with pytest.raises(ValueError, match="a request cannot give a string"):
                method_from_request({"method": {"name": Steering.name, **options}})
        assert opened == []
        assert method_from_request({"method": {"name": Steering.name}}) == Steering()
    finally:
        del METHODS[Steering.name]


def methods_with_files() -> list[tuple[str, str]]:
    return [
        (name, field.name) for name, kind in METHODS.items() for field in fields(kind) if field.metadata.get("file")
    ]


def test_no_request_names_the_file_of_a_method(canary: Canary, audit: Audit) -> None:
    """Options that hold a path (calibration artifacts) are the operator's alone."""
    from airvlm.integrations.vllm import settings

    found = methods_with_files()
    assert found, "no method has a file"
    paths: list[Any] = [str(canary.secret), str(canary.pipe), "/dev/zero", "", None, 0, 1.5, True, [str(canary.secret)]]
    paths += [{"name": str(canary.secret)}, *canary.spellings()]

    def attack(values: list[Any]) -> None:
        for name, option in found:
            for value in values:
                method = {"name": name, option: value}
                nested = {"name": "composed", "methods": [NAMED, method]}
                wrapped = {"name": "random-crops", "method": method}
                for setting in ({"method": method}, {"method": nested}, {"method": wrapped}):
                    for default in (None, METHODS[name]()):
                        with pytest.raises(ValueError, match="names a file"):
                            method_from_request(setting, default)
                    with pytest.raises(ValueError, match="names a file"):
                        settings.resolve(True, setting)
                with pytest.raises(ValueError, match="names a file"):  # a change of the operator's own method
                    method_from_request({"method": {option: value}}, METHODS[name]())

    _run(lambda: attack(paths[:2]))
    with audit.watch() as events:
        _run(lambda: attack(paths))
    assert events == []
    assert not canary.imported.exists()


def test_the_operators_artifact_stays_where_a_request_changes_other_options() -> None:
    name, option = methods_with_files()[0]
    own = METHODS[name](**{option: "/srv/artifact.safetensors"})
    other = next(f.name for f in fields(own) if f.name in ("strength", "rank", "weight", "keep"))
    changed = method_from_request({"method": {other: 1}}, own)
    assert changed is not None
    assert getattr(changed, option) == "/srv/artifact.safetensors"


def test_a_method_without_its_artifact_is_the_requests_fault(server: str) -> None:
    image = {"type": "image_url", "image_url": {"url": _picture()}}
    message = {"role": "user", "content": [image, {"type": "text", "text": "Is there a dog?"}]}
    for name, _ in methods_with_files():
        body = {"model": "tiny", "messages": [message], "max_tokens": 1, "airvlm": {"method": name}}
        answer = httpx.post(f"{server}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 400, answer.text
        assert "artifact" in answer.text
    listed = httpx.get(f"{server}/v1/models").json()["data"]
    assert not {f"tiny+{name}" for name, _ in methods_with_files()} & {one["id"] for one in listed}


def test_options_that_do_not_suit_the_model_are_the_requests_fault(server: str) -> None:
    image = {"type": "image_url", "image_url": {"url": _picture()}}
    message = {"role": "user", "content": [image, {"type": "text", "text": "Is there a dog?"}]}
    for method in ({"name": "vaf", "layers": [0, 1000]}, {"name": "air", "layers": [0, 10**9]}, {"name": "ad-hh"}):
        body = {"model": "tiny", "messages": [message], "max_tokens": 1, "airvlm": {"method": method}}
        answer = httpx.post(f"{server}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 400, answer.text
        assert "/airvlm/" not in answer.text, "the folder of the model is the operator's"


def test_the_schema_offers_no_file(server: str) -> None:
    schema = httpx.get(f"{server}/openapi.json").json()
    by_name = {one["properties"]["name"]["const"]: one for one in schema["components"]["schemas"]["Method"]["anyOf"]}
    for name, option in methods_with_files():
        assert option not in by_name[name]["properties"]


def _picture() -> str:
    import base64

    from airvlm import tiny

    data = next(iter(tiny.scenes("test"))).path.read_bytes()
    return "data:image/webp;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"name": "crop-blend", "num_crops": 65}, "at most 64"),
        ({"name": "air", "num_crops": 4096}, "at most 64"),
        ({"name": "code", "tokens": 1000000}, "code.tokens: give an integer of at most 512"),
        ({"name": "opera", "candidates": 100000}, "opera.candidates: give an integer of at most 16"),
        ({"name": "crg", "boxes": [[[0, 0, 1, 1]]]}, "plain values only"),
        ({"name": "other-directions", "method": {"name": "vista"}}, "may belong to another client"),
        ({"name": "nothing"}, "unknown method .*nothing.*; there are air"),
        ({"num_crops": 65}, "at most 64"),
        ({"name": "random-crops", "method": {"name": "crop-blend", "num_crops": 65, "keep": 1}}, "at most 64"),
        ({"name": "composed", "methods": [{"name": "vcd"}] * 5}, "more than 4 methods"),
        ({"name": "composed", "methods": [{"name": "vcd"}] * 65}, "more than 64 values"),
    ],
)
def test_what_a_request_may_ask_of_a_method_is_limited(method: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method_from_request({"method": method}, CropBlend())


def test_nesting_is_limited() -> None:
    method: dict[str, Any] = {"name": "vaf"}
    for depth in range(1, 100):
        if depth <= MethodLimits().depth:
            assert isinstance(method_from_request({"method": method}), Method)
        else:
            with pytest.raises(ValueError, match="nested deeper than 3"):
                method_from_request({"method": method})
        method = {"name": "composed", "methods": [method, {"name": "vcd"}]}


def test_the_operators_own_method_is_not_limited() -> None:
    default = CropBlend(num_crops=100)
    assert method_from_request({"method": {"weight": 0.3}}, default) == CropBlend(num_crops=100, weight=0.3)

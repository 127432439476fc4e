"""Ways of running a model that could bypass a method: each shows the effect of the method or raises.

Compiled graphs, chunked prefill, offloaded weights, adapters, features encoded beforehand. test_laws.py has the laws of
plain eager mode.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import CompileConfig, GenerationConfig

from airvlm import AIRMemory, CropBlend
from airvlm.methods.base import Method
from airvlm.methods.vaf import VAF
from airvlm.runtime.session import MethodNotApplied
from airvlm.testing import small_models
from airvlm.testing.method_laws import turn_off
from tests.default_methods import METHODS

TOKENS = 4
GREEDY = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}

methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
# Compiling takes time for each layer: two layers, one of them acted on, and one method per kind of hook.
SHALLOW = {
    "feed-forward": AIRMemory(layers=(1, 2), num_prototypes=8, keep=2, num_crops=3, strength=0.5, threshold=0.0),
    "embeddings": CropBlend(num_crops=3, weight=0.5),
    "attention": VAF(enhance=0.8, suppress=0.4, layers=(1, 2)),
}


@pytest.fixture(params=["llava", "qwen2_5_vl"])
def own(request: pytest.FixtureRequest) -> Any:
    """A model that the test may alter, its processor, and a batch."""
    model, processor = small_models.build(request.param)
    return model, processor, small_models.build_inputs(processor, small_models.sample_rows())


def images() -> list[Any]:
    return [list(own) for _, own in small_models.sample_rows()]


def first_logits(model: Any, batch: Any, **options: Any) -> Tensor:
    """Logits of every generated token: (TOKENS, B, V)."""
    out = model.generate(**batch, **{**GREEDY, **options}, return_dict_in_generate=True, output_logits=True)
    return torch.stack(out.logits)


def acted(method: Method, model: Any, processor: Any, batch: Any, **options: Any) -> Tensor:
    with method(model, processor, images=images()):
        return first_logits(model, batch, **options)


@methods
def test_chunked_prefill_is_refused_before_any_token(method: Method) -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows())
    passes: list[int] = []
    handle = model.register_forward_pre_hook(lambda *_: passes.append(1))
    config = GenerationConfig(prefill_chunk_size=8, max_new_tokens=2)
    try:
        for options in ({"prefill_chunk_size": 8}, {"generation_config": config}):
            with pytest.raises(ValueError, match="prefill_chunk_size"):
                with method(model, processor, images=images()):
                    model.generate(**batch, **options)
    finally:
        handle.remove()
    assert not passes


@methods
def test_a_prompt_without_images_raises(method: Method) -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows()[1:2])
    with pytest.raises(MethodNotApplied, match="image token"):
        with method(model, processor, images=[[]]):
            model.generate(**batch, **GREEDY)


def compile_in_place(model: Any) -> Any:
    model.compile(backend="eager")
    return model


def compile_around(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def compile_forward(model: Any) -> Any:
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def compile_layers(model: Any) -> Any:
    for layer in model.get_decoder().layers:
        layer.compile(backend="eager")
    return model


def compile_the_layers_forward(model: Any) -> Any:
    for layer in model.get_decoder().layers:
        layer.forward = torch.compile(layer.forward, backend="eager")
    return model


def compile_a_function_around(model: Any) -> Any:
    return torch.compile(lambda **batch: model(**batch), backend="eager")


# Each way with kinds of hooks. The first three trace one and the same graph, the whole model, which takes ten times as
# long as a layer: each is tried with one kind, and so is each kind inside the whole graph.
COMPILED: dict[Callable[[Any], Any], tuple[str, ...]] = {
    compile_in_place: ("attention",),
    compile_around: ("embeddings",),
    compile_forward: ("feed-forward",),
    compile_layers: tuple(SHALLOW),
    compile_the_layers_forward: tuple(SHALLOW),
    compile_a_function_around: tuple(SHALLOW),
}


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """No graphs from before or left behind, and no trace log: pytest keeps its records, which is slow."""
    log = logging.getLogger("torch.__trace")
    handlers, log.handlers = log.handlers, []
    torch.compiler.reset()
    try:
        yield
    finally:
        torch.compiler.reset()
        log.handlers = handlers


@pytest.mark.parametrize("compiled", COMPILED, ids=lambda f: f.__name__)
@fresh_compiler()
@torch.no_grad()
def test_a_model_that_was_compiled_before_is_acted_on_or_raises(compiled: Callable[[Any], Any]) -> None:
    """One model, compiled once, and one method after the other: tracing is what takes time.

    What a block left behind would show in the next one, and after the last one in the vanilla model.
    """
    chosen = {kind: SHALLOW[kind] for kind in COMPILED[compiled]}
    model, processor = small_models.build("llava", num_hidden_layers=2)
    batch = dict(small_models.build_inputs(processor, small_models.sample_rows()[:1]))
    encoded = model.base_model.get_image_features(batch.pop("pixel_values"), return_dict=True)
    batch["mm_encoder_outputs"] = {"image": encoded}  # so that only the decoder is traced
    expected = {}
    for name, method in chosen.items():
        with method(model, processor, images=images()[:1]):
            expected[name] = model(**batch).logits
    fast = compiled(model)
    before = fast(**batch).logits  # traced without our hooks
    for name, method in chosen.items():
        try:
            with method(fast if isinstance(fast, nn.Module) else model, processor, images=images()[:1]):
                found = fast(**batch).logits
        except MethodNotApplied:
            assert compiled is compile_a_function_around, "only what is not in the model may be out of reach"
        else:
            torch.testing.assert_close(found, expected[name], rtol=1e-3, atol=2e-3)
    torch.testing.assert_close(fast(**batch).logits, before, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHALLOW)
@fresh_compiler()
def test_decode_steps_that_generate_compiled_are_acted_on(name: str) -> None:
    model, processor = small_models.build("llava", num_hidden_layers=2)
    batch = small_models.build_inputs(processor, small_models.sample_rows())
    config = CompileConfig(backend="eager", fullgraph=False)
    config._compile_all_devices = True  # as on a GPU
    options = {"cache_implementation": "static", "compile_config": config}
    expected = acted(SHALLOW[name], model, processor, batch)
    before = first_logits(model, batch, **options)
    assert "_compiled_call" in vars(model), "generate did not compile, so that this test would show nothing"
    found = acted(SHALLOW[name], model, processor, batch, **options)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)
    torch.testing.assert_close(first_logits(model, batch, **options), before, rtol=1e-4, atol=1e-4)


@methods
def test_offloaded_weights_change_nothing(own: Any, method: Method) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is an extra")
    model, processor, batch = own
    expected = acted(method, model, processor, batch)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert next(model.get_decoder().layers.parameters()).is_meta
    found = acted(method, model, processor, batch)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@methods
def test_an_adapted_model_is_acted_on(own: Any, method: Method) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is an extra")
    model, processor, batch = own
    plain = first_logits(model, batch)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", r=2, init_lora_weights=False))
    adapted.eval()
    vanilla = first_logits(adapted, batch)
    assert not torch.equal(vanilla, plain)
    found = acted(method, adapted, processor, batch)
    assert not torch.allclose(found, vanilla, atol=1e-3)
    assert torch.equal(first_logits(adapted, batch), vanilla)
    off = turn_off(method)
    assert off is not None and torch.equal(acted(off, adapted, processor, batch), vanilla)


@methods
def test_features_encoded_beforehand_change_nothing(own: Any, method: Method) -> None:
    if method.needs_pixels:
        pytest.skip("this method needs the pixels")
    model, processor, batch = own
    expected = acted(method, model, processor, batch)
    images_given = {k: v for k, v in batch.items() if k in ("pixel_values", "image_grid_thw")}
    rest = {k: v for k, v in batch.items() if k != "pixel_values"}
    with torch.no_grad():
        encoded = model.base_model.get_image_features(**images_given, return_dict=True)
    found = acted(method, model, processor, rest, mm_encoder_outputs={"image": encoded})
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

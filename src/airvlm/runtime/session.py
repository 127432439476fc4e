"""Session: a method active on one model, from entering the `with` block to the report of what it did.

Everything that is opened is undone when the block ends, also after an error: hooks, the replaced `generate`, compiled
graphs, and whatever the method itself opened. This is the only file that registers hooks on modules.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import LogitsProcessorList

from airvlm.models.parts import ModelParts, check_processor
from airvlm.report import Report
from airvlm.runtime.contexts import ActiveContexts
from airvlm.runtime.intervention import DISABLED, Context, ForwardPass, GenerateCall
from airvlm.runtime.locks import ModelInUseError
from airvlm.runtime.row_images import RowImages

if TYPE_CHECKING:
    from types import TracebackType

    from airvlm.methods.base import Method

__all__ = ["MethodInactiveWarning", "MethodNotApplied", "ModelInUseError", "Session"]

_FINGERPRINTS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


class MethodNotApplied(RuntimeError):
    """A method was asked for and could not act."""


class MethodInactiveWarning(UserWarning):
    """A method decided not to act; the report says why."""


class Session:
    """A method active on one model. Created by calling a method; use it as a context manager.

    Attributes:
        report: what the method did, over all calls so far.
        reports: one report per call.
        calls: number of `generate` calls seen.
    """

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        processor: Any,
        images: Any,
        parts: ModelParts | None = None,
        check_images: bool = True,
        prompts: Sequence[str] | None = None,
    ) -> None:
        self.method = method
        self.name = method.name
        self.parts = parts if parts is not None else ModelParts.of(model)
        self.model = self.parts.model  # without torch.compile's or PEFT's wrapper
        self._given = model  # with them
        if check_images:
            check_processor(processor, self.parts)
        row_images = RowImages(self.name, self.parts, processor, images, check=check_images)
        self.context = Context(self.parts, processor, row_images, None if prompts is None else tuple(prompts))
        self.intervention = method.intervention(self.context)
        layers = {
            "residual": self.intervention.residual_layers,
            "attention": self.intervention.attention_layers,
            "heads": self.intervention.head_layers,
            "ffn": self.intervention.ffn_layers,
        }
        self._sites = {site: tuple(own) for site, own in layers.items() if own}  # inside the decoder, and their layers
        self.calls = 0
        self._stack: ExitStack | None = None
        self._contexts: ActiveContexts | None = None
        self._finished: list[Report] = []  # reports of earlier calls
        self._report: Report | None = None  # of all calls, when the block has ended
        self._call: tuple[int, int] | None = None  # batch size and prompt length of the latest generate call
        self._padding: Tensor | None = None  # (batch_size, L) its attention mask
        self._call_passes = 0  # forward passes since it began
        self._pass: ForwardPass | None = None
        # what the hooks saw, over all calls
        self._passes = 0  # forward passes of the model
        self._image_passes = 0  # of these, passes with image tokens
        self._decoder_passes = 0  # passes in which the decoder's own hook ran
        self._logits_passes = 0  # passes in which the hook on the model's output ran
        self._site_passes: Counter[tuple[str, int]] = Counter()  # passes in which a layer's hook ran
        if method.calibrated_on is not None:
            _warn_if_calibrated_elsewhere(method, self.model)

    @property
    def images(self) -> Any:
        """The images of the next call, as given. Set them before a call with other images."""
        return self.context.images.given_images

    @images.setter
    def images(self, images: Any) -> None:
        self.context.images.set(images)

    # -- the block

    def __enter__(self) -> Self:
        if self._stack is not None:
            raise RuntimeError("this session is already open; call the method again for another block")
        self._contexts = ActiveContexts.enter(self.model, self)
        try:
            with ExitStack() as stack:  # closes what was opened so far if opening fails half-way
                reset_compiled_graphs(self._given, self.model, decode=self.intervention.acts_in_decode, stack=stack)
                self.intervention.open(stack)
                self._register_hooks(stack)
                self._stack = stack.pop_all()
        except BaseException:
            self._contexts.leave(self)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        assert stack is not None and self._contexts is not None, "a session is closed once"
        # first: a call that is still running must stop before the hooks are gone
        interrupted = self._contexts.leave(self)
        stack.close()
        self._pass = None
        if kind is not None:
            return  # the caller's own error comes first
        if interrupted is not None:
            raise ModelInUseError(interrupted)
        if not (self.calls or self._passes):
            return  # nothing ran inside the block
        report = self._report = self.report
        if not report.fired and not report.expected:
            warnings.warn(f"{self.name} did not act: {report.reason}", MethodInactiveWarning, stacklevel=2)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The model's generate under this session, from any thread: for streams that are read in another one."""
        if self._contexts is None or self._stack is None:
            raise ModelInUseError(f"the block of {self.name} is not open: call generate inside it")
        return self._contexts.generate((self,), args, kwargs, handed_over=True)

    @property
    def reports(self) -> list[Report]:
        """One report per call of generate, in order; plain forward passes after a call count with it.

        Raises MethodNotApplied if the method could not act.
        """
        problem = self._hook_problem() or self.intervention.problem()
        if problem is not None:
            raise MethodNotApplied(f"{self.name} could not act: {problem}.")
        return [*self._finished, self.intervention.report()] if self._call_passes else list(self._finished)

    @property
    def report(self) -> Report:
        """What the method did, over all calls of the block. Raises MethodNotApplied if it could not act."""
        return Report.merge(self.reports) if self._report is None else self._report

    # -- calls of generate

    def begin_call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """A generate call is about to run: its arguments, as the intervention changes them. Refuses unknown modes."""
        ids = check_token_ids(arguments.get("input_ids", arguments.get("inputs")), self.name)
        call = GenerateCall(arguments, self.model, batch_size=int(ids.shape[0]), beams=1)
        self._refuse_unsupported(call)
        call.beams = max(call.option("num_beams", 1), call.option("num_return_sequences", 1))
        if self._call_passes:
            self._finished.append(self.intervention.report())
            self._call_passes = 0
        if self.intervention.acts_in_decode:
            _disable_compile(call)
        self.intervention.start_call(call)
        extra = self.intervention.processors(call)
        if extra:
            given = call.arguments.get("logits_processor") or []
            call.arguments["logits_processor"] = LogitsProcessorList([*given, *extra])
        self.calls += 1
        self._call = (call.batch_size, int(call.input_ids.shape[1]))  # the intervention may have replaced the prompt
        self._padding = call.arguments.get("attention_mask")
        return call.arguments

    def _refuse_unsupported(self, call: GenerateCall) -> None:
        if call.option("prefill_chunk_size") is not None:
            raise ValueError(
                f"{self.name} does not support prefill_chunk_size: transformers drops the image from a chunked "
                "prefill. Leave prefill_chunk_size unset."
            )
        if call.option("cache_implementation") == "paged":
            raise ValueError(f"{self.name} does not support continuous batching: use another cache_implementation.")
        if call.arguments.get("assistant_model") is not None:
            raise ValueError(f"{self.name} does not support assisted decoding: leave assistant_model out.")
        beams, sampling = call.option("num_beams", 1) > 1, call.option("do_sample", False)
        modes = ("beams",) * beams + ("sampling",) * bool(sampling) or ("greedy",)
        for mode in modes:
            if mode not in self.method.decoding:
                known = ", ".join(self.method.decoding)
                raise ValueError(f"{self.name} does not support this decoding mode: {mode}. It supports {known}.")

    # -- proof that the hooks ran

    def _hook_problem(self) -> str | None:
        """Why the method could not act, judging by the hooks that ran."""
        if not self._passes:
            return (
                "no forward pass reached the hooks. Call the model (or its generate) inside the `with` block; a "
                "function compiled around the model before the block must be compiled again"
            )
        if self.method.needs_images and not self._image_passes:
            return (
                f"no input token is the image token {self.parts.image_token_id}. Pass input_ids that the model's "
                "processor made with an image (a cache from an earlier turn hides its image)"
            )
        if self.method.needs_images and not self._decoder_passes:
            return (
                f"{type(self.parts.decoder).__name__} ran without its hooks. If it is compiled or wrapped, undo that, "
                "or pass ModelParts(...) with the module that is really called"
            )
        for site, layers in self._sites.items():
            if any(self._site_passes[site, i] < self._decoder_passes for i in layers):
                return (
                    f"the {site} hook of some layers did not run in every pass. If a layer is compiled or wrapped, "
                    "undo that, or pass ModelParts(...) with the modules that are really called"
                )
        if self.intervention.changes_logits and self._logits_passes < self._passes:
            return "the hook on the model's output did not run in every pass. If the model is compiled, undo that"
        return None

    # -- hooks

    def _register_hooks(self, stack: ExitStack) -> None:
        """Hook token ids at the top, embeddings at the decoder, the intervention's layers, and the logits.

        What the hooks call breaks a graph that is being compiled, so that session state is not baked into it. It is
        marked here and not by decorators: torch's compiler takes a second to import before there is a model.
        """
        start_pass, on_embeds = torch.compiler.disable(self._start_pass), torch.compiler.disable(self._on_embeds)
        on_logits, on_site = torch.compiler.disable(self._on_logits), torch.compiler.disable(self._on_site)

        def model_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            ids = kwargs.get("input_ids", args[0] if args else None)
            if not self._skips(ids):
                start_pass(ids, kwargs)

        def decoder_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            embeds = kwargs.get("inputs_embeds")
            if embeds is None or self._skips(embeds, 1):
                return None
            new = on_embeds(embeds)
            return None if new is None else (args, {**kwargs, "inputs_embeds": new})

        def model_output(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            if not self._skips(kwargs.get("input_ids", args[0] if args else None)):
                on_logits(out)

        model, parts = self.parts.model, self.parts
        stack.callback(model.register_forward_pre_hook(model_input, with_kwargs=True).remove)
        stack.callback(parts.decoder.register_forward_pre_hook(decoder_input, with_kwargs=True).remove)
        if self.intervention.changes_logits:
            stack.callback(model.register_forward_hook(model_output, with_kwargs=True).remove)
        for site, layers in self._sites.items():
            for i in layers:
                self._hook_layer(site, i, on_site, stack)

    def _hook_layer(self, site: str, i: int, on_site: Callable[..., Tensor | None], stack: ExitStack) -> None:
        """Hook one site of one layer; `on_site` is `_on_site`."""

        def changed_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            h = args[0] if args else kwargs["hidden_states"]
            new = None if self._skips(h, -2) else on_site(site, i, h)
            if new is None:
                return None
            return ((new, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": new})

        def changed_output(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
            x = args[0] if args else kwargs["hidden_states"]
            if self._skips(x, -2):
                return None
            y = out[0] if isinstance(out, tuple) else out  # attention adds its weights, experts their router's logits
            new = on_site(site, i, y, x)
            if new is None:
                return None
            return (new, *out[1:]) if isinstance(out, tuple) else new

        if site == "residual":  # read where the next module takes it: a layer's own output is a tuple in some versions
            target = self.parts.after_layer(i)
            stack.callback(target.register_forward_pre_hook(changed_input, with_kwargs=True).remove)
        elif site == "heads":
            target = self.parts.output_projections[i]
            stack.callback(target.register_forward_pre_hook(changed_input, with_kwargs=True).remove)
        else:
            target = self.parts.ffns[i] if site == "ffn" else self.parts.attentions[i]
            stack.callback(target.register_forward_hook(changed_output, with_kwargs=True).remove)

    def _skips(self, x: Any, tokens: int = -1) -> bool:
        """Whether a hook has nothing to do: another stream, or a decode step being compiled that stays unchanged.

        `x` is what the hooked module reads, and `tokens` its dimension of token positions.
        """
        if torch.compiler.is_compiling():
            return not self.intervention.acts_in_decode and isinstance(x, Tensor) and x.shape[tokens] == 1
        return DISABLED.get()

    def _start_pass(self, ids: Any, kwargs: dict[str, Any]) -> None:
        assert self._contexts is not None
        if threading.current_thread() is not (self._contexts.calling or self._contexts.owner):
            raise ModelInUseError(self._contexts.describe_conflict())
        if self._contexts.calling is None:  # a plain pass, maybe after a call
            self._call = self._padding = None
        ids = check_token_ids(ids, self.name)
        B, L = ids.shape
        is_decode = L == 1 and self._call_passes > 0
        visual = None if is_decode else ids == self.parts.image_token_id  # (B, L)
        on_cpu = None if visual is None else visual.cpu()  # the only transfer of a pass, in prefill only
        if on_cpu is None or not bool(on_cpu.any()):
            visual = on_cpu = None
        past = kwargs.get("past_key_values")
        is_prefill = not is_decode and (past is None or not bool(past.get_seq_length() > 0))
        rows, prompt = self._call or (B, L)
        beams = B // rows if B % rows == 0 else 1
        mask = kwargs.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.dim() != 2:
            mask = None
            if is_prefill and self._padding is not None and len(self._padding) * beams == B:
                # for a static cache generate makes masks of its own: the caller's says what is padding
                mask = nn.functional.pad(self._padding.repeat_interleave(beams, 0), (0, L - prompt), value=1)
        self._pass = ForwardPass(
            visual=visual,
            attention_mask=mask,
            length=L,
            batch_size=rows if B % rows == 0 else B,
            beams=beams,
            is_prefill=is_prefill,
            is_decode=is_decode,
            first_generated=min(prompt, L) - 1 if is_prefill else 0,
            step=self._call_passes if self._call else 0,
            inputs=kwargs,
            generating=self._call is not None,
            visual_on_cpu=on_cpu,
        )
        self._passes += 1
        self._call_passes += 1
        self._image_passes += visual is not None
        self.intervention.start_pass(self._pass)

    def _on_embeds(self, embeds: Tensor) -> Tensor | None:
        fp = self._pass
        if fp is None or embeds.shape[1] != fp.length:
            return None  # the decoder was called on its own, outside the model
        self._decoder_passes += 1
        if fp.is_decode and not self.intervention.acts_in_decode:
            return None
        return self.intervention.embeds(fp, embeds)

    def _on_site(self, site: str, i: int, y: Tensor, x: Tensor | None = None) -> Tensor | None:
        """The value y at a site of layer i, (B, L, d), and for outputs the module's input x."""
        fp = self._pass
        if fp is None:
            return None
        self._site_passes[site, i] += 1
        if fp.is_decode and not self.intervention.acts_in_decode:
            return None
        shape = y.shape
        if y.dim() == 2:  # a mixture of experts that sees all tokens as one sequence: (B * L, d)
            y = y.view(-1, fp.length, y.shape[-1])
            x = None if x is None else x.view(-1, fp.length, x.shape[-1])
        new: Tensor | None
        if site == "ffn":
            assert x is not None
            new = self.intervention.ffn(fp, i, x, y)
        elif site == "attention":
            new = self.intervention.attention(fp, i, y)
        elif site == "heads":
            new = self.intervention.heads(fp, i, y.unflatten(-1, (self.parts.num_heads(i), -1)))
        else:
            new = self.intervention.residual(fp, i, y)
        return None if new is None else new.reshape(shape)

    def _on_logits(self, out: Any) -> None:
        if self._pass is None:
            return
        if getattr(out, "logits", None) is None:
            raise ValueError(f"{self.name} changes the model's logits: call the model with return_dict=True.")
        self._logits_passes += 1
        new = self.intervention.logits(self._pass, out.logits)
        if new is not None:
            out.logits = new


def check_token_ids(ids: Any, name: str) -> Tensor:
    """input_ids of shape (rows, tokens), or an error that says why they are needed."""
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        raise ValueError(
            f"{name} needs input_ids of shape (rows, tokens): inputs_embeds do not show which tokens are the image."
        )
    return ids


def _disable_compile(call: GenerateCall) -> None:
    """Keep generate from compiling decode steps by itself, as it does for some devices and caches."""
    config = call.arguments.get("generation_config")
    if config is None:
        call.arguments["disable_compile"] = True
    else:
        call.arguments["generation_config"] = type(config).from_dict({**config.to_dict(), "disable_compile": True})


def reset_compiled_graphs(given: nn.Module, model: nn.Module, *, decode: bool, stack: ExitStack) -> None:
    """Drop compiled graphs, which do not see hooks that were added after they were traced.

    Args:
        given: the model as the caller holds it.
        model: the model as transformers calls it.
        decode: decode steps matter too, which generate may have compiled by itself.
        stack: resets graphs that were traced with the hooks when it closes. A reset is process-wide in torch.
    """
    if has_compiled_modules(given):
        torch.compiler.reset()
        stack.callback(torch.compiler.reset)
    elif decode and "_compiled_call" in model.__dict__:
        del model._compiled_call  # setting it to None would crash get_compiled_call, which tests hasattr
        torch.compiler.reset()


def has_compiled_modules(model: nn.Module) -> bool:
    """Whether any module runs a graph that may have been traced before.

    All are looked at each time: a list kept from the last time costs as much to check as the walk itself.
    """
    waiting = [model]
    while waiting:
        own = waiting.pop().__dict__
        parts = own["_modules"]
        if own.get("_compiled_call_impl") is not None or "_orig_mod" in parts:
            return True
        if "forward" in own and hasattr(own["forward"], "_torchdynamo_orig_callable"):  # = torch.compile(forward)
            return True
        if parts:
            waiting += [part for part in parts.values() if part is not None]
    return False


def _warn_if_calibrated_elsewhere(method: Method, model: nn.Module) -> None:
    """Options that were found for one model need not suit another."""
    if model not in _FINGERPRINTS:
        from airvlm.models.loading import fingerprint  # hashes the weights: only when needed

        _FINGERPRINTS[model] = fingerprint(model)
    if _FINGERPRINTS[model] != method.calibrated_on:
        warnings.warn(
            f"{method.label} was calibrated on a model with fingerprint {method.calibrated_on}; this model has "
            f"{_FINGERPRINTS[model]}. Calibrate it again",
            UserWarning,
            stacklevel=5,
        )

"""A pretend accelerator: tensors whose numbers live on the CPU, but which say that they live on another device.

It keeps two rules of a real one. An operation between it and a tensor of another device raises (0-dimensional CPU
tensors and CPU indices excepted, as on CUDA), and whatever a real one would wait for (item, tolist, nonzero, a copy to
the CPU, boolean indexing) is a read-back, counted with the line that caused it. A copy of the CPU's numbers to it is an
upload, which waits as well. A copy into pinned memory that asks for no waiting is no read-back, and its numbers arrive
LAG operations later. There are two of them, `pretend:0` and `pretend:1`.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

FIRST, SECOND = "pretend:0", "pretend:1"
LAG = 200  # operations that a device is behind its host
SOURCE = str(Path(__file__).parents[2] / "src")
aten = torch.ops.aten
# What waits for the device, whatever its arguments.
WAITING = {
    aten._local_scalar_dense: "item",
    aten.nonzero: "nonzero",
    aten.masked_select: "masked_select",
    aten.equal: "equal",
    aten._unique2: "unique",
    aten.unique_dim: "unique",
    aten.unique_consecutive: "unique_consecutive",
    aten.repeat_interleave: "repeat_interleave",
    aten.linalg_cholesky: "linalg.cholesky",
    aten._linalg_svd: "linalg.svd",
    aten.bincount: "bincount",
}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._unsafe_index, aten._index_put_impl_}
COPIES = {aten._to_copy, aten.copy_, aten.copy, aten._copy_from}


@dataclass(frozen=True)
class ReadBack:
    """Something that was waited for, and the line that asked for it."""

    kind: str
    line: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.line}"


@dataclass
class Log:
    """What happened on the devices."""

    read_backs: list[ReadBack] = field(default_factory=list)
    uploads: list[ReadBack] = field(default_factory=list)
    # dtype, elements and line of every new tensor of at least `watch` elements
    allocated: list[tuple[torch.dtype, int, str]] = field(default_factory=list)
    watch: int | None = None
    launches: int = 0  # operations that a device would run; views are none
    # memory that copies may arrive in by themselves; None where none can be had
    pinned: list[Tensor] | None = field(default_factory=list)
    # copies on their way there, with the operation after which they arrive
    coming: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)

    def arrive(self) -> None:
        """Let the copies arrive whose time has come."""
        while self.coming and self.coming[0][0] <= self.launches:
            _, there, numbers = self.coming.pop(0)
            there.copy_(numbers)

    def clear(self) -> None:
        self.read_backs.clear()
        self.uploads.clear()
        self.allocated.clear()
        self.coming.clear()
        self.launches = 0


class Pretend(Tensor):
    """Says it is on `device`; `held` is where its numbers are."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> "Pretend":
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        new = Tensor._make_wrapper_subclass(cls, held.shape, device=device, **layout)
        new.held = held
        return new

    def __repr__(self, **_: Any) -> str:
        return f"Pretend({self.held}, device={self.device})"

    def __deepcopy__(self, memo: Any) -> "Pretend":
        return Pretend(self.held.clone(), self.device)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(_LOGS[-1] if _LOGS else Log(), func, args, kwargs or {})


_LOGS: list[Log] = []


def _leaves(args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """What an operation is given: values, and lists of them. torch's own walk through trees takes ten times as long."""
    flat: list[Any] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, list | tuple):
            flat.extend(value)
        else:
            flat.append(value)
    return flat


def _held(value: Any) -> Any:
    if isinstance(value, Pretend):
        return value.held
    return type(value)(map(_held, value)) if type(value) in (list, tuple) else value


def _run(log: Log, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation: check where its tensors are, run it on the CPU, and put what comes out where it belongs."""
    given = [t for t in _leaves(args, kwargs) if isinstance(t, Tensor)]
    wanted = kwargs.get("device")
    packet = func.overloadpacket
    devices = {t.device for t in given if isinstance(t, Pretend)}
    if packet in COPIES:
        target = args[0].device if packet in (aten.copy_, aten.copy) else torch.device(wanted or args[0].device)
        source = args[1] if packet in (aten.copy_, aten.copy) else args[0]
        if isinstance(source, Pretend) and target.type == "cpu":
            if packet is aten.copy_ and args[2:3] == (True,) and any(args[0] is own for own in log.pinned or []):
                log.coming.append((log.launches + LAG, args[0], source.held.clone()))
                return args[0]
            log.read_backs.append(ReadBack("copy to the CPU", _line()))
        elif target.type == "pretend" and not isinstance(source, Pretend) and source.dim():
            log.uploads.append(ReadBack("copy from the CPU", _line()))
    else:
        if packet in INDEXING:
            _check_indexing(log, packet, args)
        elif packet in WAITING and devices and kwargs.get("output_size") is None:
            log.read_backs.append(ReadBack(WAITING[packet], _line()))
        met = args[:1] if packet in INDEXING else given
        strangers = {t.device for t in met if isinstance(t, Tensor) and (t.dim() or isinstance(t, Pretend))}
        if len(strangers) > 1:
            raise RuntimeError(f"{func}: tensors on {' and '.join(sorted(map(str, strangers)))} ({_line()})")
        target = torch.device(wanted) if wanted is not None else next(iter(devices), torch.device("cpu"))
    log.launches += bool(devices) and not func.is_view
    log.arrive()
    if wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain_args, plain = _held(tuple(args)), {name: _held(value) for name, value in kwargs.items()}
    if packet is aten.histc and not plain_args[0].is_floating_point():  # counted by accelerators, not by the CPU
        out = func(plain_args[0].float(), *plain_args[1:], **plain).to(plain_args[0].dtype)
    else:
        out = func(*plain_args, **plain)
    if target.type != "pretend":
        return out
    if func._schema.is_mutable:  # in place: the caller's own tensor
        return kwargs.get("out", args[0]) if isinstance(out, Tensor) else out
    inputs = {t.held.untyped_storage()._cdata for t in given if isinstance(t, Pretend)}

    def wrap(t: Tensor) -> Tensor:
        if log.watch is not None and t.numel() >= log.watch and t.untyped_storage()._cdata not in inputs:
            log.allocated.append((t.dtype, t.numel(), _line()))
        return Pretend(t, _numbered(target))

    return wrap(out) if isinstance(out, Tensor) else tree_map_only(Tensor, wrap, out)


def _check_indexing(log: Log, packet: Any, args: Any) -> None:
    if isinstance(args[0], Pretend) and any(isinstance(i, Tensor) and not isinstance(i, Pretend) for i in args[1]):
        log.uploads.append(ReadBack("indices on the CPU", _line()))
    mask = any(isinstance(i, Pretend) and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    # x[mask] = one number is a masked_fill, which waits for nothing
    if mask and not (packet not in (aten.index, aten._unsafe_index) and args[2].numel() == 1):
        log.read_backs.append(ReadBack("boolean indexing", _line()))


def _numbered(device: torch.device) -> torch.device:
    return torch.device(FIRST) if device.index is None else device


def _line() -> str:
    """The innermost line that led here, torch and this file aside, and where it is another's, airvlm's before it."""
    frame: Any = sys._getframe(1)
    inner = ""
    while frame is not None:
        name = frame.f_code.co_filename
        line = f"{'/'.join(Path(name).parts[-3:])}:{frame.f_lineno} {frame.f_code.co_name}"
        if name.startswith(SOURCE):
            return f"{inner} < {line}" if inner else line
        if not inner and name != __file__ and "/torch/" not in name:
            inner = line
        frame = frame.f_back
    return inner


class _Factories(TorchDispatchMode):
    """Tensors that are made on, or sent to, a pretend device."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for x in _leaves(args, kwargs):
            if isinstance(x, Pretend) or (isinstance(x, torch.device) and x.type == "pretend"):
                return _run(self.log, func, args, kwargs)
        return func(*args, **kwargs)


def _plain(data: Any) -> Any:
    """A literal without tensors: each one inside is read back, as on a real device."""
    if isinstance(data, list | tuple):
        return [_plain(one) for one in data]
    return data.item() if isinstance(data, Pretend) else data


class _Literals(TorchFunctionMode):
    """What reaches memory without an operation: torch.tensor(..., device=), tolist, numpy, pinning."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and not (args and isinstance(args[0], Tensor)):
            device = torch.device(kwargs.pop("device", None) or "cpu")
            made = func(*map(_plain, args[:1]), *args[1:], **kwargs)
            if device.type == "pretend":
                self.log.uploads.append(ReadBack("copy from the CPU", _line()))
            return Pretend(made, _numbered(device)) if device.type == "pretend" else made.to(device)
        if func is torch.zeros and kwargs.pop("pin_memory", False):
            if self.log.pinned is None:
                raise RuntimeError("this device pins no memory")
            self.log.pinned.append(func(*args, **kwargs))
            return self.log.pinned[-1]
        if func in (Tensor.tolist, Tensor.numpy) and isinstance(args[0], Pretend):
            if func is Tensor.numpy:
                raise TypeError(f"a tensor on {args[0].device} has no numpy(): copy it to the CPU first")
            self.log.read_backs.append(ReadBack("tolist", _line()))
            return args[0].held.tolist()
        return func(*args, **kwargs)


class _Module(backend_registration._DummyBackendModule):
    def device_count(self) -> int:
        return 2


_READY: list[bool] = []


@contextmanager
def accelerator(pins: bool = True) -> Iterator[Log]:
    """Inside, `pretend:0` and `pretend:1` exist; the log tells what was read back from them.

    `pins`: whether memory of the host can be pinned for them.
    """
    if not _READY:
        backend_registration._setup_privateuseone_for_python_backend("pretend", backend_module=_Module())
        _READY.append(True)
    log = Log(pinned=[] if pins else None)
    with ExitStack() as stack:
        _LOGS.append(log)
        stack.callback(_LOGS.pop)
        stack.enter_context(_Factories(log))
        stack.enter_context(_Literals(log))
        yield log


def moved(model: Any, where: Any = FIRST) -> Any:
    """A copy of the model there; `where` may be a function from a parameter's name to its device."""
    model = deepcopy(model)
    place = where if callable(where) else lambda name: where
    seen: dict[int, Tensor] = {}
    for prefix, module in model.named_modules():
        for own in (module._parameters, module._buffers):
            for name, tensor in own.items():
                if tensor is None:
                    continue
                if id(tensor) not in seen:
                    new = Pretend(tensor.detach(), torch.device(place(f"{prefix}.{name}")))
                    seen[id(tensor)] = nn.Parameter(new, False) if own is module._parameters else new
                own[name] = seen[id(tensor)]
    return model


def on(batch: Any, device: str = FIRST) -> dict[str, Any]:
    """A batch of inputs, its tensors on the device."""
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}


def split(model: Any, layers: Any, head: list[nn.Module]) -> Any:
    """A copy over both devices as `device_map` splits it: the second half of `layers` and `head` on the second.

    `layers` and `head` are found in the copy by their names in the model.
    """
    names = {id(module): name for name, module in model.named_modules()}
    far = [names[id(module)] for module in [*layers[len(layers) // 2 :], *head]]
    copy = moved(model, lambda name: SECOND if any(name.startswith(f"{part}.") for part in far) else FIRST)
    for name in far:
        copy.get_submodule(name).register_forward_pre_hook(_to(SECOND), with_kwargs=True)
    copy.register_forward_hook(lambda module, args, out: tree_map_only(Tensor, _home, out))
    return copy


def _to(device: str) -> Any:
    def pre(module: Any, args: Any, kwargs: Any) -> Any:
        return tree_map_only(Tensor, lambda t: t.to(device), (args, kwargs))

    return pre


def _home(t: Tensor) -> Tensor:
    return t.to(FIRST) if t.device == torch.device(SECOND) else t

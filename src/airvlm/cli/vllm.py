"""`airvlm vllm serve`: vLLM's OpenAI-compatible server with AIR in front of the decoder."""

import json
import os
import sys
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import typer

from airvlm.cli import asking
from airvlm.cli.console import err
from airvlm.cli.options import Choosing

__all__ = ["command_line", "vllm"]


def vllm(
    context: typer.Context,
    action: Annotated[Literal["serve"], typer.Argument(help="serve: answer requests over HTTP.")],
    model: Annotated[str, typer.Argument(help="A folder or a name on the model hub.")],
    by: Choosing = Choosing(),
) -> None:
    """Serve a model by vLLM with AIR: LLaVA-1.5, LLaVA-NeXT, Qwen2-VL or Qwen2.5-VL.

    Every other option is vLLM's own and is handed on. A request chooses for itself by
    mm_processor_kwargs={"airvlm": {"weight": 0.2}}, or false for the model as it is, where vLLM's own option
    --trust-request-mm-kwargs allows requests to choose.

    [bold]Examples[/bold]

    airvlm vllm serve llava-hf/llava-1.5-7b-hf --port 8000 --max-model-len 4096

    airvlm vllm serve Qwen/Qwen2.5-VL-7B-Instruct --method air --set weight=0.15
    """
    method = asking.chosen_method(by.method, by.settings)
    arguments = command_line(model, False if method is None else method, context.args)
    if find_spec("vllm") is None:
        raise ImportError("vLLM is not installed here: pip install vllm, in an environment of its own")
    err().print(" ".join(arguments), soft_wrap=True, markup=False, style="dim")
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *arguments])


# its unknown options are vLLM's
vllm.context_settings = {"allow_extra_args": True, "ignore_unknown_options": True}  # type: ignore[attr-defined]


def command_line(model: str, method: Any, rest: list[str]) -> list[str]:
    """The interpreter's arguments that start the server."""
    from transformers import PreTrainedConfig

    from airvlm.integrations.vllm import overrides

    config: dict[str, Any] = PreTrainedConfig.get_config_dict(model)[0]
    own = overrides(config.get("architectures") or [], method)
    given, rest = _taken(rest, "--hf-overrides")
    if given is not None:
        own = {**json.loads(given), **own}
    # the module rather than the `vllm` script: builds under another name lack the metadata that the script reads
    module = "vllm.entrypoints.openai.api_server"
    return ["-m", module, "--model", model, "--hf-overrides", json.dumps(own), *rest]


def _taken(arguments: list[str], name: str) -> tuple[str | None, list[str]]:
    """An option's value, and the arguments without it."""
    for i, argument in enumerate(arguments):
        if argument == name:
            if i + 1 == len(arguments):
                raise ValueError(f"{name} needs a value")
            return arguments[i + 1], arguments[:i] + arguments[i + 2 :]
        if argument.startswith(name + "="):
            return argument.partition("=")[2], arguments[:i] + arguments[i + 1 :]
    return None, arguments

"""`airvlm serve`: a model under a method as an OpenAI-compatible server, inside vLLM, or as a web page."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from airvlm.cli import common
from airvlm.cli.console import Failure, err
from airvlm.cli.options import MethodOptions, ModelOptions, option

__all__ = ["ask_options", "serve", "vllm_arguments"]

KEY_HELP = "Clients must send this key; visitors of the page log in as airvlm with it."


def serve(
    engine_options: Annotated[
        list[str] | None, typer.Argument(metavar="VLLM_OPTIONS", help="After --: options of vLLM's own server.")
    ] = None,
    engine: Annotated[
        Literal["airvlm", "vllm"], option("--engine", "NAME", "What runs the model: airvlm (this package) or vllm.")
    ] = "airvlm",
    page: Annotated[bool, option("--page", None, "Serve a web page that compares methods, not an API.")] = False,
    host: Annotated[str, option("--host", "ADDRESS", "The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None, option("--port", "N", "0 takes a free one.", min=0, max=65535, show_default="8000, page: 7860")
    ] = None,
    allow_host: Annotated[
        list[str] | None, option("--allow-host", "NAME", "Another name by which clients reach it. Repeatable.")
    ] = None,
    api_key: Annotated[str | None, option("--api-key", "KEY", KEY_HELP, envvar="AIRVLM_API_KEY")] = None,
    allow_urls: Annotated[bool, option("--allow-urls", None, "Download images from public http(s) addresses.")] = False,
    max_tokens: Annotated[int, option("--max-tokens", "N", "New tokens per answer.", min=1)] = 1024,
    max_batch: Annotated[int, option("--max-batch", "N", "Answers that run together.", min=1)] = 16,
    max_queue: Annotated[int, option("--max-queue", "N", "Waiting answers; more are refused (429).", min=1)] = 256,
    max_images: Annotated[int, option("--max-images", "N", "Images per request.", min=0)] = 8,
    max_body: Annotated[int, option("--max-body", "MB", "Megabytes per request.", min=1)] = 32,
    by: MethodOptions = MethodOptions(),
    model: ModelOptions = ModelOptions(),
) -> None:
    """Serve a model under a method: OpenAI API, vLLM, or a web page.

    Every answer is generated under --method unless its request says otherwise, by "model": "NAME+vaf", by
    extra_body={"airvlm": {"method": {"name": "crop-blend", "weight": 0.2}}} or by extra_body={"airvlm": False}. What
    the method did comes back beside the choices, as "airvlm". Ctrl-C stops the server.

    \b
    Examples (each serves until it is stopped):
      airvlm serve
      airvlm serve --page
    With a large model, for other machines (needs the network):
      airvlm serve -m llava-hf/llava-1.5-7b-hf --host 0.0.0.0 --api-key "$KEY"
    With vLLM (needs vllm); what follows -- goes to vLLM:
      airvlm serve --engine vllm -m Qwen/Qwen2-VL-7B-Instruct -- --seed 1
    """
    if engine_options and engine != "vllm":
        raise Failure(f"{' '.join(engine_options)}: options after -- are for --engine vllm")
    if page and engine == "vllm":
        raise Failure("--page uses the model directly; leave out --engine vllm")
    if find_spec({"airvlm": "gradio" if page else "fastapi", "vllm": "vllm"}[engine]) is None:
        extra = "vllm" if engine == "vllm" else "'airvlm[web]'" if page else "'airvlm[serve]'"
        raise Failure(
            f"{'vLLM' if engine == 'vllm' else 'the page' if page else 'the server'} is not installed: "
            f"pip install {extra}"
        )
    method = common.choose_method(by.method, by.settings)
    if engine == "vllm":
        chosen = False if method is None else method
        line = vllm_arguments(model.model, chosen, engine_options or [], host=host, port=port or 8000, api_key=api_key)
        err().print(" ".join(line), soft_wrap=True, markup=False, style="dim")
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *line])
    from airvlm.serve.guard import is_loopback

    if not api_key and not is_loopback(host):
        raise Failure(f"--host {host} can be reached from other machines: add --api-key (or AIRVLM_API_KEY)")
    vlm = common.load_model(model)
    if page:
        from airvlm.serve.web import run_page

        run_page(
            vlm,
            options=ask_options(dataclasses.replace(model, model=model.model or vlm.name), max_tokens, host),
            host=host,
            port=7860 if port is None else port,
            password=api_key,
            allow_hosts=tuple(allow_host or ()),
            max_tokens=max_tokens,
        )
        return
    from airvlm.runtime.session import MethodInactiveWarning
    from airvlm.serve.app import make_app
    from airvlm.serve.limits import Limits
    from airvlm.serve.run import run_server

    limits = dataclasses.replace(
        Limits(), body=max_body * 2**20, images=max_images, tokens=max_tokens, queue=max_queue, batch=max_batch
    )
    hosts = tuple(allow_host or ())
    app = make_app(
        vlm, method=method, api_key=api_key, allow_urls=allow_urls, host=host, allow_hosts=hosts, limits=limits
    )
    with suppress(OSError):  # a full log must not stop a server
        err().print(f"{vlm.name}, {'vanilla' if method is None else method.label}", markup=False)
    # every answer's report says so; one line of the log for each would hide the others
    warnings.simplefilter("ignore", MethodInactiveWarning)
    port = 8000 if port is None else port
    run_server(app, host=host, port=port, limits=limits, log_level=os.environ.get("AIRVLM_LOG", "info"))


def ask_options(model: ModelOptions, max_tokens: int, host: str) -> list[str] | None:
    """The options with which `airvlm ask` answers as the page does; None if they name folders of another machine."""
    from airvlm.models.loading import EMBEDDED
    from airvlm.serve.guard import is_loopback

    words = []
    for field in dataclasses.fields(model):
        value = getattr(model, field.name)
        if value == field.default:
            continue
        if field.name in ("model", "adapter") and value not in EMBEDDED and Path(value).is_dir():
            if not is_loopback(host):
                return None
            value = Path(value).resolve()  # the command is pasted in another folder
        words += [f"--{field.name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return [*words, "--max-new-tokens", str(max_tokens)]


# -- vLLM


def vllm_arguments(
    model: str | None, method: Any, rest: list[str], *, host: str, port: int, api_key: str | None
) -> list[str]:
    """The arguments of Python that start vLLM's server.

    Args:
        model: a folder or a name on the hub.
        method: a method, or False for none.
        rest: options of vLLM's own.
        host: the address to listen on.
        port: the port.
        api_key: clients must send it.
    """
    from transformers import PreTrainedConfig

    from airvlm.integrations.vllm import overrides

    if model is None:
        raise Failure("--engine vllm serves a model of a family that vLLM knows: add --model NAME")
    config: dict[str, Any] = PreTrainedConfig.get_config_dict(model)[0]
    own = overrides(config.get("architectures") or [], method)
    given, rest = _take_option(rest, "--hf-overrides")
    if given is not None:
        own = {**json.loads(given), **own}
    # the module rather than the `vllm` script: builds under another name lack the metadata that the script reads
    line = ["-m", "vllm.entrypoints.openai.api_server", "--model", model, "--hf-overrides", json.dumps(own)]
    line += ["--host", host, "--port", str(port), *(["--api-key", api_key] if api_key else [])]
    return [*line, *rest]


def _take_option(arguments: list[str], name: str) -> tuple[str | None, list[str]]:
    """An option's value, and the arguments without it."""
    for i, argument in enumerate(arguments):
        if argument == name:
            if i + 1 == len(arguments):
                raise Failure(f"{name} needs a value")
            return arguments[i + 1], arguments[:i] + arguments[i + 2 :]
        if argument.startswith(name + "="):
            return argument.partition("=")[2], arguments[:i] + arguments[i + 1 :]
    return None, arguments

"""`airvlm serve`: an OpenAI-compatible server over one model."""

import ipaddress
import os
import warnings
from typing import Annotated

import typer

from airvlm.cli.console import Failure, err
from airvlm.cli.options import Choosing, Loading

__all__ = ["is_loopback", "serve"]


def serve(
    by: Choosing = Choosing(),
    how: Loading = Loading(),
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="AIRVLM_API_KEY", help="What clients must send as their key."),
    ] = None,
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Answers that run together.")] = 16,
    max_queue: Annotated[int, typer.Option("--max-queue", min=1, help="Answers that may wait; then 429.")] = 256,
    max_images: Annotated[int, typer.Option("--max-images", min=0, help="Images of one request.")] = 8,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="New tokens of one answer.")] = 1024,
    max_body: Annotated[int, typer.Option("--max-body", min=1, help="Megabytes of one request.")] = 32,
    allow_urls: Annotated[
        bool, typer.Option("--allow-urls", help="Fetch images from public http(s) addresses.")
    ] = False,
) -> None:
    """Serve a model to OpenAI clients, every answer under a method.

    A request may choose its own: "model": "NAME+vaf", or extra_body={"airvlm": {"method": "air", "weight": 0.2}}, or
    extra_body={"airvlm": False}. What the method did comes back beside the choices, as "airvlm".

    [bold]Examples[/bold]

    airvlm serve

    airvlm serve --model llava-hf/llava-1.5-7b-hf --method air --api-key "$KEY" --host 0.0.0.0
    """
    if not api_key and not is_loopback(host):
        raise Failure(f"--host {host} can be reached from elsewhere: give --api-key (or AIRVLM_API_KEY) with it")
    try:
        import uvicorn

        from airvlm.serve.app import make_app
    except ImportError as error:
        raise Failure(f"the server needs its extra: pip install 'airvlm[serve]' ({error})") from error
    from airvlm.cli import asking
    from airvlm.runtime.session import MethodInactiveWarning
    from airvlm.serve.limits import Limits

    method = asking.chosen_method(by.method, by.settings)
    vlm = asking.load(how.model, how.adapter, how.dtype)
    limits = Limits(body=max_body * 2**20, images=max_images, tokens=max_tokens, queue=max_queue, batch=max_batch)
    app = make_app(vlm, method=method, api_key=api_key or None, allow_urls=allow_urls, limits=limits)
    err().print(f"{vlm.name}, method {'vanilla' if method is None else method.name}", markup=False)
    # every answer's report says so; a line of the log for each would drown the others
    warnings.simplefilter("ignore", MethodInactiveWarning)
    # a stop waits for the answers that were accepted
    uvicorn.run(app, host=host, port=port, log_level=os.environ.get("AIRVLM_LOG", "info"), access_log=False)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

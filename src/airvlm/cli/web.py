"""`airvlm web`: the page in the browser."""

from typing import Annotated

import typer

from airvlm.cli.console import Failure
from airvlm.cli.options import Loading

__all__ = ["web"]


def web(
    how: Loading = Loading(),
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port.")] = 7860,
    password: Annotated[
        str | None,
        typer.Option("--password", envvar="AIRVLM_PASSWORD", help="Visitors log in as airvlm with this password."),
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="New tokens of one answer.")] = 96,
) -> None:
    """Try methods in the browser: drop an image, ask, and see what each method changes.

    [bold]Examples[/bold]

    airvlm web

    airvlm web --model llava-hf/llava-1.5-7b-hf --port 8080
    """
    from airvlm.cli.serve import is_loopback

    if not password and not is_loopback(host):
        raise Failure(f"--host {host} can be reached from elsewhere: give --password (or AIRVLM_PASSWORD) with it")
    try:
        from airvlm.serve.web import CSS, make_page
    except ImportError as error:
        raise Failure(f"the page needs its extra: pip install 'airvlm[web]' ({error})") from error
    from airvlm import tiny
    from airvlm.cli import asking

    page = make_page(asking.load(how.model, how.adapter, how.dtype), max_tokens=max_tokens)
    page.queue(max_size=64).launch(
        server_name=host,
        server_port=port,
        auth=("airvlm", password) if password else None,
        share=False,
        max_file_size="32mb",
        allowed_paths=[str(tiny.scenes("test")[0].path.parent)],  # gradio shows no file of a folder it was not told
        css=CSS,
    )

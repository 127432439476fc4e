"""`python -m airvlm.cli.tables [README.md]`: writes the tables of models and methods between their markers."""

import sys
from pathlib import Path

from airvlm.cli.methods import methods_markdown
from airvlm.cli.models import models_markdown

__all__ = ["updated"]


def updated(text: str) -> str:
    """The text with each `<!-- name -->...<!-- /name -->` filled in."""
    for name, table in (("models", models_markdown()), ("methods", methods_markdown())):
        block = f"<!-- {name} -->\n{table}\n<!-- /{name} -->"
        before, found, rest = text.partition(f"<!-- {name} -->")
        _, closed, after = rest.partition(f"<!-- /{name} -->")
        if not (found and closed):
            raise ValueError(f"the text has no block <!-- {name} --> ... <!-- /{name} --> to fill")
        text = before + block + after
    return text


def main(path: Path) -> None:
    """Rewrite the file in place."""
    path.write_text(updated(path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "README.md"))

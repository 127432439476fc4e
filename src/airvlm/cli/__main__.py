"""`python -m airvlm.cli`: the same as the `airvlm` command."""

from airvlm.cli import main

main()

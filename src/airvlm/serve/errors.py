"""Errors in OpenAI's form."""

from __future__ import annotations

import re
from typing import Any

from starlette.responses import JSONResponse

__all__ = ["ApiError"]

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
LONGEST = 1000  # characters of a message


class ApiError(Exception):
    """What a client is told.

    Args:
        status: the HTTP status.
        message: what was wrong; addresses of objects are removed from it.
        param: the field that it is about.
        code: a word for programs.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        message = re.sub(r" (?:object )?at 0x[0-9a-fA-F]+", "", " ".join(message.split()))
        message = message.encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= LONGEST else message[:LONGEST] + "..."
        self.param = param
        self.code = code
        self.headers = headers

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, headers=self.headers)

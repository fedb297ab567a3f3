"""Errors that an API client sees, in OpenAI's shape."""

from __future__ import annotations

import math

import msgspec


class ApiError(Exception):
    """A request that can't be served: HTTP status, sentence, and OpenAI's type, param and code."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:
        """OpenAI's `type` for this status."""
        match self.status:
            case 401:
                return "authentication_error"
            case 429:
                return "rate_limit_error"
            case status if status < 500:
                return "invalid_request_error"
            case 503:
                return "service_unavailable_error"
            case _:
                return "server_error"

    def body(self) -> bytes:
        """The JSON document."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})

    def headers(self) -> dict[str, str]:
        """`Retry-After` in whole seconds where a later try makes sense."""
        if self.retry_after_s is None:
            return {}
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400."""
    return ApiError(400, message, param=param, code=code)


def too_long(tokens: int | str, limit: int, *, prompt_field: str, length_field: str) -> ApiError:
    """The 400 for a prompt (and answer) that no context holds; `tokens` as the sentence says it."""
    return bad_request(
        f"This model's context holds {limit} tokens, but prompt and answer ask for {tokens}. "
        f"Shorten `{prompt_field}` or lower `{length_field}`.",
        param=prompt_field,
        code="context_length_exceeded",
    )


def busy(message: str, retry_after_s: float) -> ApiError:
    """The 429 for a full queue."""
    return ApiError(429, message, code="overloaded", retry_after_s=retry_after_s)


def unavailable(message: str, retry_after_s: float, code: str = "no_worker") -> ApiError:
    """The 503 for a deployment that can't serve now."""
    return ApiError(503, message, code=code, retry_after_s=retry_after_s)

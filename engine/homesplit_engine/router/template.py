"""The model's own chat template, rendered in a sandbox."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import msgspec

from homesplit_engine.config import ConfigError
from homesplit_engine.router.body import Message
from homesplit_engine.router.errors import ApiError, bad_request

MAX_TEMPLATE_BYTES = 2**20
COMMON_EFFORTS = ("none", "minimal", "medium")
"""What a model that has no such thing does anyway, and OpenAI's default."""
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class _Generation(jinja2.ext.Extension):
    """Transformers' `{% generation %}` block marks training text; rendering is its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 reads it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    text = msgspec.json.encode(value)
    return (msgspec.json.format(text, indent=indent) if indent else text).decode()


class ChatTemplate:
    """A compiled template and the special tokens it may name."""

    def __init__(self, source: str, special: dict[str, str]) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        names = cast("dict[str, Any]", environment.globals)
        names.update(raise_exception=_raise, strftime_now=_now)
        self._special = special
        try:
            self._template = environment.from_string(source)
            self._names = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise ConfigError(f"the model's chat template can't be read: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        reasoning_effort: str | None = None,
        extra: dict[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation; raises ApiError 400 when the template refuses it."""
        self._refuse_unknown("tools", bool(tools))
        known_effort = reasoning_effort in (None, *COMMON_EFFORTS)
        self._refuse_unknown("reasoning_effort", not known_effort)
        effort = {} if reasoning_effort is None else {"reasoning_effort": reasoning_effort}
        values: dict[str, Any] = {
            **effort,
            **self._special,
            **(extra or {}),
            "messages": [_plain(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(values)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise bad_request(
                f"The model's chat template refuses these `messages`: {error}", param="messages"
            ) from error

    def _refuse_unknown(self, field: str, asked: bool) -> None:
        """Raises ApiError 400 when the template would leave out what was asked for."""
        if asked and field not in self._names:
            raise bad_request(
                f"This model's chat template knows no `{field}`, and without it the answer would "
                "be another one. Leave it out.",
                param=field,
            )


def _plain(message: Message) -> dict[str, Any]:
    """A message as templates expect it: text content, and only the fields that are there."""
    plain: dict[str, Any] = {"role": message.role, "content": _text_of(message)}
    for name in ("name", "tool_calls", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            plain[name] = value
    return plain


def _text_of(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(_part(part) for part in message.content or ())


def _part(part: dict[str, Any]) -> str:
    text = part.get("text")
    if part.get("type") != "text" or not isinstance(text, str):
        kind = str(part.get("type"))[:40]
        raise bad_request(
            f"`messages` with parts of type {kind!r} are not offered: only text.",
            param="messages",
        )
    return text


def load_template(model_dir: Path) -> ChatTemplate | None:
    """The chat template of a model folder; None when it has none. Raises ConfigError."""
    settings = _settings(model_dir / "tokenizer_config.json")
    special = {name: _content(settings[name]) for name in SPECIAL if settings.get(name)}
    source = _template_source(model_dir, settings)
    return ChatTemplate(source, special) if source else None


def _template_source(model_dir: Path, settings: dict[str, Any]) -> str | None:
    """Newer folders keep it in its own file, older ones in the tokenizer's settings."""
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return _read(path).decode("utf-8", errors="replace")
    value = settings.get("chat_template")
    if isinstance(value, list):
        named: dict[str, str] = {one["name"]: one["template"] for one in value}
        return named.get("default")
    return value if isinstance(value, str) else None


def _read(path: Path) -> bytes:
    if path.stat().st_size > MAX_TEMPLATE_BYTES:
        raise ConfigError(f"{path}: is over {MAX_TEMPLATE_BYTES} bytes")
    return path.read_bytes()


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: {error}") from error


def _content(token: Any) -> str:
    """A special token is text, or an object with its text as `content`."""
    return str(token["content"] if isinstance(token, dict) else token)


def no_template() -> ApiError:
    """The 400 of a chat with a model that has no template."""
    return bad_request(
        "This model has no chat template, so it can't be chatted with. "
        "Use /v1/completions with a plain prompt.",
        param="messages",
        code="no_chat_template",
    )

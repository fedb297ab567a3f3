"""Colours by role: hues that the colour-blind tell apart (Okabe and Ito's palette, lightened).

Nothing is told by colour alone: every role that means something also has its own glyph, and
what stands out by its ground is reversed, which needs no colour.
"""

from __future__ import annotations

from textual.theme import Theme

SIXTEEN = "homesplit-16"
"""The theme for terminals of sixteen colours."""

_DARK = {
    "faint": "#3a4350",
    "good": "#35c19a",
    "bad": "#ff7a45",
    "warn": "#f0d848",
    "key": "#8fb8ff",
    "prefill": "#f2a93b",
    "mixed": "#c9a86a",
    "decode": "#56b4e9",
    "handoff": "#dd8fc0",
    "a": "#f2a93b",
    "b": "#56b4e9",
    "queue": "#8a94a6",
    "quiet": "#8a94a6",
}
_LIGHT = {
    "faint": "#c9ced6",
    "good": "#007a59",
    "bad": "#b34700",
    "warn": "#8a6d00",
    "key": "#1f4fb3",
    "prefill": "#a86400",
    "mixed": "#7d6420",
    "decode": "#00639c",
    "handoff": "#9a3f78",
    "a": "#a86400",
    "b": "#00639c",
    "queue": "#5b6472",
    "quiet": "#5b6472",
}

_SIXTEEN = {
    "faint": "#555555",
    "good": "#55ff55",
    "bad": "#ff5555",
    "warn": "#ffff55",
    "key": "#5555ff",
    "prefill": "#aa5500",
    "mixed": "#ffff55",
    "decode": "#55ffff",
    "handoff": "#ff55ff",
    "a": "#aa5500",
    "b": "#55ffff",
    "queue": "#aaaaaa",
    "quiet": "#aaaaaa",
}
"""Hues that a terminal of sixteen colours has, so that none is taken for another."""

THEMES = (
    Theme(
        name="homesplit",
        dark=True,
        primary="#8fb8ff",
        secondary="#56b4e9",
        accent="#8fb8ff",
        warning="#f0d848",
        error="#ff7a45",
        success="#35c19a",
        foreground="#d7dce4",
        background="#0e1218",
        surface="#0e1218",
        panel="#161c25",
        variables={
            **_DARK,
            "footer-background": "#161c25",
            "footer-key-foreground": "#8fb8ff",
            "border": "#2b3442",
        },
    ),
    Theme(
        name=SIXTEEN,
        dark=True,
        primary="#5555ff",
        secondary="#55ffff",
        accent="#5555ff",
        warning="#ffff55",
        error="#ff5555",
        success="#55ff55",
        foreground="#ffffff",
        background="#000000",
        surface="#000000",
        panel="#000000",
        variables={
            **_SIXTEEN,
            "footer-background": "#000000",
            "footer-key-foreground": "#55ffff",
            "border": "#555555",
        },
    ),
    Theme(
        name="homesplit-light",
        dark=False,
        primary="#1f4fb3",
        secondary="#00639c",
        accent="#1f4fb3",
        warning="#8a6d00",
        error="#b34700",
        success="#007a59",
        foreground="#1d232c",
        background="#f7f8fa",
        surface="#f7f8fa",
        panel="#eceff3",
        variables={
            **_LIGHT,
            "footer-background": "#eceff3",
            "footer-key-foreground": "#1f4fb3",
            "border": "#c9ced6",
        },
    ),
)

STYLES = {
    "": "",
    "dim": "$quiet",
    "faint": "$faint",
    "strong": "bold",
    "good": "bold $good",
    "bad": "bold $bad",
    "warn": "$warn",
    "key": "bold $key",
    "prefill": "$prefill",
    "mixed": "$mixed",
    "decode": "$decode",
    "handoff": "$handoff",
    "a": "bold $a",
    "b": "bold $b",
    "bar-a": "$a",
    "bar-b": "$b",
    "queue": "$queue",
    "!key": "bold reverse $key",
    "!strong": "bold reverse $foreground",
    "!prefill": "bold reverse $prefill",
    "!mixed": "bold reverse $mixed",
    "!decode": "bold reverse $decode",
}
"""Role of a span to Textual style; an unknown role is a mistake in a view."""

FALLBACKS = {**_DARK}
"""Variables that other themes lack, taken by every theme that does not set its own."""
LIGHT_FALLBACKS = {**_LIGHT}


def colour_of(role: str, dark: bool) -> tuple[int, int, int]:
    """A role's hue as red, green, blue, for charts."""
    text = (_DARK if dark else _LIGHT)[role]
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)

"""The help text: the idea in a few sentences, the words, the keys of one screen."""

from __future__ import annotations

from collections.abc import Callable

from homesplit.view.spans import EMPTY, Line, Lines, Span, line, wrap

IDEA = """A language model's answer is made in two parts. Reading the prompt (prefill) takes \
arithmetic; writing the answer token by token (decode) takes memory bandwidth. On one box they \
get in each other's way: while a long prompt is read, everyone who is mid-answer waits.

With two boxes there are three arrangements: one box does it all (colocated), each box serves \
its own requests (replica), or one box reads and hands the KV cache over to the other, which \
writes (split). Which is best depends on the boxes, the link and what is asked. homesplit \
measures them and says, then lets you watch and compare.
"""

WORDS = """TTFT: from receipt of a request to its first token.
TPOT: time per output token after that.
ITL: one gap between two tokens.
Stall: the part of a gap beyond the TPOT target.
Goodput: requests a second that stay inside both targets.
Hand-off: moving the KV cache of a prompt from the box that read it to the box that writes.
"""

KEYS = {
    "machines": """space  choose a machine, or let it go (two make a pair)
p      measure the chosen boxes and the link between them
a      add a machine by address or ssh name""",
    "plan": """up, down      choose what to turn
left, right   turn it; the advice follows
a             work out the advice anew
v             the map over the load, or over the link
f             take targets that these boxes can hold
tab           move to the advice, to scroll it""",
    "deploy": """enter  list the changes, then make them
o      show or hide the log
d      stop the engine on the boxes
r      remove everything from the boxes""",
    "monitor": """m      switch the mode while it serves (marked on every chart)
l      start or stop the load
+ -    more or fewer requests a second
t      serve a few requests alone and take targets from them that suit the boxes
c      chat with the model
x      cancel a running request (the one under the cursor, else the newest)
i      break something for ten seconds (demo and lab only)
[ ]    a shorter or longer stretch of time in the strips
f      hold the strips still
enter  open the request under the cursor""",
    "compare": """enter  run the same requests through each mode""",
    "notebook": """enter  open the entry: its charts, its notes, all of it (there: r repeats it)
n      add a note
w      export as .ipynb, .md, .csv or .jsonl""",
}

EVERYWHERE = """1 to 6   go to a stop of the road
enter    what the line above the keys says
escape   back
s        stop what is being done on this screen, after a question
e        the last error in detail
ctrl+p   every command by name
> <      the next or the previous chapter, where a recording is shown
q        quit"""


COLUMN = 13
"""Characters that a key or a word has before what it means."""


def page(screen: str | None, width: int) -> Lines:
    """The whole help, with one screen's own keys first."""
    own = KEYS.get(screen or "", "")
    parts: list[Lines] = [_listed("Keys on this screen", own, "  ", width)] if own else []
    parts.append(_listed("Keys everywhere", EVERYWHERE, "  ", width))
    parts.append((_head("The idea"), *_prose(IDEA, width)))
    parts.append(_listed("The words", WORDS, ": ", width))
    return tuple(row for part in parts for row in (*part, EMPTY))[:-1]


def drawn(screen: str | None) -> Callable[[int, int], Lines]:
    """What draws the help of a screen for a width and a height."""
    return lambda width, height: page(screen, width)


def _head(text: str) -> Line:
    return line(Span(text, "strong"))


def _prose(text: str, width: int) -> Lines:
    return tuple(row for one in text.strip().split("\n") for row in wrap(one, width) or (EMPTY,))


def _listed(title: str, text: str, between: str, width: int) -> Lines:
    """A key or a word on the left of each line, what it means beside it."""
    rows: list[Line] = [_head(title)]
    for told in text.strip().split("\n"):
        name, _, meaning = told.partition(between)
        broken = wrap(meaning, max(width - COLUMN, 10))
        left = [name, *[""] * (len(broken) - 1)]
        rows.extend(
            (Span(f"{one:<{COLUMN}}", "key"), *row) for one, row in zip(left, broken, strict=True)
        )
    return tuple(rows)

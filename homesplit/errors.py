"""The one family of errors that people see: what happened, where, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

_ENDS = (".", "?", "!", ":")


class HomesplitError(Exception):
    """A failure told in words: what happened, on which box, and what to do next.

    `what` is a sentence; `where` a box or file, or None when it is this machine;
    `do_next` a sentence with the next step. Commands end with exit code 1.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, do_next: str | None = None) -> None:
        self.what = what
        self.where = where
        self.do_next = do_next
        super().__init__(self.sentence())

    def sentence(self) -> str:
        """All three parts on one line."""
        head = f"{self.where}: {self.what}" if self.where else self.what
        if not self.do_next:
            return head
        return f"{head} {self.do_next}" if head[-1:] in _ENDS else f"{head}. {self.do_next}"


class UsageError(HomesplitError):
    """The command or a value on it can't be meant as given (exit code 2)."""

    exit_code = 2


class ProfileError(UsageError):
    """A profile, model or workload file is missing, unreadable or says something impossible."""


class UnreachableError(HomesplitError):
    """A box can't be reached, refuses us, or is lost in the middle of something."""

    doing: str | None = None
    """What was being done when it was lost, where that is told."""


class TrustError(HomesplitError):
    """A box's SSH host key is unknown or has changed."""


class ProbeError(HomesplitError):
    """A measurement could not be made."""


class ModelError(HomesplitError):
    """A model can't be found, fetched, checked or run."""


class DeployError(HomesplitError):
    """A deployment step failed on a box."""


class EngineError(HomesplitError):
    """The running engine refused or failed."""


class NotebookError(HomesplitError):
    """The notebook can't be opened, read or written."""


@contextmanager
def during(doing: str | Callable[[], str], *, kept: bool = False) -> Generator[None]:
    """Say of a box that is lost in this block what was being done; the innermost word stands.

    `kept`: what has been done so far need not be done again.
    """
    try:
        yield
    except UnreachableError as error:
        if error.doing is not None:
            raise
        words = doing if isinstance(doing, str) else doing()
        steps = [error.do_next, "What has arrived is kept." if kept else None]
        do_next = " ".join(step for step in steps if step)
        what = f"{error.what.rstrip('.')}, while {words}."
        told = type(error)(what, where=error.where, do_next=do_next or None)
        told.doing = words
        raise told from error

"""The lab's one error: a sentence for the person who typed the command."""

from __future__ import annotations


class LabError(Exception):
    """Something the lab needs is missing, refused or not as asked."""

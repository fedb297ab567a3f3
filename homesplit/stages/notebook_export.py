"""The notebook's export to one file, its form told by the ending."""

from __future__ import annotations

from homesplit.stages.export import export

__all__ = ["export"]

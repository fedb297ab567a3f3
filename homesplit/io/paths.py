"""Where homesplit keeps its own files on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The user's folders; made with mode 0700 when first written."""

    config: Path
    cache: Path
    data: Path

    @property
    def user_profiles(self) -> Path:
        """A user's own hardware, link, model and workload files."""
        return self.config / "profiles"

    @property
    def probes(self) -> Path:
        """Probed boxes and links, TOML by host key."""
        return self.data / "probes"

    @property
    def models(self) -> Path:
        """Fetched models, a folder each."""
        return self.cache / "models"

    @property
    def known_hosts(self) -> Path:
        """Host keys that were accepted in homesplit; the user's own file is only read."""
        return self.config / "known_hosts"

    @property
    def notebook(self) -> Path:
        """The lab notebook's SQLite file."""
        return self.data / "notebook.sqlite"

    @property
    def deployments(self) -> Path:
        """What is deployed where, and the desk's copies of keys (mode 0600)."""
        return self.data / "deployments"


def user_paths() -> Paths:
    """The user's folders by the platform's custom; `HOMESPLIT_HOME` puts all under one folder."""
    home = os.environ.get("HOMESPLIT_HOME")
    if home:
        root = Path(home)
        return Paths(config=root / "config", cache=root / "cache", data=root / "data")
    config = Path.home() / ".config" / "homesplit"
    return Paths(
        config=config,
        cache=Path(platformdirs.user_cache_dir("homesplit")),
        data=Path(platformdirs.user_data_dir("homesplit")),
    )

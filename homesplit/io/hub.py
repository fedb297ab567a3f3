"""Fetches a model's files from a Hugging Face hub, resumed where it stopped and checked by hash."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import aiohttp
import msgspec
from msgspec import Struct, field

from homesplit.core.manifest import FileEntry, Manifest
from homesplit.errors import ModelError
from homesplit.io.model_store import Seen, hash_file, need_space

_REACH_S = 4.0
_READ_S = 60.0
_BLOCK_BYTES = 1 << 20
_WANTED = (".json", ".safetensors", ".jinja", ".txt", ".model")


Tell = Callable[[int], None]
"""Told how many bytes of one file are here."""


class HubUnreachableError(Exception):
    """No hub answers from here; the message says how that showed."""


class _Lfs(Struct, frozen=True):
    sha256: str


class _Sibling(Struct, frozen=True):
    rfilename: str
    size: int | None = None
    blob_id: str | None = field(default=None, name="blobId")
    lfs: _Lfs | None = None


class HubModel(Struct, frozen=True):
    """One revision of a repository as the hub lists it."""

    sha: str
    siblings: tuple[_Sibling, ...]

    @property
    def wanted(self) -> tuple[_Sibling, ...]:
        """The files that running the model takes: those at the top, in safe formats."""
        return tuple(
            s for s in self.siblings if "/" not in s.rfilename and s.rfilename.endswith(_WANTED)
        )


def endpoint() -> str:
    """The hub's address; `HF_ENDPOINT` names a mirror."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


async def list_repo(repo: str) -> HubModel:
    """What `repo` holds now; raises HubUnreachableError, or ModelError when there is no such."""
    url = f"{endpoint()}/api/models/{quote(repo)}?blobs=true"
    timeout = aiohttp.ClientTimeout(total=_READ_S, connect=_REACH_S, sock_read=_REACH_S * 2)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True, headers=_headers()) as session,
            session.get(url) as reply,
        ):
            if reply.status in (401, 403, 404):
                raise ModelError(
                    f"The hub has no open model {repo} (HTTP {reply.status}).",
                    do_next="Check the name; a model behind a licence needs HF_TOKEN.",
                )
            reply.raise_for_status()
            return msgspec.json.decode(await reply.read(), type=HubModel)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
        raise HubUnreachableError(f"{endpoint()}: {error or type(error).__name__}") from error


async def fetch_repo(repo: str, listed: HubModel, folder: Path, seen: Seen) -> Manifest:
    """Fetch every wanted file of `listed` into `folder`; what is there and right stays."""
    files = listed.wanted
    if not any(s.rfilename.endswith(".safetensors") for s in files):
        raise ModelError(f"{repo} holds no safetensors weights.", do_next="Choose another model.")
    total = sum(s.size or 0 for s in files)
    _make_room(folder, total)
    done = 0
    entries: list[FileEntry] = []
    timeout = aiohttp.ClientTimeout(total=None, connect=_REACH_S * 5, sock_read=_READ_S)
    async with aiohttp.ClientSession(
        timeout=timeout, trust_env=True, headers=_headers()
    ) as session:
        for sibling in files:
            base = done

            def tell(count: int, base: int = base) -> None:
                seen(base + count, total)

            url = f"{endpoint()}/{quote(repo)}/resolve/{listed.sha}/{quote(sibling.rfilename)}"
            entry = await _fetch_file(session, url, sibling, folder, tell)
            entries.append(entry)
            done += entry.bytes
    return Manifest(files=tuple(entries), source=f"{repo} at {listed.sha}")


async def _fetch_file(
    session: aiohttp.ClientSession, url: str, sibling: _Sibling, folder: Path, tell: Tell
) -> FileEntry:
    path = folder / sibling.rfilename
    if not await asyncio.to_thread(_is_right, path, sibling):
        part = path.with_name(path.name + ".part")
        await _continue(session, url, sibling, part, tell)
        await asyncio.to_thread(_accept, part, sibling, path)
    return await asyncio.to_thread(_entry, path)


def _make_room(folder: Path, wanted_bytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    need_space(folder, wanted_bytes)


def _accept(part: Path, sibling: _Sibling, path: Path) -> None:
    if not _is_right(part, sibling):
        part.unlink()
        raise ModelError(
            f"{sibling.rfilename} came with another hash than the hub states.",
            do_next="Repeat the command.",
        )
    part.replace(path)


def _entry(path: Path) -> FileEntry:
    return FileEntry(path=path.name, bytes=path.stat().st_size, sha256=hash_file(path))


def _bytes_there(part: Path, sibling: _Sibling) -> int:
    have = part.stat().st_size if part.is_file() else 0
    return 0 if sibling.size is not None and have >= sibling.size else have


async def _continue(
    session: aiohttp.ClientSession, url: str, sibling: _Sibling, part: Path, tell: Tell
) -> None:
    have = _bytes_there(part, sibling)
    headers = {"Range": f"bytes={have}-", "Accept-Encoding": "identity"} if have else {}
    try:
        async with session.get(url, headers=headers) as reply:
            reply.raise_for_status()
            if reply.status != 206:
                have = 0
            with part.open("ab" if have else "wb") as file:
                async for block in reply.content.iter_chunked(_BLOCK_BYTES):
                    file.write(block)
                    have += len(block)
                    tell(have)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ModelError(
            f"Fetching {sibling.rfilename} stopped: {error or type(error).__name__}",
            do_next="Repeat the command; it goes on where it stopped.",
        ) from error


def _is_right(path: Path, sibling: _Sibling) -> bool:
    """Whether a file has the hash that the hub lists: SHA-256 of large ones, git's of small."""
    if not path.is_file():
        return False
    if sibling.lfs is not None:
        return hash_file(path) == sibling.lfs.sha256
    if sibling.blob_id is None:
        return sibling.size is None or path.stat().st_size == sibling.size
    content = path.read_bytes()
    head = b"blob %d\0" % len(content)
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest() == sibling.blob_id


def _headers() -> dict[str, str]:
    token = os.environ.get("HF_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}

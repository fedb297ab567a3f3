"""What is simulated: boxes with their costs, the link between them, one model, one policy."""

from __future__ import annotations

from homesplit_engine.records import KvWire, ModeSetting
from msgspec import Struct, structs

from homesplit.core.cost import CostModel
from homesplit.core.handoff import Wire
from homesplit.core.shape import DTYPE_BYTES, ModelShape

BLOCK_TOKENS = 16
MAX_BATCH = 64
MAX_WAITING = 256
MAX_STEP_TOKENS = 8192
KV_WIRE_BYTES: dict[KvWire, float] = {"fp16": 2.0, "int8": 1.0 + 4.0 / 64.0}
"""Bytes for each number of KV that is sent with less precision; int8 has a scale of four bytes for
each head, here of 64 numbers (wider ones have less)."""


class SimBox(Struct, frozen=True, kw_only=True):
    """One box: its cost model and the tokens of KV it has room for."""

    name: str
    cost: CostModel
    kv_tokens: int
    """Room for KV beside the weights; 0 when the weights alone don't fit."""
    together: float = 1.0
    """How many times as long a step takes while the other box computes too."""


class Scene(Struct, frozen=True, kw_only=True):
    """Two boxes (or one), the wires between them by (from, to), and the router's own costs."""

    boxes: tuple[SimBox, ...]
    wires: dict[tuple[str, str], Wire]
    shape: ModelShape
    kv_dtype: str = "fp16"
    """The KV cache's format, which is also what goes over the wire where nothing else is said."""
    tokenise_s: float = 3e-4
    tokenise_token_s: float = 2e-6
    router_s: float = 1e-3
    """The router's part of a request, and of a hand-off's reservation."""
    client_s: float = 0.0
    """What a request takes beyond the router for whoever asks, there and back."""

    def box(self, name: str) -> SimBox:
        """The box of this name; raises KeyError."""
        for box in self.boxes:
            if box.name == name:
                return box
        raise KeyError(name)

    def tokenising_s(self, prompt_tokens: int) -> float:
        """From receipt to the policy's question."""
        return self.tokenise_s + self.tokenise_token_s * prompt_tokens

    @property
    def back_s(self) -> float:
        """From a step's end to whoever asked."""
        return self.router_s + self.client_s / 2.0

    def with_link_rate(self, bytes_per_s: float) -> Scene:
        """The same scene over a link with another payload rate both ways."""
        wires = {
            pair: structs.replace(wire, bytes_per_s=bytes_per_s)
            for pair, wire in self.wires.items()
        }
        return structs.replace(self, wires=wires)

    def sending(self, kv_wire: KvWire) -> Scene:
        """The same scene whose wires carry KV in fewer bytes: so much the quicker, for KV."""
        if kv_wire == "same":
            return self
        times = DTYPE_BYTES[self.kv_dtype] / KV_WIRE_BYTES[kv_wire]
        wires = {
            pair: structs.replace(
                wire,
                bytes_per_s=wire.bytes_per_s * times,
                opening_byte_s=wire.opening_byte_s / times,
            )
            for pair, wire in self.wires.items()
        }
        return structs.replace(self, wires=wires)

    def scaled(self, prefill: float, decode: float) -> Scene:
        """The same scene with every box's prompts and answers taking so many times as long."""
        boxes = tuple(
            structs.replace(box, cost=box.cost.scaled(prefill, decode)) for box in self.boxes
        )
        return structs.replace(self, boxes=boxes)


class Arrangement(Struct, frozen=True, kw_only=True):
    """One way to run: the boxes used and the router's policy."""

    setting: ModeSetting
    boxes: tuple[str, ...]

    @property
    def mode(self) -> str:
        """The mode's name."""
        return self.setting.mode

    @property
    def first(self) -> str:
        """The first box, which is the only one in mode colocated."""
        return self.boxes[0]

    def words(self) -> str:
        """In words, as `split, spark reads and mac writes`."""
        setting = self.setting
        if setting.mode == "split":
            return f"split, {setting.prefill_box} reads and {setting.decode_box} writes"
        style = f"{setting.prefill} prefill"
        if setting.mode == "auto":
            return f"auto on both boxes, {style}"
        if setting.mode == "replica":
            return f"replica on both boxes, {style}"
        return f"colocated on {self.first}, {style}"

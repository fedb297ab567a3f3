"""What has arrived of one hand-off, and whether that is all. No torch, no sockets."""

from __future__ import annotations

from homesplit_engine.wire.messages import Chunk, Close


class HandoffRefused(Exception):
    """The hand-off can't be used; the message says what is wrong with it."""


class Ledger:
    """Takes note of every chunk in order; nothing may be missing, twice, or out of place."""

    def __init__(self, *, layers: int, from_token: int, prompt_tokens: int) -> None:
        self.layers = layers
        self.prompt_tokens = prompt_tokens
        self.chunks = 0
        self.bytes = 0
        self._next_token = [from_token] * layers

    def check(self, chunk: Chunk, *, expected_bytes: int, frame_bytes: int) -> None:
        """Refuses a chunk that is not the one to come next; raises HandoffRefused."""
        if chunk.sequence != self.chunks:
            raise HandoffRefused(f"frame {self.chunks} was to come, frame {chunk.sequence} came")
        if chunk.layer < 0 or chunk.layers < 1 or chunk.layer + chunk.layers > self.layers:
            raise HandoffRefused(f"layer {chunk.layer} of {self.layers} does not exist")
        for layer in range(chunk.layer, chunk.layer + chunk.layers):
            if chunk.from_token != self._next_token[layer]:
                raise HandoffRefused(
                    f"layer {layer}: token {self._next_token[layer]} was to come, "
                    f"token {chunk.from_token} came"
                )
        if chunk.tokens < 1 or chunk.from_token + chunk.tokens > self.prompt_tokens:
            raise HandoffRefused(
                f"tokens to {chunk.from_token + chunk.tokens} of {self.prompt_tokens} were sent"
            )
        if not expected_bytes == chunk.bytes == frame_bytes:
            raise HandoffRefused(
                f"frame {chunk.sequence} has {frame_bytes} bytes, {expected_bytes} were to come"
            )

    def note(self, chunk: Chunk) -> None:
        """The chunk was checked and is in place."""
        for layer in range(chunk.layer, chunk.layer + chunk.layers):
            self._next_token[layer] += chunk.tokens
        self.chunks += 1
        self.bytes += chunk.bytes

    def close(self, close: Close) -> None:
        """Refuses an end that comes before everything is there; raises HandoffRefused."""
        for layer, token in enumerate(self._next_token):
            if token != self.prompt_tokens:
                raise HandoffRefused(f"layer {layer} ends at token {token} of {self.prompt_tokens}")
        if (close.chunks, close.bytes) != (self.chunks, self.bytes):
            raise HandoffRefused(
                f"{close.chunks} frames of {close.bytes} bytes were sent, "
                f"{self.chunks} of {self.bytes} bytes arrived"
            )

"""Limits of a server's connections, so that those who open many and send little cannot keep others out."""

import asyncio
from collections import Counter

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""How long the head of a request may take to arrive."""
MOST_CONNECTIONS = 500
"""Open at once, in all."""


class Connections:
    """The open connections of one server, the oldest first.

    Beyond a limit the oldest connection whose request has not arrived makes room for the new one; where there is none,
    the new one is closed.

    Args:
        max_of_address: From one address; 0 for no limit.
        max_in_all: From all of them.
    """

    def __init__(self, max_of_address: int = 0, max_in_all: int = MOST_CONNECTIONS):
        self.max_of_address, self.max_in_all = max_of_address or max_in_all, max_in_all
        self._open: dict[_Protocol, str] = {}
        self._numbers: Counter[str] = Counter()

    def protocol(self, *given, **options) -> H11Protocol:
        """What uvicorn takes for `http`: makes the protocol of one connection."""
        return _Protocol(self, *given, **options)

    def add(self, one: "_Protocol", address: str) -> None:
        """Takes a new connection, or closes it."""
        if len(self._open) >= self.max_in_all or self._numbers[address] >= self.max_of_address:
            of_address = address if self._numbers[address] >= self.max_of_address else None
            others = (other for other, theirs in self._open.items() if of_address in (None, theirs))
            oldest = next((other for other in others if other.is_waiting), one)
            oldest.transport.abort()
            self.remove(oldest)
            if oldest is one:
                return
        self._open[one] = address
        self._numbers[address] += 1

    def remove(self, one: "_Protocol") -> None:
        """Forgets a connection that has ended."""
        if (address := self._open.pop(one, None)) is not None:
            self._numbers[address] -= 1
            self._numbers += Counter()  # without those that have none


class _Protocol(H11Protocol):
    """One connection, which is closed when the head of a request takes too long."""

    def __init__(self, connections: Connections, *given, **options):
        super().__init__(*given, **options)
        self._connections, self._deadline = connections, None

    @property
    def is_waiting(self) -> bool:
        """Whether no request has arrived that is not answered."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Counts it, and begins to wait for a head."""
        super().connection_made(transport)
        self._connections.add(self, self.client[0] if self.client else "")
        self._deadline = self.loop.call_later(HEAD_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Waits for the rest of a head that has begun, and no longer for one that is there."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._deadline = self._deadline and self._deadline.cancel()
        elif self._deadline is None and (before is None or before.response_complete):
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets it."""
        self._connections.remove(self)
        self._deadline = self._deadline and self._deadline.cancel()
        super().connection_lost(exc)

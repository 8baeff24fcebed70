"""Limits of a server's connections, so that those who open many and send little cannot keep others out."""

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""How long the head of a request may take to arrive."""
MOST_CONNECTIONS = 500
"""Open at once, from all addresses."""


def limited_protocol(max_of_address: int, max_in_all: int = MOST_CONNECTIONS) -> type[H11Protocol]:
    """What uvicorn takes for `http`: closes connections that do not send the head of a request within `HEAD_SECONDS`.

    Beyond a limit the oldest connection whose request has not arrived makes room for the new one; where there is none,
    the new one is closed.

    Args:
        max_of_address: Connections from one address; 0 for no limit.
    """
    opened: dict[H11Protocol, str] = {}  # the oldest first

    class Limited(H11Protocol):
        """One connection of a server."""

        _deadline = None

        def connection_made(self, transport):
            super().connection_made(transport)
            address = self.client[0] if self.client else ""
            same = [one for one, theirs in opened.items() if theirs == address]
            crowd = same if 0 < max_of_address <= len(same) else list(opened) if len(opened) >= max_in_all else ()
            opened[self] = address
            if crowd:
                oldest = next((one for one in crowd if one._has_no_request()), self)
                del opened[oldest]
                oldest.transport.abort()
            self._deadline = self.loop.call_later(HEAD_SECONDS, transport.abort)

        def data_received(self, data):
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._cancel_deadline()
            elif self._deadline is None and before.response_complete:
                self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

        def connection_lost(self, exc):
            opened.pop(self, None)
            self._cancel_deadline()
            super().connection_lost(exc)

        def _has_no_request(self):
            return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

        def _cancel_deadline(self):
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Limited

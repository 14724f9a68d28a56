"""Where a consumer of a stream goes on when its connection is gone: behind what is settled, but not
behind what was given back and has not come again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

WITHOUT_BOUND: Final = 1 << 20
"""So many deliveries are waited for when any number may be unsettled."""


class StreamPlace:
    """Of one consumer."""

    __slots__ = ("_awaited", "_behind", "_given_back", "_newest", "_unsettled", "next_offset")

    def __init__(self) -> None:
        self.next_offset: int | None = None
        """None: nothing was settled, it begins where the program said."""
        self.leave()

    def leave(self) -> None:
        """The channel is gone: all from `next_offset` on comes again."""
        self._unsettled: deque[tuple[int, int]] = deque()
        self._given_back: set[int] = set()
        self._awaited: dict[int, int] = {}
        """Offsets that are to come again, and the tag up to which a broker would have sent them."""
        self._behind = self._newest = 0

    def deliver(self, tag: int, offset: int) -> None:
        """A message came."""
        self._unsettled.append((tag, offset))
        self._newest = tag

    def settle(self, up_to: int, given_back: Iterable[int], most: int) -> None:
        """Messages were settled.

        Args: up_to: the tag up to which all are; given_back: those that are to come again, also of
            later ones; most: how many deliveries may be unsettled. A broker sends again what was
            given back before anything new; one that does not by then never will.
        """
        self._given_back.update(given_back)
        if not (self._unsettled and self._unsettled[0][0] <= up_to):
            return
        while self._unsettled and self._unsettled[0][0] <= up_to:
            tag, offset = self._unsettled.popleft()
            if tag in self._given_back:
                self._given_back.remove(tag)
                self._awaited[offset] = self._newest + (most or WITHOUT_BOUND)
            else:
                self._awaited.pop(offset, None)
            self._behind = max(self._behind, offset + 1)
        if self._awaited:
            late = [offset for offset, until in self._awaited.items() if until < up_to]
            for offset in late:
                del self._awaited[offset]
        self.next_offset = min(self._awaited, default=self._behind)

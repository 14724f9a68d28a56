"""The buffer and the ring of the Crystal library, for programs that used them by themselves.

A producer does not: its messages are in the ring of the engine. These are small, bounded and safe
to use from many threads, because each step is one operation of a deque under a lock.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class RingBuffer(Generic[T]):
    """A bounded queue that refuses what does not fit."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a capacity of {capacity}")
        self.capacity = capacity
        self._items: deque[T] = deque()
        self._lock = threading.Lock()

    def enqueue(self, item: T) -> bool:
        """Add one; False when it is full."""
        with self._lock:
            if len(self._items) >= self.capacity:
                return False
            self._items.append(item)
            return True

    def dequeue(self) -> T | None:
        """Take the oldest; None when there is none."""
        with self._lock:
            return self._items.popleft() if self._items else None

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self._items)

    @property
    def empty(self) -> bool:
        """Whether there is none."""
        return not self._items

    @property
    def full(self) -> bool:
        """Whether there is no room."""
        return len(self._items) >= self.capacity

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._items.clear()


class MessageBuffer(Generic[T]):
    """A bounded queue that drops the oldest for what does not fit, and counts them."""

    def __init__(self, max_size: int = 10_000) -> None:
        self._ring: RingBuffer[T] = RingBuffer(max_size)
        self._lock = threading.Lock()
        self.dropped_count = 0

    @property
    def max_size(self) -> int:
        """How many fit."""
        return self._ring.capacity

    capacity = max_size

    @property
    def count(self) -> int:
        """How many there are."""
        return self._ring.size

    size = count

    @property
    def empty(self) -> bool:
        """Whether there is none."""
        return self._ring.empty

    @property
    def full(self) -> bool:
        """Whether the next one drops another."""
        return self._ring.full

    def enqueue(self, message: T) -> T | None:
        """Add one; return the one that had to go, or None."""
        with self._lock:
            dropped = None
            if self._ring.full:
                dropped = self._ring.dequeue()
                self.dropped_count += 1
            self._ring.enqueue(message)
            return dropped

    def dequeue(self) -> T | None:
        """Take the oldest; None when there is none."""
        return self._ring.dequeue()

    def drain(self) -> list[T]:
        """Take all, in order."""
        found: list[T] = []
        while (message := self._ring.dequeue()) is not None:
            found.append(message)
        return found

    def clear(self) -> None:
        """Forget all."""
        self._ring.clear()

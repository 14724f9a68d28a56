"""Producers, consumers and channels that open when they are awaited, or entered by `async with`."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class Openable(Protocol):
    """What is opened and closed."""

    async def open(self) -> Any:
        """Begin."""

    async def close(self) -> None:
        """End."""


T = TypeVar("T", bound=Openable)


class Opening(Generic[T]):
    """Something that opens when it is awaited, or entered by `async with`."""

    def __init__(self, made: T) -> None:
        self.made = made

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    async def _open(self) -> T:
        await self.made.open()
        return self.made

    async def __aenter__(self) -> T:
        return await self._open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.made.close()

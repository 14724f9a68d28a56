"""The compiled bindings of an exchange by themselves, from cext/matcher.pyx: `make trial`."""

class Matcher:
    """The bindings of an exchange with integers for queues. For tests and tools only.

    Args: kind: a value of `_core.kinds()`; seed: of its hash tables, and of what is random, 64
        bits.
    Raises: ValueError for another kind.
    """

    def __init__(self, kind: int, seed: int) -> None: ...
    def __len__(self) -> int:
        """Number of bindings."""

    def weight(self) -> int:
        """Number of table entries and wildcards at the root: 0 when nothing is left behind."""

    def n_slots(self) -> tuple[int, int, int, int]:
        """Slots of its tables: literal keys, nodes of topics, bindings, pairs of headers."""

    def set_default_any(self, is_any: bool) -> None:
        """What a HEADERS binding without `x-match` means; to be called before the first one."""

    def set_hash(self, is_jump: bool, header: bytes | None = None, property: int = 0) -> None:
        """HASH: the algorithm, and what to hash on; to be called once, before the first binding."""

    def bind(self, key: bytes, args: bytes, dest: int) -> int:
        """Add a binding of destination `dest`; `args` as in `Exchange.bind`.

        Returns: 1 added, 0 there already, -2 `x-match` is bad, -3 malformed, -4 no weight, -5 too
            many points; as `match_result` in cext/match.pxd.
        """

    def unbind(self, key: bytes, args: bytes, dest: int) -> int:
        """Remove a binding. Returns: 1 removed, 0 there was none, -4 no weight."""

    @property
    def pauses(self) -> int:
        """How often the last routing was stopped and went on."""

    def route(
        self,
        key: bytes,
        headers: bytes | None = None,
        properties: bytes | None = None,
        others: list[bytes] | None = None,
    ) -> list[int]:
        """Destinations of one message, each once, in the order they were found.

        Args:
            headers: content of the message's field table without its length.
            properties: all properties as they stand on the wire, instead of the headers.
            others: keys of messages; when there are any, the routing is stopped wherever it can be,
                and one of them is routed before it goes on. Not for HASH.
        Raises: ValueError when the header to hash on is no string, or properties are malformed.
        """

    def bench(self, keys: list[bytes], n: int, headers: bytes | None = None) -> float:
        """Nanoseconds of processor time per routing, of `n` that take the keys in turn. Blocks.

        Raises: ValueError when there is nothing to route.
        """

"""A cluster whose nodes, and whose members of etcd, are on machines of their own (`network.py`, or
another network that makes machines)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from tests.support.cluster import NO_ETCD, Cluster, ClusterNode
from tests.support.etcd import EtcdCluster, Member
from tests.support.network import Machine, Network


class Place(Protocol):
    """A machine."""

    host: str

    @property
    def within(self) -> list[str]:
        """What stands in front of a command that is to run there."""


P = TypeVar("P", bound=Place)
Made = TypeVar("Made", bound=Place, covariant=True)


class MakesMachines(Protocol[Made]):
    """A network."""

    def add(self) -> Made:
        """Make a machine more."""


class PlacedCluster(Cluster, Generic[P]):
    """Each node and each member of etcd has an address of its own.

    Args: as for `Cluster`; network: makes the machines; n_members: of etcd.
    """

    def __init__(
        self, directory: Path, network: MakesMachines[P], n_nodes: int = 3, *, n_members: int = 1,
        **options: Any,
    ) -> None:  # fmt: skip
        self._network = network
        self.machines: dict[ClusterNode | Member, P] = {}
        etcd = EtcdCluster(directory / "etcd", n_members)
        for member in etcd.members:
            machine = self.machines[member] = network.add()
            member.host, member.within = machine.host, machine.within
        super().__init__(directory, n_nodes, etcd=etcd, **options)
        self.restarted.add(NO_ETCD)

    def make_node(self, number: int) -> ClusterNode:
        """On another machine."""
        node = super().make_node(number)
        machine = self.machines[node] = self._network.add()
        node.host, node.within = machine.host, machine.within
        node.args = ["--clustering-bind", node.host, "--metrics-http-bind", node.host,
                     "--default-user-only-loopback", "false"]  # fmt: skip
        return node


class MachineCluster(PlacedCluster[Machine]):
    """One whose network can be made bad. Args: as for `PlacedCluster`."""

    def __init__(self, directory: Path, network: Network, *args: Any, **options: Any) -> None:
        self.network = network
        super().__init__(directory, network, *args, **options)

    def cut(
        self, one: ClusterNode | Member, others: Iterable[ClusterNode | Member], *,
        back: bool = True,
    ) -> None:  # fmt: skip
        """Let nothing pass from one machine to others. Args: back: nor from these."""
        self.network.cut(
            self.machines[one], *(self.machines[each] for each in others if each is not one),
            back=back,
        )  # fmt: skip

    def worsen(self, **values: Any) -> None:
        """Have all ways between nodes and members be like this: fields of `Way`."""
        machines = list(self.machines.values())
        for number, one in enumerate(machines):
            for other in machines[number + 1 :]:
                self.network.set(one, other, **values)

    def heal(self) -> ClusterNode:
        """Make good whatever a test has done. Returns: who leads, once all are in sync."""
        self.network.heal()
        return super().heal()

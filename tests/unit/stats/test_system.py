"""What the process may use: limits of control groups of both versions; and what it does use."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from lavinmq.stats import system
from lavinmq.stats.system import System, _cgroup_limits


def group(root: Path, path: str, name: str, value: str) -> None:
    (root / path).mkdir(parents=True, exist_ok=True)
    (root / path / name).write_text(f"{value}\n")


def test_the_limits_of_all_groups_around_ours_count(tmp_path: Path) -> None:
    group(tmp_path, "system.slice", "memory.max", "4000")
    group(tmp_path, "system.slice/broker.service", "memory.max", "5000")

    assert _cgroup_limits("0::/system.slice/broker.service\n", tmp_path) == [4000, 5000]


def test_max_is_no_limit(tmp_path: Path) -> None:
    group(tmp_path, "a", "memory.max", "max")

    assert _cgroup_limits("0::/a\n", tmp_path) == []


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    group(tmp_path, "", "memory.max", "3000")

    assert _cgroup_limits("0::/\n", tmp_path) == [3000]
    assert _cgroup_limits("0::/not/mounted/here\n", tmp_path) == [3000]


def test_version_1_has_a_hierarchy_for_memory(tmp_path: Path) -> None:
    group(tmp_path, "memory/docker/x", "memory.limit_in_bytes", "2000")
    group(tmp_path, "memory", "memory.limit_in_bytes", "9223372036854771712")
    own = "11:cpu,cpuacct:/docker/x\n9:memory:/docker/x\n"

    assert _cgroup_limits(own, tmp_path) == [2000]


@pytest.mark.parametrize("own", ["", "nonsense", "0:", "0::", "::::\n\n"])
def test_a_system_that_says_nothing_sensible_sets_no_limit(own: str, tmp_path: Path) -> None:
    assert _cgroup_limits(own, tmp_path) == []


def test_the_numbers_of_this_process_are_plausible(tmp_path: Path) -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    assert 1 << 20 < system.memory_used() < system.memory_limit() <= machine
    assert asyncio.run(system.descriptors_used()) >= 3
    assert system.heap()["gc_no"] > 0
    total, free = System(str(tmp_path)).disk()
    assert 0 < free <= total


def test_a_disk_that_does_not_answer_is_zero() -> None:
    assert System("/no/such/directory").disk() == (0, 0)


def test_old_kernels_have_descriptors_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        st_size = 0

    monkeypatch.setattr(system.os, "stat", lambda _path: Old)

    assert asyncio.run(system.descriptors_used()) >= 3


def test_histories_follow_the_samples(tmp_path: Path) -> None:
    numbers = System(str(tmp_path))
    sum(range(200_000))  # some processor time

    for samples in (1, 2):
        numbers.sample(samples)

    shown = asyncio.run(numbers.stats(2))
    assert len(shown["mem_used_details"]["log"]) == 2
    assert shown["disk_total_details"]["log"][-1] == shown["disk_total"] > 0
    assert shown["cpu_user_details"]["log"][0] >= 0
    assert shown["os_pid"] == str(os.getpid())

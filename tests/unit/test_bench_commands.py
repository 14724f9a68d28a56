"""What is measured writes to a directory of its own, not to that of a broker of the machine."""

from __future__ import annotations

import pytest

from perf import mqtt


@pytest.mark.parametrize("name", ["ours", "before"])
def test_a_command_without_a_data_directory_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would find thousands of queues of earlier rows, and be slower for them."""
    with pytest.raises(SystemExit) as ended:
        mqtt.main([f"--{name}", "lavinmq --bind 127.0.0.1", "--rows", "none"])
    assert ended.value.code == 2
    assert f"--{name}: {{data}} stands for its data directory" in capsys.readouterr().err

"""The command line: flags, clusters, arguments, and what is not understood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.config.settings import flags
from lavinmq.config.values import ConfigError, UsageError, load
from tests.support.configuration import HASH, Loader, accepted, load_bare

__all__ = ["load_bare"]  # fixtures


@pytest.mark.parametrize(
    ("argv", "attribute", "expected"),
    [
        (["-D", "/d"], "data_dir", "/d"),
        (["-D/d"], "data_dir", "/d"),
        (["--data-dir=/d"], "data_dir", "/d"),
        (["--data-dir", "/d"], "data_dir", "/d"),
        (["-D", "/d/"], "data_dir", "/d"),
        (["-D", "/d//e/./f/."], "data_dir", "/d/e/f"),
        (["-D", "./d/../e/"], "data_dir", "d/../e"),
        (["-D", "/"], "data_dir", "/"),
        (["-l", "warn"], "log_level", "warn"),
        (["-d"], "log_level", "debug"),
        (["--debug", "-l", "error"], "log_level", "error"),
        (["--pidfile", "/p"], "pidfile", "/p"),
        (["--no-sync"], "sync", False),
        (["--no-data-dir-lock"], "data_dir_lock", False),
        (["--default-user", "bo"], "default_user", "bo"),
        (["--default-password-hash", "$5$" + HASH], "default_password_hash", "$5$" + HASH),
        (["--default-user-only-loopback", "false"], "default_user_only_loopback", False),
        (["--default-user-only-loopback=true"], "default_user_only_loopback", True),
        (["--default-consumer-prefetch", "3"], "default_consumer_prefetch", 3),
        (["-b", "::"], "amqp_bind", "::"),
        (["-b", "::", "--amqp-bind", "::1"], "amqp_bind", "::1"),
        (["-p", "1"], "amqp_port", 1),
        (["-p=1"], "amqp_port", 1),
        (["-dp1"], "amqp_port", 1),
        (["-dp", "1"], "amqp_port", 1),
        (["-p", "-1"], "amqp_port", -1),
        (["--amqp-port=-1"], "amqp_port", -1),
        (["-p", "1", "-p", "2"], "amqp_port", 2),
        (["--amqp-unix-path", "/s"], "amqp_unix_path", "/s"),
        (["--amqp-unix-path="], "amqp_unix_path", None),
    ],
)
def test_flags_set_their_setting(
    load_bare: Loader, argv: list[str], attribute: str, expected: object
) -> None:
    config = load_bare(*argv)

    assert getattr(config, attribute) == expected
    assert [each for each in config.warnings if " is false: " not in each] == []


def test_every_flag_that_takes_an_argument_reaches_its_settings(load_bare: Loader) -> None:
    for flag, setting in flags():
        if setting is None or not flag.argument or flag.long == "--bind":
            continue
        lines = load_bare(flag.long, accepted(setting)).warnings
        warnings = [each for each in lines if " has no effect: " not in each]

        assert bool(warnings) == (bool(flag.instead) or setting.effect != "yes"), flag.long


@pytest.mark.parametrize(
    ("argv", "successor"),
    [
        (["--default-password", HASH], "--default-password-hash"),
        (["--guest-only-loopback", "true"], "--default-user-only-loopback"),
    ],
)
def test_an_old_flag_works_with_a_warning(
    load_bare: Loader, argv: list[str], successor: str
) -> None:
    assert load_bare(*argv).warnings == [f"{argv[0]} is deprecated, use {successor}"]


def test_the_collector_flag_is_accepted_in_silence(load_bare: Loader) -> None:
    assert load_bare("--raise-gc-warn").warnings == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nope"], "Unknown option '--nope'"),
        (["--nope=1"], "Unknown option '--nope'"),
        (["-x"], "Unknown option '-x'"),
        (["-dx"], "Unknown option '-x'"),
        (["--data-di", "x"], "Unknown option '--data-di'"),
        (["-D"], "Missing value of option -D"),
        (["-D", "-d"], "Missing value of option -D"),
        (["--amqp-port"], "Missing value of option --amqp-port"),
        (["--no-sync=1"], "Option --no-sync takes no value"),
        (["stray"], "Unexpected argument 'stray'"),
        ([""], "Unexpected argument ''"),
        (["-"], "Unexpected argument '-'"),
        (["--", "-d"], "Unexpected argument '-d'"),
    ],
)
def test_a_command_line_that_is_not_understood_is_a_usage_error(
    load_bare: Loader, argv: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        load_bare(*argv)

    assert str(raised.value) == message


@given(st.lists(st.text(max_size=12) | st.sampled_from([flag.long for flag, _ in flags()])))
def test_any_command_line_is_taken_or_refused_in_one_line(argv: list[str]) -> None:
    try:
        config = load(argv, {"LAVINMQ_CONFIGURATION_DIRECTORY": "/nonexistent"})
    except ConfigError as error:
        assert str(error).isprintable()
    else:
        assert config.argv == tuple(argv)

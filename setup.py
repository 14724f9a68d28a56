"""Builds the compiled modules: ``lavinmq._cluster``, ``_core``, ``_pcre``, ``_perf``, ``_tls``,
``spark._arrow``.

Metadata lives in pyproject.toml, that of the distribution with ``spark._arrow`` in
``packaging/spark``. The sources are in ``cext/``: each module has one umbrella
``.pyx`` that includes its parts, so that every C function is static and may be inlined.
``LAVINMQ_DEBUG=1`` selects the developer build: fast to compile, bounds and LMQ_ASSERT checked.
``LAVINMQ_SANITIZE`` adds a sanitizer to it: ``asan``, ``ubsan``, ``tsan`` (for an interpreter that
has it, too), or ``fuzz`` (clang only), which is the first one with the coverage that
`tests/fuzz/run.py` needs.
``LAVINMQ_TRIAL=1`` builds what only tests use instead: ``tests.support._matcher``, ``_trial_tls``,
and ``_trial``: all of the core with a protocol for tests, always checked and not optimized.
``LAVINMQ_IN_PLACE=1`` builds none: an installation that points here finds those of the Makefile.
The annotated sources that ``make lint`` inspects are left in ``build/annotate``.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

MODULES = {
    "lavinmq._cluster": "cext/cluster.pyx",
    "lavinmq._core": "cext/core.pyx",
    "lavinmq._pcre": "cext/pcre.pyx",
    "lavinmq._perf": "cext/perf.pyx",
    "lavinmq._tls": "cext/tls.pyx",
    "lavinmq.client._engine": "cext/client.pyx",
    "lavinmq.spark._arrow": "cext/arrow.pyx",
}
APART = "lavinmq.spark._arrow"
TRIAL = {
    "tests.support._matcher": "cext/matcher.pyx",
    "tests.support._trial": "cext/trial.pyx",
    "tests.support._trial_tls": "cext/trial_tls.pyx",
}
LIBRARIES = {
    "lavinmq._cluster": ["lz4"],
    "lavinmq._pcre": ["pcre2-8"],
    "lavinmq._tls": ["ssl", "crypto", "dl", "pthread"],
}
# What is linked statically must not be taken for, or by, another copy in the same process.
LINKED = {"lavinmq._tls": ["-Wl,--exclude-libs,ALL"]}
SUFFIXES = {".pyx", ".pxd"}

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    # None for a queue or a bytes argument is a TypeError, not a pointer into None.
    "allow_none_for_extension_args": False,
    "freethreading_compatible": True,
}

# As far as the compiler knows them: the last ones are for x86 and for ARM.
HARDENING = (
    "-fstack-protector-strong", "-fstack-clash-protection", "-fcf-protection=full",
    "-mbranch-protection=standard",
)  # fmt: skip
# What Debian's interpreter compiles with: an error there is one everywhere.
STRICT = ["-Wformat", "-Werror=format-security"]
# Some distributions define it in the compiler, to another value.
FORTIFY = ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
# Counters that stand side by side are put together for one addition of vectors: that takes more
# instructions than the two additions, for each message and queue.
ONE_BY_ONE = "-fno-tree-slp-vectorize"
LINK_HARDENING = ["-Wl,-z,relro,-z,now,-z,noexecstack"]

SANITIZERS = {
    "": [],
    "asan": ["-fsanitize=address"],
    # A misaligned access would be one of ours: the wire is read through memcpy.
    "ubsan": ["-fsanitize=undefined", "-fno-sanitize-recover=undefined"],
    "tsan": ["-fsanitize=thread"],
    "fuzz": ["-fsanitize=address,fuzzer-no-link"],
}


def accepted_by_compiler(flag: str) -> bool:
    """Say whether the C compiler knows ``flag``; it differs by processor and compiler."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    command = [*compiler, flag, "-Werror", "-x", "c", "-E", os.devnull]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def compile_flags(debug: bool) -> list[str]:
    """Return the flags of one build; frame pointers stay, so that profilers see every call."""
    if debug:
        return ["-O1", "-g", "-fno-omit-frame-pointer", *STRICT]
    flags = ["-O3", "-g1", "-fno-omit-frame-pointer", *STRICT, *FORTIFY]
    wanted = ("-mno-omit-leaf-frame-pointer", ONE_BY_ONE, *HARDENING)
    return [*flags, *(flag for flag in wanted if accepted_by_compiler(flag))]


def named() -> list[str]:
    """The modules of the distribution whose sources these are: each has its stub beside it. A wheel
    of the broker that is made from a checkout leaves out what is apart from it."""
    there = [name for name in MODULES if Path(*name.split(".")).with_suffix(".pyi").exists()]
    is_wheel_of_broker = "bdist_wheel" in sys.argv and len(there) > 1
    return [name for name in there if name != APART or not is_wheel_of_broker]


def extensions(debug: bool, sanitizer: str, trial: bool = False) -> list[Extension]:
    """Return the cythonized modules of the release or the developer build, or those of tests."""
    # What fuzzing links against is loaded before Python.
    linked = [] if sanitizer == "fuzz" else SANITIZERS[sanitizer]
    # Neither included files nor this one with its flags are sources: without `depends` a change in
    # one goes unseen.
    parts = (path for path in Path("cext").rglob("*") if path.suffix in SUFFIXES)
    depends = sorted(["setup.py", *map(str, parts)])
    wanted = TRIAL if trial else {name: MODULES[name] for name in named()}
    modules = [
        Extension(
            name,
            [source],
            include_dirs=["cext"],
            depends=depends,
            define_macros=[("LMQ_DEBUG", "1")] if debug else [],
            extra_compile_args=compile_flags(debug) + SANITIZERS[sanitizer],
            extra_link_args=[
                *(linked if debug or sanitizer else LINK_HARDENING),
                *LINKED.get(name, ()),
            ],
            libraries=["m", *LIBRARIES.get(name, ())],
        )
        for name, source in wanted.items()
    ]
    for module in modules:
        if module.name.endswith("._trial"):
            module.define_macros = [("LMQ_DEBUG", "1")]
            module.extra_compile_args = ["-O0", "-g", *SANITIZERS[sanitizer]]
    # Cython does not see that directives changed, hence one directory for each kind of build.
    generated = Path("build", "cython-debug" if debug else "cython")
    built: list[Extension] = cythonize(
        modules,
        include_path=["cext"],
        compiler_directives={**DIRECTIVES, "boundscheck": debug},
        build_dir=str(generated),
        annotate=not trial,
        nthreads=min(len(MODULES), os.cpu_count() or 1),
    )
    if not debug:
        leave_pages(generated / "cext", Path("build", "annotate"))
    return built


def leave_pages(generated: Path, annotated: Path) -> None:
    """Have the annotated sources in a directory, those of today: one that has not changed is not
    touched, for somebody may be reading it."""
    # Cython leaves the pages of files that have gone.
    found = (path.relative_to(generated) for path in generated.rglob("*.html"))
    pages = {page for page in found if Path("cext", page).with_suffix(".pyx").exists()}
    for path in annotated.rglob("*.html"):
        if path.relative_to(annotated) not in pages:
            path.unlink()
    for page in pages:
        new, old = generated / page, annotated / page
        if not old.exists() or old.stat().st_mtime != new.stat().st_mtime:
            old.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(new, old)


if __name__ == "__main__":
    is_debug = os.environ.get("LAVINMQ_DEBUG") == "1"
    sanitizer = os.environ.get("LAVINMQ_SANITIZE", "")
    is_trial = os.environ.get("LAVINMQ_TRIAL") == "1"
    is_in_place = os.environ.get("LAVINMQ_IN_PLACE") == "1"
    setup(ext_modules=[] if is_in_place else extensions(is_debug, sanitizer, is_trial))

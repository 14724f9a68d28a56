"""Makes the tables of prepared.py: imports modules, starts a broker, and notes what that compiles.

build.py feeds it to an executable that differs from the final one in nothing else:

    recorder MODULE... < record.py > the byte code of the module `prepared_data`
"""

import _sre
import marshal
import sys

import finder

code, patterns = {}, {}
make_pattern = _sre.compile
made_of = []


def run(text, variables, names=None):
    """Do what `exec` does."""
    code[text] = marshal.dumps(compile(text, "<string>", "exec"))
    exec(text, variables, names)


def evaluate(text, variables):
    """Do what `eval` does."""
    code[text] = marshal.dumps(compile(text, "<string>", "eval"))
    return eval(text, variables)


def compiler(compile_pattern):
    """Return what makes a pattern and notes what of."""

    def pattern(text, flags=0):
        made = compile_pattern(text, flags)
        _, state, steps, *groups = made_of.pop()
        # Some of these numbers have names, which byte code cannot hold.
        patterns[text, flags] = marshal.dumps((int(state), [*map(int, steps)], *groups))
        return made

    return pattern


def note_arguments(*given):
    """Make a pattern from its compiled form, which it does not show afterwards."""
    made_of.append(given)
    return make_pattern(*given)


_sre.compile = note_arguments
sys.modules["prepared"] = sys.modules["__main__"]
finder.install()
for name in sys.argv[1:]:
    __import__(name)

import tempfile  # noqa: E402 - nothing that compiles may come before all is in place

import lavinmq  # noqa: E402

with tempfile.TemporaryDirectory() as directory:
    lavinmq.run(control_unix_path=f"{directory}/control.sock").stop()
text = f"CODE = {code!r}\nPATTERNS = {patterns!r}\n"
sys.stdout.buffer.write(marshal.dumps(compile(text, "prepared_data.py", "exec")))
sys.stdout.flush()

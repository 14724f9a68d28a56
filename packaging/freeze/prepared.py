"""What imports compile, compiled when the executable was built: functions and regular expressions.

A dataclass and a named tuple write a text for each of their functions and compile it, and so is
each regular expression of a module, whenever it is imported: a fifth of the time of a start. In
the executable the standard library calls these functions instead (contents.py); record.py makes
the tables. What is not in them is compiled as ever.
"""

import marshal
from _sre import compile as make_pattern

from prepared_data import CODE, PATTERNS


def run(text, variables, names=None):
    """Do what `exec` does."""
    exec(_code(text), variables, names)


def evaluate(text, variables):
    """Do what `eval` does."""
    return eval(_code(text), variables)


def _code(text):
    # Most are asked for once; what has been used need not be held for as long as the broker runs.
    code = CODE.pop(text, None)
    return text if code is None else marshal.loads(code)


def compiler(compile_pattern):
    """Return what makes a pattern; the function given makes those that are not in the table."""

    def pattern(text, flags=0):
        made = PATTERNS.pop((text, flags), None)
        if made is None:
            return compile_pattern(text, flags)
        return make_pattern(text, *marshal.loads(made))

    return pattern

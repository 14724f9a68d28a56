"""What the interpreter does to show the compiler which of its code is used most.

Run by interpreter.py with the interpreter that counts. Tests are taken from those that CPython
names for this purpose: those of what a broker does. Some fail for want of modules that only tests
need; that is no concern of ours, so the exit code is 0.
"""

import subprocess
import sys

# Not test_socket: it waits for ever on some virtual machines.
TESTS = """
    test_array test_base64 test_binascii test_bisect test_bytes test_codecs test_collections
    test_coroutines test_dataclasses test_datetime test_descr test_dict test_enum test_exceptions
    test_float test_functools test_generators test_hashlib test_heapq test_int test_itertools
    test_json test_list test_long test_math test_operator test_ordered_dict test_pickle test_re
    test_set test_str test_struct test_threading test_time test_tuple test_unicode test_weakref
""".split()  # noqa: SIM905 - a list of this length is easier to read so

command = [sys.executable, "-m", "test", "--pgo", "--timeout=300", *TESTS]
subprocess.run(command, check=False)

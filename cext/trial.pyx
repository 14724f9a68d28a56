# Trial: the umbrella of what only tests use: the core once more, and beside it what the broker
# never makes. Compiled for tests (make trial), never shipped.
include "core.pyx"
include "trial/lines.pyx"

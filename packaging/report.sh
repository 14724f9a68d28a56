#!/usr/bin/env bash
# Builds, tests and measures on the machine it runs on, and writes report-<architecture>.md about it.
# For processors that nobody of us has at hand: run it in a clone, send the report.
#
#   packaging/report.sh [--quick]      --quick: two seconds and one repetition for each row
#
# It needs what `make test` and `make bench` need, and perf (linux-perf) with the right to record.
set -uo pipefail
cd "$(dirname "$0")/.."

report=report-$(uname -m).md
row_options=()
[ "${1:-}" != --quick ] || row_options=(--seconds 2 --reps 1)
failed=0

section() { printf '\n## %s\n\n' "$1" >>"$report"; }
# Runs a command into the report, the end of what it says, and notes whether it failed.
part() {
    local title=$1 lines=$2 log
    shift 2
    log=$(mktemp)
    section "$title"
    echo "$title ..." >&2
    if "$@" >"$log" 2>&1; then echo "It succeeded:" >>"$report"; else
        echo "**It failed** ($?):" >>"$report"
        failed=1
    fi
    { printf '\n```text\n'; tail -n "$lines" "$log"; printf '```\n'; } >>"$report"
    rm -f "$log"
}

# In a shell of its own, so that what ends the broker runs once.
symbols() (
    data=$(mktemp -d)
    .venv/bin/lavinmq -D "$data/d" -p 5699 --http-port -1 --metrics-http-port -1 --mqtt-port -1 \
        --control-unix-path "$data/control.sock" >"$data/log" 2>&1 &
    broker=$!
    trap 'kill "$broker" 2>/dev/null; rm -rf "$data"' EXIT
    for _ in $(seq 100); do
        grep -q "Finished startup" "$data/log" && break
        sleep 0.1
    done
    .venv/bin/lavinmqperf throughput -z 8 --uri amqp://guest:guest@127.0.0.1:5699 >"$data/load" 2>&1 &
    load=$!
    sleep 2
    perf record -q -g -p "$broker" -o "$data/perf" -- sleep 4 || exit 1
    wait "$load"
    cat "$data/load"
    perf report -i "$data/perf" --no-children --stdio -g none 2>/dev/null \
        | grep -v '^#' | grep -v '^$' | head -n 25
    # Our compiled functions have to be named, or profiles are worth nothing.
    perf report -i "$data/perf" --no-children --stdio -g none 2>/dev/null | grep __pyx_f_ >/dev/null
)

{
    echo "# Report of $(uname -m)"
    echo
    echo "$(date -u +%Y-%m-%dT%H:%M:%SZ), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
} >"$report"
section "Machine"
{ printf '```text\n'; uname -srm; lscpu; free -h; ldd --version | head -n 1; printf '```\n'; } >>"$report" 2>&1
part "Build" 5 make build
part "Checks of the compiled code" 5 make lint-hot
part "Tests" 40 make test
part "Crash tests" 10 env CRASH_TESTS_LONG=1 .venv/bin/python -m pytest -q tests/crash -k "sigkill or power"
part "Benchmark" 60 .venv/bin/python perf/bench.py --brokers ours,null "${row_options[@]}" \
    --out build/report.json --report build/report-bench.md
[ ! -e build/report-bench.md ] || { section "Figures"; sed -n '/^## Targets/,/^## How/{/^## How/!p}' build/report-bench.md >>"$report"; }
part "How long one client waits for another" 90 make bench-hostile
part "What perf names" 45 symbols

echo "wrote $report" >&2
exit $failed

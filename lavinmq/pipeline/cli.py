"""`lavinmq-pipeline <command> [options]`: finds the job, runs it, prints what it found.

Turns errors into one line on standard error and an exit status: 0 done, 1 failed, 2 wrong usage,
3 data loss refused, 130 interrupted. With --json there is exactly one line on standard output, also
for an error. Only --debug shows where in the program an error comes from.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lavinmq import __version__
from lavinmq.pipeline.arguments import job_parser
from lavinmq.pipeline.errors import FAILED, UsageError
from lavinmq.pipeline.failures import explain
from lavinmq.pipeline.job import Job, Result, Run, find_jobs
from lavinmq.pipeline.progress import make_progress

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `lavinmq-pipeline`; returns the exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _main(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader has gone, `head` for one; the interpreter must not try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _main(args: list[str]) -> int:
    jobs = find_jobs()
    name = args.pop(0) if args else ""
    match name:
        case "":
            print(usage(jobs), file=sys.stderr)
            return UsageError.status
        case "-h" | "--help":
            print(usage(jobs))
        case "-v" | "--version":
            print(__version__)
        case "path":
            print(script_path())
        case _ if name in jobs:
            return _run_job(jobs[name], args)
        case _:
            print(f"Error: unknown command: {name}", file=sys.stderr)
            print("See lavinmq-pipeline --help", file=sys.stderr)
            return UsageError.status
    return 0


def usage(jobs: Mapping[str, Job]) -> str:
    """Return the help of the program as a whole."""
    width = max(map(len, (*jobs, "path"))) + 2
    lines = ["Usage: lavinmq-pipeline <command> [options]", "", "Commands:"]
    lines += [f"  {job.name:{width}}{job.help}" for job in jobs.values()]
    lines += [f"  {'path':{width}}Print the file to give to spark-submit", ""]
    lines.append("`lavinmq-pipeline <command> --help` lists the options.")
    lines.append("On a cluster: spark-submit $(lavinmq-pipeline path) <command> [options]")
    lines.append("  -h, --help      show this help and exit")
    lines.append("  -v, --version   show the version and exit")
    return "\n".join(lines)


def script_path() -> Path:
    """Return the file that `spark-submit` runs."""
    return Path(__file__).with_name("__main__.py")


def _run_job(job: Job, args: list[str]) -> int:
    is_json = "--json" in args
    is_debug = "--debug" in args
    try:
        options = job_parser(job).parse_args(args)
    except SystemExit:  # argparse has printed the help
        return 0
    except UsageError as error:
        return _failed(job, error, is_json)
    try:
        result = _result(job, options)
    except Exception as error:  # noqa: BLE001 - the boundary: everything becomes one line
        if is_debug:
            import traceback

            traceback.print_exc()
        return _failed(job, error, is_json)
    if is_json:
        print(json.dumps({"command": job.name, "status": result.status, **result.values}))
    else:
        print(result.text or "\n".join(f"{key}: {value}" for key, value in result.values.items()))
    return result.status


def _result(job: Job, options: argparse.Namespace) -> Result:
    with make_progress(sys.stderr, is_silent=options.json) as progress:
        run = Run(job, options, progress)
        try:
            return job.run(run)
        finally:
            run.close()


def _failed(job: Job, error: Exception, is_json: bool) -> int:
    failure = explain(error)
    print(f"Error: {failure}", file=sys.stderr)
    if isinstance(failure, UsageError):
        print(f"See lavinmq-pipeline {job.name} --help", file=sys.stderr)
    if is_json:
        outcome = {"command": job.name, "status": failure.status, "error": str(failure)}
        print(json.dumps(outcome))
    return failure.status


if __name__ == "__main__":
    sys.exit(main())

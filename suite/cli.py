"""The suite from the command line; `make` calls it.

    python -m suite report   [--profile small] [--corpus FOLDER]
    python -m suite plan     [--profile small] [--corpus FOLDER] [--gpu NAME] [--json]
    python -m suite notebook NAME [--profile small] [--corpus FOLDER]
    python -m suite compare  PATTERN [--profile small] [--corpus FOLDER] [-p NAME VALUE]...
    python -m suite corpus   [--profile small] [--corpus FOLDER]

With `--engine ray` runs are trained on the machines of a Ray cluster (docs/many_machines.md).

Exit status: 0 done, 1 something failed (it is named), 2 wrong input, 130 interrupted. Everything heavy is imported where
it is needed, since a report that is up to date must say so at once.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib import paths
from lib.errors import SuiteError, one_of, require
from suite.run import stamps

if TYPE_CHECKING:
    from lib.data import Corpus
    from suite.run.places import Places
    from suite.settings.profiles import Profile


def where(options: argparse.Namespace) -> Places | None:
    """Where runs are trained; None: on this machine, with as many workers as the profile says."""
    given = {"--run-cpus": options.run_cpus, "--run-gpus": options.run_gpus}
    if options.engine == "ray":
        from suite.run.ray.engine import Ray
        return Ray(options.run_cpus, options.run_gpus)
    for name, value in given.items():
        require(value is None, name, value, "it is for --engine ray; on this machine every run has one thread, or the GPU")
    return None


def opened(options: argparse.Namespace) -> tuple[Profile, Corpus]:
    """Profile and corpus; the corpus is built if it is not there."""
    from data_prep.build import corpus
    from suite.settings.profiles import load
    profile = load(options.profile, options.corpus)
    return profile, corpus(profile.corpus, lambda line: print(f"corpus: {line}", file=sys.stderr, flush=True))


def report(options: argparse.Namespace) -> int:
    """Train, execute and write the page, as far as anything changed."""
    from suite.plan.outlook import notebooks
    return up_to_date(options, notebooks())


def notebook(options: argparse.Namespace) -> int:
    """One notebook with its runs; the page shows the others as they are."""
    from suite.plan.outlook import notebooks
    return up_to_date(options, [one_of(options.name.removesuffix(".ipynb"), notebooks(), "notebook")])


def up_to_date(options: argparse.Namespace, names: list[str]) -> int:
    started, places = time.monotonic(), where(options)
    profile, corpus = opened(options)
    from lib.text import duration
    from suite.pipeline import Pipeline
    from suite.settings.progress import display
    pipeline = Pipeline(profile, corpus, display(), places)
    page = paths.report(profile.name) / "index.html"
    if all(map(pipeline.fresh, names)) and (len(names) < len(pipeline.status) or page_is_fresh(pipeline)):
        print(f"nothing to do: {', '.join(names)} up to date; {shown(page)}")
        return 0
    failed = pipeline.run(names)
    for name in failed:
        print(f"failed: {name}\n{indented(pipeline.status[name].error)}", file=sys.stderr)
    if pipeline.page_error:
        print(pipeline.page_error, file=sys.stderr)
    else:
        print(f"{shown(page)} ({duration(time.monotonic() - started)})")
    return 1 if failed or pipeline.page_error else 0


def page_is_fresh(pipeline: Any) -> bool:
    return stamps.page_is_fresh(pipeline.profile.name, pipeline.page_stamp())


def shown(path: Path) -> str:
    """A path as one types it: relative to here if it is below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def plan(options: argparse.Namespace) -> int:
    """What the report would train, and how long that takes; nothing is built or trained."""
    from data_prep.build import existing
    from suite.plan import gpus
    from suite.plan import outlook as planning
    from suite.settings.profiles import load
    profile = load(options.profile, options.corpus)
    asked = gpus.key(options.gpu) if options.gpu else None                # a wrong name is said before anything is counted
    plans = [planning.planned(profile, name) for name in planning.notebooks()]
    print(planning.outlook(plans, profile, existing(profile.corpus), asked, as_json=options.json))
    return 0


def compare(options: argparse.Namespace) -> int:
    """One pattern beside others at equal pairs."""
    from lib.patterns import pattern_class
    from suite.run import compare as comparison
    pattern_class(options.pattern)                         # a wrong name is said before a corpus is built
    places = where(options)
    profile, corpus = opened(options)
    print(comparison.compare(options.pattern, dict(options.parameter), profile, corpus, places))
    return 0


def corpus(options: argparse.Namespace) -> int:
    """Build a profile's text, or open it when it is there, and say what is in it."""
    from data_prep.build import table
    _, built = opened(options)
    print("\n".join([*built.manifest["notes"], table(built)]))
    print(f"{built.manifest['pieces']} pieces; fingerprint {built.fingerprint}; {built.path}")
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m suite", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for function, text in ((report, "bring the report up to date"), (plan, "what a report would train, and for how long"),
                           (notebook, "one notebook, with the runs that it needs"),
                           (compare, "a pattern beside dense, local and the best of each family, at equal pairs"),
                           (corpus, "the text of a profile alone")):
        command = commands.add_parser(function.__name__, help=text, description=function.__doc__)
        command.set_defaults(function=function)
        command.add_argument("--profile", default="small", help="a name in profiles/ (default: small)")
        command.add_argument("--corpus", default="", metavar="FOLDER", help="a person's own text, one subfolder a domain")
        if function not in (plan, corpus):
            command.add_argument("--engine", choices=["local", "ray"], default="local",
                                 help="ray: train on the machines of RAY_ADDRESS")
            command.add_argument("--run-cpus", type=int, metavar="K", help="CPUs of each run with --engine ray (default: 1)")
            command.add_argument("--run-gpus", type=float, metavar="G",
                                 help="GPUs of each run with --engine ray (default: 1 if the cluster has any)")
        if function is plan:
            command.add_argument("--json", action="store_true", help="the same as JSON")
            command.add_argument("--gpu", default="", help="hours on this GPU, for instance h100 (default: the one here)")
        elif function is notebook:
            command.add_argument("name", help="for instance 03_extrapolation")
        elif function is compare:
            command.add_argument("pattern", help="a name in lib/patterns")
            command.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
                                 help="a parameter of the pattern, for instance -p window 8")
    return parser


def main(argv: list[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    if options.corpus:
        options.corpus = str(Path(options.corpus).expanduser().resolve())
    try:
        return options.function(options)
    except SuiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: what is finished is kept, and the next start goes on from the last checkpoints", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

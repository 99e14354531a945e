"""The command line of the suite: `python -m suite COMMAND --help`; `make` calls it.

Exit status: 0 done, 1 something failed (it is named), 2 wrong input or surroundings, 130 interrupted. Everything heavy
is imported where it is needed, since a report that is up to date must say so at once.
"""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from lib import paths
from lib.errors import SuiteError, one_of, require
from suite.settings import entrance, profiles
from suite.settings.parameters import notebook_names
from suite.settings.privacy import require_private_caches

if TYPE_CHECKING:
    from suite.run.worker import Hosts

# Torch's idle threads sleep; awake, they would take a core from what is measured next. Read when a process starts.
BENCH = {"OMP_WAIT_POLICY": "PASSIVE"}

app = typer.Typer(help="The suite from the command line.", add_completion=False, rich_markup_mode=None)
runs = typer.Typer(help="list, show and check the runs of a profile", rich_markup_mode=None)
app.add_typer(runs, name="runs")


ProfileName = Annotated[str, Option("--profile", help="a name in profiles/")]
Folder = Annotated[str, Option("--corpus", metavar="FOLDER", help="a person's own text, one subfolder per domain")]
Engine = Literal["local", "ray"]
Where = Annotated[Engine, Option("--engine", help="ray: train on the machines of RAY_ADDRESS (docs/many_machines.md)")]
Cpus = Annotated[int | None, Option("--run-cpus", metavar="K", help="CPUs of each run with --engine ray (default: 1)")]
Gpus = Annotated[float | None, Option("--run-gpus", metavar="G",
                                      help="GPUs of each run with --engine ray (default: 1 if the cluster has any)")]


@app.command()
def report(profile: ProfileName = "small", corpus: Folder = "", engine: Where = "local", run_cpus: Cpus = None,
           run_gpus: Gpus = None) -> int:
    """Train, execute the notebooks and write the page, as far as anything changed. Profile evidence trains nothing: its
    runs ship with the suite."""
    return up_to_date(notebook_names(), profile, corpus, engine, run_cpus, run_gpus)


@app.command("evidence")
def train_evidence(engine: Where = "local", run_cpus: Cpus = None, run_gpus: Gpus = None) -> int:
    """Train what evidence/ lacks of its profile, write it there, and bring the report up to date."""
    from suite.run import evidence
    return up_to_date(notebook_names(), evidence.PROFILE, "", engine, run_cpus, run_gpus, trains=True)


@app.command()
def plan(profile: ProfileName = "small", corpus: Folder = "",
         gpu: Annotated[str, Option(help="hours on this GPU, for instance h100 (default: the one here)")] = "") -> None:
    """What a report would train, and for how long; nothing is built or trained."""
    from data_prep.build import existing
    from suite.plan import gpus, outlook
    loaded = profiles.load(profile, corpus)
    asked = gpus.key(gpu) if gpu else None                 # a wrong name is said before anything is counted
    plans = [outlook.planned(loaded, name) for name in notebook_names()]
    print(outlook.outlook(plans, loaded, existing(loaded.corpus), asked or outlook.default_gpu(plans)).text())


@app.command()
def notebook(name: Annotated[str, Argument(help="for instance 03_extrapolation")], profile: ProfileName = "small",
             corpus: Folder = "", engine: Where = "local", run_cpus: Cpus = None, run_gpus: Gpus = None) -> int:
    """One notebook with its runs; the page shows the others as they are."""
    names = [one_of(name.removesuffix(".ipynb"), notebook_names(), "notebook")]
    return up_to_date(names, profile, corpus, engine, run_cpus, run_gpus)


@app.command()
def compare(pattern: Annotated[str, Argument(help="a name in lib/patterns")],
            parameter: Annotated[list[str], Option("-p", "--parameter", metavar="NAME=VALUE",
                                                   help="a parameter of the pattern, for instance -p window=8")] = [],
            profile: ProfileName = "small", corpus: Folder = "", engine: Where = "local", run_cpus: Cpus = None,
            run_gpus: Gpus = None) -> None:
    """A pattern beside dense, local and the best of each family, at equal pairs."""
    from suite.run import compare as comparison
    for text in parameter:
        require("=" in text, "--parameter", text, "NAME=VALUE, for instance window=8")
    given, hosts = dict(text.split("=", 1) for text in parameter), hosts_of(engine, run_cpus, run_gpus)
    comparison.candidate_of(pattern, given, profiles.load(profile, corpus))     # a wrong one is said before any work
    print(comparison.compare(pattern, given, *profiles.opened(profile, corpus), hosts))


@app.command("open")
def open_report(profile: ProfileName = "small") -> None:
    """The report in a browser; while it is made, what is being done."""
    import webbrowser
    pages = [paths.report(profile) / name for name in ("index.html", "progress.html")]
    there = next((page for page in pages if page.exists()), None)
    if there is None:
        raise SuiteError(f"no report of profile {profile!r} yet: make report PROFILE={profile}")
    if not webbrowser.open(there.as_uri()):
        print(f"no browser found; open {there}")


@app.command()
def figures(profile: ProfileName = "small", corpus: Folder = "") -> None:
    """Every figure of a finished report as PDF and SVG, every table as LaTeX and CSV."""
    from suite.paper import export
    print(export(profile, corpus, lambda line: print(line, file=sys.stderr, flush=True)))


@app.command("corpus")
def build_corpus(profile: ProfileName = "small", corpus: Folder = "") -> None:
    """Build a profile's text, or open it when it is there, and say what is in it."""
    from data_prep.build import table
    _, text = profiles.opened(profile, corpus)
    about = f"{text.manifest['pieces']} pieces; fingerprint {text.fingerprint}; {text.path}"
    print(table(text), about, *text.manifest["notes"], sep="\n")


@app.command()
def verify(run: Annotated[str, Argument(help="fingerprint of a run, or its first digits (default: any run)")] = "",
           every: Annotated[bool, Option("--all", help="every run")] = False, profile: ProfileName = "small",
           corpus: Folder = "") -> int:
    """A stored result computed again from its run's weights; status 1 if a number differs."""
    from suite.run import browse
    return browse.verify_runs(profile, corpus, run, every)


@runs.command("list")
def list_runs(profile: ProfileName = "small", pattern: Annotated[str, Option(help="only runs of this pattern")] = "",
              status: Literal["", "running", "done", "failed"] = "") -> None:
    """One line per run."""
    from suite.run import browse
    print(browse.listed(browse.Database(profile, create=False), pattern, status))


@runs.command("show")
def show_run(run: Annotated[str, Argument(help="fingerprint of the run, or its first digits")],
             profile: ProfileName = "small") -> None:
    """Configuration, circumstances and metrics of one run."""
    from suite.run import browse
    print(browse.show(browse.Database(profile, create=False), run))


@runs.command("check")
def check_runs(profile: ProfileName = "small") -> int:
    """Is all that a profile has as it was written? What is damaged is set aside; status 1 if anything is."""
    from suite.run import damage
    return damage.check(profile)


@app.command()
def bench(quick: Annotated[bool, Option("--quick", help="fewer lengths and rounds, in a file apart")] = False) -> None:
    """Time and memory of attention and of a training step: some minutes, alone on the machine."""
    if BENCH.items() - os.environ.items():
        command = [sys.executable, "-m", "suite", "bench", *["--quick"] * quick]
        os.execve(sys.executable, command, {**os.environ, **BENCH})
    entrance.require_outputs()
    from suite.bench import run
    run(quick)


@app.command("gpu-check", context_settings={"allow_extra_args": True, "ignore_unknown_options": True,
                                            "help_option_names": []})
def gpu_check(context: typer.Context) -> int:
    """Are the GPU kernels right on this machine, and how fast? The options are those of suite.bench.gpu."""
    entrance.require_outputs()
    from suite.bench.gpu.__main__ import main
    return main(context.args)


@app.command(hidden=True)
def worker() -> None:
    """Trains what the engine says: JSON lines on standard input and output."""
    from suite.run.worker import main
    main()


@app.command(hidden=True)
def execute(notebook: Path, output: Path, parameters: str = "{}") -> int:
    """One notebook into one output; the last line printed says the error."""
    from suite.run.execute import main
    return main(notebook, output, parameters)


# What several commands do

def hosts_of(engine: Engine, cpus: int | None, gpus: float | None) -> "Hosts | None":
    """Where runs are trained; None: on this machine, with as many workers as the profile says."""
    if engine == "ray":
        from suite.run.ray_hosts import Ray
        return Ray(cpus, gpus)
    for name, value in {"--run-cpus": cpus, "--run-gpus": gpus}.items():
        require(value is None, name, value, "it is for --engine ray; here every run has one thread, or the GPU")
    return None


def up_to_date(names: list[str], profile: str, folder: str, *where: Any, trains: bool = False) -> int:
    """Bring these notebooks and the page up to date. trains: also where runs ship with the suite."""
    from data_prep.build import existing, unread
    from lib.text import duration
    from suite.pipeline import Pipeline
    from suite.plan.outlook import plans_of
    from suite.report.progress import WithPage
    from suite.run.evidence import shipped
    from suite.settings.progress import display
    started, hosts, here, shown = time.monotonic(), hosts_of(*where), Path.cwd(), WithPage(display(), profile)
    entrance.show_warnings(shown.note)
    loaded = profiles.load(profile, folder)
    if existing(loaded.corpus) is None:                    # what is wrong is said before hours of building
        entrance.require_outputs()
        plans_of(loaded, names, lambda name, error: None)
    corpus = profiles.corpus_of(loaded)
    pipeline = Pipeline(loaded, corpus, shown, hosts, trains or not shipped(profile, folder))
    page = paths.report(profile) / "index.html"
    page = page.relative_to(here) if page.is_relative_to(here) else page
    if all(map(pipeline.fresh, names)) and pipeline.page_shows(names):
        print(f"nothing to do: {', '.join(names)} up to date; {page}", *unread(pipeline.corpus), sep="\n")
        return 0
    failed = pipeline.run(names)
    shown.write(done=True)
    for name in failed:
        print(f"failed: {name}", *pipeline.status[name].error.splitlines(), sep="\n    ", file=sys.stderr)
    if pipeline.page_error:
        print(pipeline.page_error, file=sys.stderr)
    else:
        print(f"{page} ({duration(time.monotonic() - started)})")
    for note in unread(pipeline.corpus):
        print(note)
    return 1 if failed or pipeline.page_error else 0


def main(argv: list[str] | None = None) -> int:
    os.umask(os.umask(0o077) | 0o002)                      # nothing that is written here can be changed by everybody
    try:
        entrance.prepare(sys.argv[1:] if argv is None else argv)
        require_private_caches()
        status = typer.main.get_command(app)(argv, prog_name="python -m suite", standalone_mode=False) or 0
        sys.stdout.flush()                                 # else a full disk would be heard of when Python ends
    except (SuiteError, typer.TyperException) as error:
        print(f"error: {error.format_message() if isinstance(error, typer.TyperException) else error}", file=sys.stderr)
        return 2
    except BrokenPipeError:                                # the reader has enough, as in `| head -1`
        entrance.drop_output()
        return 1
    except Exception as error:
        if not (said := entrance.outside(error)):
            raise
        entrance.drop_output()
        print(f"error: {said}", file=sys.stderr)
        return 2
    if status == 130:                                      # as typer has it
        print("interrupted: what is finished is kept, and the next start goes on from the last checkpoints",
              file=sys.stderr)
    return status

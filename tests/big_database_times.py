"""How long the suite's reading takes at full scale: python tests/big_database_times.py FOLDER [RUNS] [ROWS A RUN]."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time


@contextlib.contextmanager
def timed(what):
    begin = time.perf_counter()
    yield
    print(f"{what:<60}{time.perf_counter() - begin:10.3f} s", flush=True)


def main():
    folder, runs, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.environ["SUITE_OUTPUTS"] = folder
    sys.path[:0] = [os.getcwd(), os.path.dirname(__file__)]
    from big_database import EVALUATIONS, fill, jobs

    from lib import paths
    from suite.plan import estimate
    from suite.run import browse as runs_module
    from suite.run.database import Database
    with timed("the plan's jobs"):
        planned = jobs(runs)
    if not paths.database("big").exists():
        database = Database("big")
        with timed(f"filling: {runs} runs, {runs * rows} metric rows"):
            fill(database, planned, rows)
        database.close()
    print(f"{paths.database('big').stat().st_size / 2**20:.0f} MiB", database_rows())
    with timed("opening"):
        database = Database("big")
    with timed("fingerprints of all runs"):
        for job in planned:
            database.fingerprint(job.run)
    with timed("missing() of the plan"):
        assert database.missing(planned) == []
    with timed("evaluated(), 1000 runs"):
        for job in planned[:1000]:
            database.evaluated(database.fingerprint(job.run))
    with timed("metrics(job), 100 jobs"):
        for job in planned[::len(planned) // 100]:
            frame = database.metrics(job)
    print(len(frame), "rows each")
    with timed("array(job), 1000"):
        for job in planned[:1000]:
            database.array(job, EVALUATIONS[0], "right")
    with timed("Estimator.from_history()"):
        known = estimate.Estimator.from_history()
    with timed("its rate of 1000 runs"):
        for job in planned[:1000]:
            known.training(job.run)
    with timed("its evaluations of 1000 runs"):
        for job in planned[:1000]:
            for evaluation in EVALUATIONS:
                known.evaluation(job.run, evaluation)
    for command in (["list"], ["list", "--pattern", "local"], ["show", database.fingerprint(planned[-1].run)[:8]]):
        with timed(f"runs {' '.join(command)}"), contextlib.redirect_stdout(io.StringIO()) as out:
            assert runs_module.main([*command, "--profile", "big"]) == 0
        print(len(out.getvalue().splitlines()), "lines")
    with timed("facts_of()"):
        runs_module.facts_of("big")


def database_rows():
    from suite.run.database import Database
    database = Database("big")
    found = {name: database.connection.execute(f"select count(*) from {name}").fetchone()[0]
             for name in ("runs", "evaluations", "metrics", "arrays")}
    database.close()
    return found


if __name__ == "__main__":
    main()

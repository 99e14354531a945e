"""A worker that trains in earnest, but slowly and with a checkpoint at every step: there is time to kill its machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lib.train_run import train_run  # noqa: E402
from suite.run import \
    worker  # noqa: E402  (the worker is started by this file's path)
from suite.tasks import make_source  # noqa: E402

SECONDS = 0.05                # a step, at least


class Slow(worker.Real):
    def train(self, run, corpus, folder, progress):
        from lib import checkpoint, training
        state, training.PROGRESS_SECONDS = checkpoint.load_checkpoint(folder, run), 0.0
        print(f"from step {state['state']['step'] if state else 0}", flush=True)

        def slowly(report):
            time.sleep(SECONDS)
            progress(report)
        source = make_source(run.data, corpus)
        result = train_run(run, source, corpus, folder, slowly, self.device, checkpoint_every=0.0)
        return result.model, result, sum(p.numel() for p in result.model.parameters())


if __name__ == "__main__":
    worker.main(Slow)

"""A worker that really trains, but slowly and with a checkpoint at every step: there is time to kill its machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lib import checkpoint, training  # noqa: E402  (the worker is started by this file's path)
from suite.run import worker  # noqa: E402

SECONDS = 0.05                # a step, at least


class Slow(worker.Worker):
    def train(self, run, corpus, folder, progress):
        state, training.PROGRESS_SECONDS = checkpoint.load_checkpoint(folder, run), 0.0
        print(f"from step {state['state']['step'] if state else 0}", flush=True)

        def slowly(report):
            time.sleep(SECONDS)
            progress(report)
        return super().train(run, corpus, folder, slowly, checkpoint_every=0.0)


if __name__ == "__main__":
    worker.main(Slow)

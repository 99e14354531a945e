"""Workers for the tests of the engine: training is quick and does what the run's data configuration says.

With the argument `slow` it is a real training, but slow and with a checkpoint at every step: there is time to kill its
machine.
"""

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402  (the worker is started by this file's path)

from lib import paths  # noqa: E402
from lib.files import write_atomically  # noqa: E402
from suite.evals import EvalResult, Metric  # noqa: E402
from suite.run import worker  # noqa: E402


def note(what: str) -> None:
    """One line, appended atomically: what the tests count; also in the run's log, which comes back from elsewhere."""
    print(what, flush=True)
    with open(paths.outputs() / "events.txt", "a") as file:
        file.write(what + "\n")


class Fake(worker.Worker):
    """Takes `pause` seconds a step, writes the step into its checkpoint, misbehaves half way as `behaviour` says."""

    def best_device(self):
        return "cpu"

    def corpus(self, path):
        return SimpleNamespace(path=path, fingerprint="corpus") if path else None

    def train(self, run, corpus, folder, progress):
        data, checkpoint, weights = dict(run.data.parameters), folder / "checkpoint.pt", folder / "model.safetensors"
        first, trained = int(checkpoint.read_text()) if checkpoint.exists() else 0, weights.exists()
        note(f"{'load' if trained else 'train'} {run.train.seed} from {first}")
        for step in range(first + 1, 0 if trained else run.train.steps + 1):
            time.sleep(data.get("pause", 0.0))
            write_atomically(checkpoint, str(step).encode())
            if step == first + 2:
                note(f"step 2 of {run.train.seed}")
            self.misbehave(data.get("behaviour", ""), first, 2 * step >= run.train.steps)
            progress({"step": step, "steps": run.train.steps, "loss": 1.0 / step, "tokens_per_s": 1000.0})
        if not trained:
            weights.write_text("weights")
            note(f"trained {run.train.seed}")
        model = SimpleNamespace(parameters=lambda: [SimpleNamespace(numel=lambda: 42)])
        metrics = [Metric("train_loss", 1.0 / run.train.steps, step=run.train.steps)]
        return SimpleNamespace(model=model, metrics=metrics, seconds=2.0, tokens_per_s=1000.0, peak_memory_mib=10.0,
                               spent={})

    def misbehave(self, behaviour: str, first: int, half_way: bool) -> None:
        if half_way and behaviour == "raise":
            raise ValueError("no such luck")
        if half_way and (behaviour == "die" or (behaviour == "die once" and first == 0)):
            print("about to be killed", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def evaluate(self, evaluation, model, run, corpus):
        note(f"evaluate {run.train.seed} {evaluation.name} {dict(evaluation.parameters)}")
        time.sleep(dict(run.data.parameters).get("linger", 0.0))
        value = float(dict(evaluation.parameters)["count"])
        if value in (0, 13):                               # the plan refuses 0
            raise ValueError("nothing to count")
        metrics = [Metric("accuracy", value, split="copying", length=8)]
        return EvalResult(metrics, {"right": np.arange(6.0).reshape(2, 3)})


class Slow(worker.Worker):
    def train(self, run, corpus, folder, progress):
        from lib import checkpoint, training
        state, training.PROGRESS_SECONDS = checkpoint.load_checkpoint(folder, run), 0.0
        print(f"from step {state['state']['step'] if state else 0}", flush=True)

        def slowly(report):
            time.sleep(0.05)
            progress(report)
        return super().train(run, corpus, folder, slowly, checkpoint_every=0.0)


if __name__ == "__main__":
    worker.main(Slow if sys.argv[1:] == ["slow"] else Fake)

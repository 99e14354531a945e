"""Every path of the suite. A notebook, a worker and `make` find the same files from whatever folder they start in."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
PROFILES = ROOT / "profiles"
PUBLISHED = ROOT / "suite" / "published"
EVIDENCE = ROOT / "evidence"


def named_by(variable: str) -> Path | None:
    """The folder that an environment variable names; a relative one lies in the repository, for every process alike."""
    return ROOT / os.path.expanduser(os.environ[variable]) if os.environ.get(variable) else None


def outputs() -> Path:
    """Folder of all that is generated; `SUITE_OUTPUTS` moves it (tests do)."""
    return named_by("SUITE_OUTPUTS") or ROOT / "outputs"


def profile_outputs(profile: str) -> Path:
    return outputs() / profile


def database(profile: str) -> Path:
    return profile_outputs(profile) / "runs.sqlite"


def run_folder(profile: str, fingerprint: str) -> Path:
    """Checkpoint, lock and log of one run."""
    return profile_outputs(profile) / "runs" / fingerprint


def results(profile: str) -> Path:
    return profile_outputs(profile) / "results"


def executed(profile: str) -> Path:
    return profile_outputs(profile) / "executed"


def report(profile: str) -> Path:
    return profile_outputs(profile) / "report"


def corpora() -> Path:
    """Token files; shared by the profiles, one folder a set of inputs."""
    return outputs() / "data"


def gpu_check() -> Path:
    """What `make gpu-check` measured last."""
    return outputs() / "gpu" / "gpu-check.json"

"""What the test files share: a folder for outputs, one tiny corpus, the plans of the notebooks, a small suite.

A session fixture is made once a process. What takes seconds is made once for all processes of pytest-xdist, in a folder
that they share, and is only read: a test that changes its files takes a copy.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this test, where all of the suite's paths lead meanwhile."""
    monkeypatch.setenv("SUITE_OUTPUTS", str(tmp_path))
    return tmp_path


@pytest.fixture
def three_threads():
    """PyTorch has three threads in this test; all others have one."""
    import torch
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this session that all its processes share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def tiny_corpus(shared: Path):
    """The offline corpus, 400 pieces and 20,000 tokens a domain. One process builds it: `build.corpus` takes a lock."""
    from data_prep.build import corpus
    from data_prep.config import CorpusConfig
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUITE_OUTPUTS", str(shared / "corpus"))
        return corpus(CorpusConfig(vocab=400, train_tokens=20_000, heldout_tokens=3_000))


@pytest.fixture(scope="session")
def plans() -> Callable:
    """`plans("01_window_sweep", "small", seeds=(1,))`: jobs, planned once a process."""
    from plans import planned
    return planned


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A small suite of its own notebooks, profile and experiments, whose runs a fake worker trains."""
    from fake_suite import House
    return House(tmp_path, monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def apart(shared: Path):
    """No test reads or writes the outputs of the person who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUITE_OUTPUTS", str(shared / "outputs"))
        yield


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of a made-up finished profile with its report. Only read: `site` is a copy to build from."""
    from report_site import WITH_ALL, Site
    with pytest.MonkeyPatch.context() as patch:
        made = Site(tmp_path_factory.mktemp("site") / "outputs", patch)
        made.fill()
        made.build(WITH_ALL, made.claims)
        return made.outputs


@pytest.fixture(scope="session")
def page(rendered: Path):
    """The report's pages as one tree."""
    from report_site import PROFILE, joined
    return joined(rendered / PROFILE / "report")


@pytest.fixture
def site(rendered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copy of the made-up profile, to change and to build again."""
    from report_site import Site
    return Site(Path(shutil.copytree(rendered, tmp_path / "outputs")), monkeypatch)


@pytest.fixture(scope="session")
def hub_copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small made-up data sets of the hub; it is only read."""
    from hub_fakes import make_hub
    return make_hub(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="session")
def hub_corpus(hub_copies: Path, shared: Path):
    """The corpus of `hub_fakes.CONFIG` from these copies."""
    from hub_fakes import CONFIG

    from data_prep.build import corpus
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUITE_HUB", str(hub_copies))
        patch.setenv("SUITE_OUTPUTS", str(shared / "hub"))
        return corpus(CONFIG)


@pytest.fixture
def hub_outputs(hub_copies: Path, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The copies are what SUITE_HUB names; returns the outputs of this test."""
    monkeypatch.setenv("SUITE_HUB", str(hub_copies))
    return outputs


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    """`small_run.RUN`, trained to its end without any interruption: folder and result. Both are only read."""
    from small_run import RUN, trained
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, trained(RUN, folder)

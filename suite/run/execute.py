"""One notebook, executed with papermill in a process of its own.

    python -m suite execute NOTEBOOK.ipynb OUTPUT.ipynb [--parameters JSON]

The result appears in one step: whole, or, when a cell failed, as far as it came and marked as failed. Parameters are
checked before anything starts. The kernel is this interpreter whatever kernels the user has installed. It is reached
over sockets in a folder of its own, so that executions side by side cannot take one another's ports.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import paths
from lib.files import unwritable
from suite.settings.entrance import INLINE
from suite.settings.parameters import KERNEL, checked, declared_in
from suite.settings.privacy import shareable

START_SECONDS = 120                    # for a kernel to answer, on a busy machine
ANSWER = "error of the execution: "    # in the output, before the error as JSON
PICTURES = ("image/png", "image/jpeg")


@dataclass(frozen=True)
class Execution:
    """How an execution ended; `error` is empty when every cell ran."""
    error: str
    seconds: float


class NotebookProcess:
    """An execution under way. It ends by itself when this process does, because then its standard input closes.
    `SuiteError` for wrong parameters, before anything starts: papermill would let some of them pass."""

    def __init__(self, notebook: Path, output: Path, parameters: Mapping[str, Any],
                 variables: Mapping[str, str] = {}) -> None:
        values = checked(declared_in(notebook), parameters, notebook.name).model_dump_json(exclude_unset=True)
        self.notebook, self.started = notebook, time.monotonic()
        self.said = tempfile.TemporaryFile("w+", errors="replace")
        # The suite can be imported, and figures are inline wherever the user's own setting would send them; no remarks
        # of a debugger. Torch's idle threads sleep: notebook 7 measures what has threads of its own.
        path = os.pathsep.join(filter(None, (str(paths.ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "MPLBACKEND": INLINE,
                       "PYDEVD_DISABLE_FILE_VALIDATION": "1", "OMP_WAIT_POLICY": "PASSIVE", **variables}
        command = [sys.executable, "-m", "suite", "execute", notebook, output, "--parameters", values]
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self.said, stderr=self.said, text=True,
                                      env=environment, cwd=paths.ROOT, start_new_session=True)

    def wait(self) -> Execution:
        """Until it ends, however long that takes; a notebook's training has no time limit."""
        status = self.popen.wait()
        seconds = time.monotonic() - self.started
        with self.popen.stdin, self.said:
            self.said.seek(0)
            lines = self.said.read().splitlines()
        for line in lines:
            if line.startswith(ANSWER):
                return Execution(json.loads(line.removeprefix(ANSWER)), seconds)
        unheard = f"executing {self.notebook.name} ended with status {status}"
        return Execution("\n".join([unheard, *lines[-15:]]), seconds)

    def end(self) -> None:
        """Stop it now; its kernel and that kernel's workers notice and end too."""
        self.popen.kill()
        self.popen.wait()


# In that process

def kernel_manager(folder: str) -> type:
    """A kernel manager whose kernel is this interpreter and whose sockets are files in `folder`."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class Kernel(AsyncKernelManager):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.transport, self.connection_file, self.ip = "ipc", f"{folder}/kernel.json", f"{folder}/k"

        @property
        def kernel_spec(self) -> KernelSpec:
            argv = [sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=argv, display_name="Python 3", language="python")
    return Kernel


def run(notebook: Path, output: Path, values: Mapping[str, Any], folder: str) -> str:
    """Execute here, with sockets in `folder`: the error, empty if every cell ran. `output` is written either way."""
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError
    from nbconvert.filters.ansi import strip_ansi
    from papermill.exceptions import PapermillExecutionError
    logging.getLogger("papermill").setLevel(logging.CRITICAL)      # what it would report, the answer says
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_of(output)
    partial.unlink(missing_ok=True)
    # Papermill fills its own fields into paths.
    source, target = (str(path).replace("{", "{{").replace("}", "}}") for path in (notebook, partial))
    error, dead = "", False
    try:
        papermill.execute_notebook(
            source, target, dict(values), kernel_name=KERNEL, language="python", progress_bar=False,
            start_timeout=START_SECONDS, cwd=str(notebook.parent), kernel_manager_class=kernel_manager(folder))
    except PapermillExecutionError as failed:                      # message and traceback of the cell, without colours
        lines, last = strip_ansi("\n".join(failed.traceback)).strip(), f"{failed.ename}: {failed.evalue}"
        error = lines if last in lines else f"{lines}\n{last}".strip()
    except DeadKernelError:
        dead = True
    except RuntimeError as failed:                                 # a kernel that does not start
        error = f"no kernel: {failed}"
    node = nbformat.read(partial if partial.exists() else notebook, as_version=4)
    if dead:
        ran = [cell.metadata.get("papermill", {}).get("status") == "completed" and cell.execution_count is not None
               for cell in node.cells if cell.cell_type == "code"]
        error = (f"the kernel died in cell {[*ran[:-1], False].index(False) + 1} of {len(ran)}; when memory runs out "
                 "the system ends it like that")
    node.metadata["suite"] = {"state": "failed" if error else "done", "error": error}
    for key in ("input_path", "output_path"):
        if key in node.metadata.get("papermill", {}):
            node.metadata.papermill[key] = Path(node.metadata.papermill[key]).name
    node = shared(node, values.get("corpus", ""))
    nbformat.write(nbformat.from_dict(node), partial)
    os.replace(partial, output)
    return node["metadata"]["suite"]["error"]


def shared(value: Any, corpus: str) -> Any:
    """What an executed notebook holds, `shareable` in every string but pictures: where it ran is nobody's business."""
    if isinstance(value, str):
        return shareable(value, corpus)
    if isinstance(value, dict):
        return {key: own if key in PICTURES else shared(own, corpus) for key, own in value.items()}
    return [shared(own, corpus) for own in value] if isinstance(value, list) else value


def partial_of(output: Path) -> Path:
    """Where papermill writes, cell by cell, what becomes `output` in the end."""
    return output.with_name(f".{output.stem}.partial.ipynb")


def end_with_parent(folder: str) -> None:
    """Leave when standard input closes: the suite that wanted the result is gone. The kernel polls for that itself."""
    sys.stdin.read()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def main(notebook: Path, output: Path, parameters: str) -> int:
    """0: every cell ran; 1: a cell failed. The last line of the output says the error."""
    home = tempfile.gettempdir()
    # The path of a socket has 100 bytes.
    with tempfile.TemporaryDirectory(prefix="suite-", dir=home if len(home) < 60 else "/tmp") as folder:
        threading.Thread(target=end_with_parent, args=[folder], daemon=True).start()
        try:
            error = run(notebook.resolve(), output.resolve(), json.loads(parameters), folder)
        except OSError as failed:                                  # the output cannot be written
            error = str(unwritable(output, failed))
            partial_of(output).unlink(missing_ok=True)
    print(f"\n{ANSWER}{json.dumps(error)}")
    return 1 if error else 0

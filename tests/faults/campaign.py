"""Bad inputs that no other file of this folder has: names, types and options of commands, make and notebooks."""

import json
import shutil

from frame import Row, tiny

from lib import paths

SMOKE = (paths.PROFILES / "smoke.yaml").read_text("utf-8")
HUB = tiny("vocab: 300", "vocab: 300, hub: [fineweb_edu]").replace("{docs: 0.75, code: 0.25}", "{fineweb_edu: 1.0}")
CELL = (paths.ROOT / "tests" / "data" / "parameters_cell.txt").read_text("utf-8")


def profile(name: str, old: str, new: str, line: str) -> Row:
    """`plan` of the profile `tiny` with `new` in place of `old`."""
    return Row(name, "plan --profile tiny", line, profile=tiny(old, new))


def parameter(name: str, old: str, new: str, line: str) -> Row:
    """`plan` of a profile with a parameter of a notebook changed; it is `smoke`, whose notebooks can all be planned."""
    assert SMOKE.count(old) >= 1, f"profiles/smoke.yaml has no {old!r}"
    return Row(name, "plan --profile tiny", line, profile=SMOKE.replace(old, new, 1))


def notebook(name: str, line: str, **changes: object) -> Row:
    """`plan` with notebook 01 changed: `kernel`, `tags`, or the `source` of its parameters cell."""
    content = json.loads((paths.NOTEBOOKS / "01_window_sweep.ipynb").read_text("utf-8"))
    cell = next(cell for cell in content["cells"] if "parameters" in cell["metadata"].get("tags", []))
    cell["source"] = changes.get("source", cell["source"])
    cell["metadata"]["tags"] = changes.get("tags", ["parameters"])
    content["metadata"]["kernelspec"]["name"] = changes.get("kernel", "python3")
    return Row(name, "plan --profile tiny", line, files={"notebooks/01_window_sweep.ipynb": json.dumps(content)})


def another_notebook(root) -> None:
    shutil.copy(root / "notebooks" / "01_window_sweep.ipynb", root / "notebooks" / "10_mine.ipynb")


ROWS = [
    # The command line
    Row("no command", "", "Missing command"),
    Row("a misspelt command", "reprot", "No such command 'reprot'. Did you mean 'report'"),
    Row("an option that is not there", "report --profil tiny", "No such option: --profil"),
    Row("an option without its value", "plan --profile", "Option '--profile' requires an argument"),
    Row("a word too many", "plan tiny", r"unexpected extra argument\(s\) \(tiny\)"),
    Row("a profile that is not there", "plan --profile smal", "unknown profile 'smal'; did you mean 'small'"),
    Row("a profile with its suffix", "plan --profile small.yaml", "unknown profile 'small.yaml'; did you mean 'small'"),
    Row("a profile outside of the folder", "plan --profile ../profiles/small", "unknown profile '../profiles/small'"),
    Row("a profile without a name", "plan --profile ''", "unknown profile ''"),
    Row("a profile of control characters", "plan --profile $'\\x1b[31m'", "unknown profile '.*x1b"),
    Row("a GPU that is not there", "plan --profile tiny --gpu h1000", "unknown GPU 'h1000'; did you mean 'h100'"),
    Row("a GPU of another maker's name", "plan --profile tiny --gpu 'warp 9'", "unknown GPU 'warp 9'"),
    Row("a notebook that is not there", "notebook 01_windw_sweep --profile tiny",
        "unknown notebook '01_windw_sweep'; did you mean '01_window_sweep'"),
    Row("no name of a notebook", "notebook", "Missing argument 'name'"),
    Row("an engine that is not there", "report --engine slurm", "--engine.*'slurm' is not one of 'local', 'ray'"),
    Row("CPUs of a run without a cluster", "report --profile tiny --run-cpus 4", "--run-cpus = 4 .* for --engine ray"),
    Row("GPUs of a run without a cluster", "evidence --run-gpus 1", "--run-gpus = 1.0 .* for --engine ray"),
    Row("CPUs that are no number", "report --engine ray --run-cpus two", "--run-cpus.*valid integer"),
    Row("GPUs that are no number", "report --engine ray --run-gpus half", "--run-gpus.*valid number"),
    Row("a pattern that is not there", "compare lokal --profile tiny", "unknown pattern 'lokal'; did you mean 'local'"),
    Row("no pattern", "compare", "Missing argument 'pattern'"),
    Row("a parameter without a value", "compare local -p window", "--parameter = 'window' .* window=8"),
    Row("a parameter below its range", "compare local --profile tiny -p window=-1", "window = -1 is not valid"),
    Row("a parameter of another type", "compare local --profile tiny -p window=wide", "window = 'wide' is not valid"),
    Row("a choice that is not there", "compare scaled_base --profile tiny -p schedule=fixd",
        "unknown schedule 'fixd'; did you mean 'fixed'"),
    Row("two parameters that contradict", "compare christoffel --profile tiny -p m=9 -p k=8",
        "m = 9 is not valid: an integer from 1 to k = 8"),
    Row("runs of a profile without any", "runs list --profile tiny", "no runs yet in profile 'tiny'"),
    Row("a run of a profile without any", "runs show 00ff --profile tiny", "no runs yet in profile 'tiny'"),
    Row("verify without a run", "verify --profile tiny", "no runs yet in profile 'tiny'"),
    Row("a status that is not there", "runs list --profile tiny --status dead", "--status.*'dead' is not one of"),
    Row("a misspelt command of the runs", "runs lsit", "No such command 'lsit'"),
    Row("an option of the benchmark that is not there", "bench --quik", "No such option: --quik"),
    Row("an option of the GPU check that is not there", "gpu-check --nope", "error: unrecognized arguments: --nope"),

    # Profiles
    profile("a step count in quotes", "steps: 10", "steps: '10'", "train: steps = '10' is a str.*without quotes"),
    profile("a number that YAML reads as text", "2.0e-3", "2e-3",
            "lr = '2e-3' is a str, .*: YAML reads 2e-3 as a string"),
    profile("a learning rate of zero", "2.0e-3", "0.0", "lr = 0.0 is not valid: a number above 0"),
    profile("a learning rate that is NaN", "2.0e-3", ".nan", "lr = nan .*finite"),
    profile("steps that are a truth value", "steps: 10", "steps: true", "steps = True is a bool, but its type is int"),
    profile("a batch of zero", "batch: 2", "batch: 0", "batch = 0 is not valid: an integer of at least 1"),
    profile("a warm-up longer than the training", "warmup: 3", "warmup: 30",
            "warmup = 30 is not valid: 0 to steps = 10"),
    profile("a precision that is not there", "fp32", "fp16", "precision = 'fp16' is not valid"),
    profile("a key twice", "steps: 10", "steps: 10, steps: 20", "the key 'steps' stands twice"),
    profile("a key that is not there", "steps: 10", "stps: 10", "unknown key 'stps'; did you mean 'steps'"),
    profile("a key that is missing", "steps: 10, ", "", "train: the key steps is missing"),
    profile("a section that is not there", "rungs: 5", "rungs: 5\nrugns: 5",
            "unknown section 'rugns'; did you mean 'rungs'"),
    profile("a section that is missing", "rungs: 5\n", "", "the section rungs is missing"),
    profile("a section that is a number", "mixture: {docs: 0.75, code: 0.25}", "mixture: 3",
            "mixture = 3 is not valid"),
    profile("no rungs", "rungs: 5", "rungs: 0", "rungs = 0 is not valid"),
    profile("a weight below zero", "docs: 0.75", "docs: -1.0", "-1.0 is not valid"),
    profile("a vocabulary below the bytes", "vocab: 300", "vocab: 256", "vocab = 256 is not valid: at least 257"),
    profile("hardly any text", "train_tokens: 4000", "train_tokens: 4", "train_tokens = 4 .* at least 1000"),
    profile("heads that share no key heads", "heads: 2, kv_heads: 1", "heads: 3, kv_heads: 2",
            "kv_heads = 2 is not valid: a divisor of heads = 3"),
    profile("an odd head for RoPE", "head_dim: 8", "head_dim: 7", "head_dim = 7 is not valid: even"),
    profile("a width below zero", "d_model: 16", "d_model: -16", "d_model = -16 is not valid"),
    profile("no workers", "workers: 1", "workers: 0", "workers = 0 is not valid"),
    profile("an evaluation on nothing", "evaluation_tokens: 1000", "evaluation_tokens: 0", "evaluation_tokens = 0"),
    Row("a domain of the hub that is not there", "plan --profile tiny", "unknown domain of the hub 'fineweb_edo'",
        profile=HUB.replace("fineweb_edu", "fineweb_edo")),
    profile("a tokenizer without a text of the hub", "vocab: 300", "vocab: 300, tokenizer: gpt2",
            "hub = .* is not valid"),
    Row("a profile that is a list", "plan --profile tiny", "the file = 'list' is not valid: a mapping",
        profile="- a\n"),
    Row("a profile that is not YAML", "plan --profile tiny", "tiny.yaml: not YAML", profile="a: [1,\n"),
    Row("a profile that runs a command", "plan --profile tiny", "tiny.yaml: not YAML.*constructor",
        profile="description: !!python/object/apply:os.system [touch pwned]\n"),

    # Parameters of notebooks
    profile("a notebook in a profile that is not there", "01_window_sweep:", "01_windw_sweep:",
            "unknown notebook '01_windw_sweep'; did you mean"),
    profile("notebooks as a list", "{01_window_sweep: {windows: [4, 6]}}", "[01_window_sweep]",
            "notebooks = .*not valid"),
    profile("a notebook as a number", "{windows: [4, 6]}", "3", "01_window_sweep.*3.*not valid|= 3 is not valid"),
    profile("a parameter of a notebook that is not there", "windows:", "windoes:",
            "unknown parameter 'windoes'; did you mean 'windows'"),
    profile("a profile that names its own name", "windows:", "profile: small, windows:", "unknown parameter 'profile'"),
    profile("one value for a list", "[4, 6]", "4", r"windows = 4 .*one value is written \[4\]"),
    profile("numbers in quotes", "[4, 6]", "['4']", "windows = '4' is a str, but its type is int"),
    profile("a fraction for a whole number", "[4, 6]", "[4.5]", "windows = 4.5 "),
    profile("a window below zero", "[4, 6]", "[-4]", "window = -4 is not valid"),
    parameter("a schedule that is not there", "fibonacci/fixed", "fibonacci/fixd", "unknown schedule 'fixd'"),
    parameter("a base that is not there", "fibonacci/fixed", "fibonaci/fixed", "unknown base 'fibonaci'"),
    parameter("an extra model without its window", "windows: [4]\n", "windows: [4]\n    extra: [pow2/fixed]\n",
              "extra = 'pow2/fixed' is not valid: base/schedule/window"),
    parameter("a control that is not there", "windows: [4]\n", "windows: [4]\n    controls: [lokal]\n",
              "unknown control 'lokal'; did you mean 'local'"),
    parameter("a model of one seed that is not there", "windows: [4]\n", "windows: [4]\n    once: [nobody]\n",
              "unknown model 'nobody'"),
    parameter("fewer tokens than a step", "windows: [4]\n", "windows: [4]\n    tokens: 5\n", "tokens = 5 is not valid"),
    parameter("a start that is not there", "starts: [one, ramp]", "starts: [two]", "two"),
    parameter("a position that is not there", "positions: [alibi]", "positions: [rop]",
              "unknown position 'rop'"),
    parameter("a budget below the window", "budgets: [12]", "budgets: [2]", "budget.* = 2 is not valid"),
    parameter("a word without a slash", "[8/64, 7/64]", "[8-64]", "words = '8-64' is not valid: m/k"),
    parameter("a word above one", "[8/64, 7/64]", "[9/8]", "m = 9 is not valid"),
    parameter("a mask of a task that is not there", "[dense, word]", "[dense, wrod]", "unknown mask of a task 'wrod'"),
    parameter("a task that is not there", "[lambada, blimp, in_context]", "[lambda]", "lambda"),
    parameter("a pattern of a notebook that is not there", "[local, fibonacci/linear, power_law, bigbird]", "[locl]",
              "locl"),
    parameter("a distance too short to copy", "copy_distances: [16, 32]", "copy_distances: [2]",
              "copy_distances = 2 is not valid: at least 8"),

    # Notebooks
    Row("a notebook that is no JSON", "plan --profile tiny", "01_window_sweep.ipynb is not a notebook",
        files={"notebooks/01_window_sweep.ipynb": "no notebook"}),
    Row("a notebook that is empty", "plan --profile tiny", "01_window_sweep.ipynb is not a notebook",
        files={"notebooks/01_window_sweep.ipynb": ""}),
    Row("a notebook of no experiment", "plan --profile tiny", "unknown experiment '10_mine'", profile=SMOKE,
        prepare=another_notebook),
    notebook("a notebook of another kernel", "the kernel is 'ir', it must be 'python3'", kernel="ir"),
    notebook("a notebook without a parameters cell", "0 cells are tagged 'parameters', one code cell must be", tags=[]),
    notebook("a parameter that is derived", "the value must be a literal, not derived",
             source="windows: int = 2 + len('a')"),
    notebook("a parameter without a type", "is not a parameter: write 'name: type = value", source="windows = 3"),
    notebook("a parameter of a type that is not there", "type dict is not supported", source="windows: dict = {}"),
    notebook("a parameter unlike its type", "windows = 'a' is a str, but its type is int",
             source=f"{CELL}windows: int = 'a'"),
    notebook("a parameters cell that is not Python", "the parameters cell is not Python", source="windows: int ="),

    # make
    Row("make: a target that is not there", "make reprot", "No rule to make target 'reprot'"),
    Row("make: a profile that is not there", "make plan PROFILE=smal", "unknown profile 'smal'; did you mean 'small'"),
    Row("make: a GPU that is not there", "make plan GPU=h1000", "unknown GPU 'h1000'; did you mean 'h100'"),
    Row("make: no name of a notebook", "make notebook", "NAME is missing: make notebook NAME=03_extrapolation"),
    Row("make: no pattern", "make compare", "PATTERN is missing: make compare PATTERN=scaled_base"),
    Row("make: an engine that is not there", "make report ENGINE=slurm", "'slurm' is not one of 'local', 'ray'"),
    Row("make: a run that is not there", "make verify RUN=00ff PROFILE=tiny", "no runs yet in profile 'tiny'"),
    Row("make: an option that is not there", "make plan PROFILE=tiny ARGS=--nope", "No such option: --nope"),

    # Folders of text
    Row("a corpus folder that is a file", "corpus --profile tiny --corpus Makefile", "Makefile' is not a folder"),
    Row("make: a corpus folder that is not there", "make report PROFILE=tiny CORPUS=/nowhere",
        "'/nowhere' is not a folder"),
]

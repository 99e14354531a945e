"""Bad inputs at the entrance: profiles, the folder of the outputs, the environment, standard output, and make."""

from frame import Row, tiny

PLAN, LIST, WINDOWS = "plan --profile tiny", "runs list --profile tiny", "{windows: [4, 6]}"
SMOKE = "plan --profile smoke"      # can be planned whole
BOMB = "".join(f"{name}: &{name} [{', '.join([f'*{other}'] * 9)}]\n" for other, name in zip("abcdefgh", "bcdefghi"))
THREADS = "NUM_THREADS = '{}' is not valid: a number from 1 to 999, or unset it"


def profile(name: str, old: str, new: str, line: str) -> Row:
    return Row(name, PLAN, line, profile=tiny(old, new).replace("layers: 2,", "layers: 5,"))     # as coprime needs


def outputs(name: str, folder: str, line: str, **more) -> Row:
    """A folder of outputs that is none, for a command that would write there."""
    return Row(name, "report --profile tiny", f"SUITE_OUTPUTS = .*{line}", env={"SUITE_OUTPUTS": folder}, **more)


ROWS = [
    # Profiles that are no text
    Row("a profile that is empty", PLAN, "tiny.yaml: the file = 'NoneType' .*: a mapping of sections", profile=""),
    Row("a profile in Latin-1", PLAN, "tiny.yaml: not YAML: unacceptable", profile="name: für".encode("latin-1")),
    Row("a profile of zeros", PLAN, "tiny.yaml: not YAML: unacceptable", profile=bytes(100)),
    Row("a profile of a gigabyte", PLAN, "tiny.yaml: size = 65537 .*at most 65,536", profile=b"#" * 10 ** 7),
    Row("a profile that is a folder", "plan --profile box", "box.yaml'.* a folder", files={"profiles/box.yaml": None}),
    Row("a profile that links to nothing", "plan --profile gone", "gone.yaml'.* a link to nothing",
        prepare=lambda root: (root / "profiles" / "gone.yaml").symlink_to("nowhere")),
    Row("a profile nested too deeply", PLAN, "tiny.yaml: not YAML: maximum recursion", profile=b"[" * 20_000),
    Row("a billion aliases", PLAN, r"line 2: an alias \(\*name\) is not read", profile=f"a: &a [x]\n{BOMB}"),
    # and its values
    profile("a tag that runs code", "rungs: 5", "rungs: !!python/name:os.system x", "not YAML: .*python/name"),
    profile("a tag that does not fit", "rungs: 5", "rungs: !!timestamp x", "line 6: 'x' cannot be read as timestamp"),
    profile("a date that is none", "rungs: 5", "rungs: 2020-13-45", "line 6: '2020-13-45' cannot be read as timestamp"),
    profile("5,000 digits", "steps: 10", f"steps: {'9' * 5000}", "tiny.yaml: line 4: '9999+ cannot be read as int"),
    profile("no end of training", "steps: 10", f"steps: {10 ** 30}", "train: steps = 10+ .*at most 1,000,000,000,"),
    profile("a text of a billion", "length: 16", f"length: {10 ** 9}", "train: length = 1000000000 .*at most 131,072"),
    profile("a batch of a trillion", "batch: 2", f"batch: {10 ** 12}", "train: batch = 1000000000000 .*at most 4,096"),
    profile("a million layers", "layers: 2", f"layers: {10 ** 6}", "model: layers = 1000000 .*at most 512"),
    profile("thousands of rungs", "rungs: 5", "rungs: 3000", "rungs = 3000 .*less than or equal to 64"),
    profile("infinity", "lr: 2.0e-3", "lr: .inf", "train: lr = inf is not valid: it should be a finite number"),
    profile("no number", "lr: 2.0e-3", "lr: .nan", "train: lr = nan is not valid: it should be a finite number"),
    profile("a yes for a number", "steps: 10", "steps: yes", "train: steps = True is a bool, but its type is int"),
    profile("no seeds", WINDOWS, "{seeds: []}", r"01_window_sweep: seeds = \[\] .*one seed or more"),
    profile("a seed twice", WINDOWS, "{seeds: [1, 1]}", r"01_window_sweep: seeds = \[1, 1\] .*each once"),
    profile("a seed below zero", WINDOWS, "{seeds: [-1]}", "seed = -1 is not valid: 0 or more"),
    profile("a length below the window", "length: 16", "length: 4", "window = 4 is not valid: less than length = 4"),
    profile("too little to evaluate", "tokens: 1000\n", "tokens: 5\n", "evaluation_tokens = 5 .*at least one"),
    profile("a long grid", "[4, 6]", str([*range(5000)]), r"windows = \[0, 1, .* it should have at most 100 entries"),
    profile("a large grid", WINDOWS, str({name: [*range(1, 101)] for name in ("seeds", "windows")}).replace("'", ""),
            "combinations of its longest lists = 200000 .*at most 10,000"),
    profile("a domain that is not there", "docs: 0.75", "dosc: 0.75", "mixture 'dosc'; did you mean 'docs'"),
    profile("half a character", "for tests", r'"\ud800"', r"description = '\\ud800' is not valid: .*surrogates"),
    # Known at the start, so said before a corpus is built
    Row("a parameter that is not there", "report --profile tiny", "unknown parameter 'sede'; did you mean 'seeds'",
        profile=tiny(WINDOWS, "{sede: [1]}")),
    Row("a cluster that is not there", "report --profile tiny --engine ray", "no Ray cluster .* RAY_ADDRESS = '127.",
        env={"RAY_ADDRESS": "127.0.0.1:9"}),
    Row("a cluster without a port", "report --profile tiny --engine ray", "no Ray cluster .* RAY_ADDRESS = 'nonsense'",
        env={"RAY_ADDRESS": "nonsense"}),
    Row("a pattern's parameter", "compare local -p windw=3 --profile tiny", "'windw'; did you mean 'window'"),
    Row("a pattern's huge number", f"compare christoffel -p m=2 -p k={10 ** 12} --profile tiny", "k = 10+ .*at most"),
    # The folder of the outputs
    outputs("outputs in a file", "{root}/Makefile", "Not a directory.*name a folder that can be written"),
    outputs("outputs under a file", "{root}/Makefile/x", "Not a directory"),
    outputs("outputs that cannot be written", "/proc/outputs", "No such file or directory.*name a folder"),
    outputs("outputs of nobody", "~nouser/x", "there is no such user"),
    outputs("outputs with a name too long", "{root}/" + "x" * 300, "File name too long"),
    outputs("outputs in a link to nothing", "{root}/gone", "not valid",
            prepare=lambda root: (root / "gone").symlink_to("nowhere")),
    outputs("outputs in a loop", "{root}/loop/x", "Too many", prepare=lambda root: (root / "loop").symlink_to("loop")),
    outputs("outputs not in UTF-8", "{root}/\udcff", "a text in UTF-8"),
    Row("runs of outputs in a file", LIST, "SUITE_OUTPUTS = .*Not a dir", env={"SUITE_OUTPUTS": "{root}/Makefile"}),
    # The environment
    Row("no threads of numba", LIST, "NUMBA_" + THREADS.format("0"), env={"NUMBA_NUM_THREADS": "0"}),
    Row("threads that are no number", LIST, "OMP_" + THREADS.format("abc"), env={"OMP_NUM_THREADS": "abc"}),
    Row("a million threads", LIST, "MKL_" + THREADS.format("1000000"), env={"MKL_NUM_THREADS": "1000000"}),
    Row("a variable that a library refuses", SMOKE, "TORCH_LOGS='nonsense'", env={"TORCH_LOGS": "nonsense"}),
    Row("odd surroundings, which do no harm", SMOKE, "^total ", status=0, env={
        "MPLBACKEND": "nonsense", "PYTHONIOENCODING": "ascii", "LANG": "C", "COLUMNS": "0", "TERM": "dumb",
        "HOME": None, "TMPDIR": "/nowhere", "PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": "x",
        "NUMBA_CACHE_DIR": "/proc/x"}),
    # Where a command prints to, and what it is asked in
    Row("a full disk under the list", LIST, "output: No space left on device", stdout="/dev/full",
        files={"outputs/tiny/runs.sqlite": b""}),
    Row("a full disk under the help", "--help", "output: No space left on device", stdout="/dev/full"),
    Row("a run not in UTF-8", "runs show \udcff", r"argument = '\\udcff' is not valid: a text in UTF-8"),
    Row("a command that is gone", "runs export", "No such command 'export'"),
    # Variables of make
    Row("a command in PROFILE", "make plan PROFILE='$(shell touch pwned)'", r"unknown profile '\$\(shell touch "),
    Row("lines in PROFILE", "make plan PROFILE='a\ntouch pwned\n'", r"unknown profile 'a\\ntouch pwned\\n'"),
    Row("quotes in NAME", """make notebook NAME="';touch pwned;'" """, r"unknown notebook .*;touch pwned;"),
    Row("a command in PATTERN", "make compare PATTERN='`touch pwned`'", "unknown pattern '`touch pwned`'"),
]

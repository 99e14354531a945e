"""Bad inputs whose answers no other file of this folder holds: names, types and options of every command."""

from frame import Row, tiny

ROWS = [
    # The command line
    Row("no command", "", "Missing command"),
    Row("a misspelt command", "reprot", "No such command 'reprot'"),
    Row("an option that is not there", "report --profil tiny", "No such option: --profil"),
    Row("an option without its value", "plan --profile", "Option '--profile' requires an argument"),
    Row("a word too many", "plan tiny", r"unexpected extra argument \(tiny\)"),
    Row("an engine that is not there", "report --engine slurm", "--engine.*'slurm' is not one of 'local', 'ray'"),
    Row("CPUs of a run without a cluster", "report --profile tiny --run-cpus 4", "--run-cpus = 4 .* for --engine ray"),
    Row("CPUs that are no number", "report --engine ray --run-cpus two", "--run-cpus.*'two' is not a valid int"),
    Row("GPUs that are no number", "report --engine ray --run-gpus half", "--run-gpus.*'half' is not a valid float"),
    Row("a status that is not there", "runs list --profile tiny --status dead", "--status.*'dead' is not one of"),
    Row("no name of a notebook", "notebook", "Missing argument 'NAME'"),
    Row("a step count in quotes", "plan --profile tiny", "tiny.yaml, train: steps = '10' is a str.*without quotes",
        profile=tiny("steps: 10", "steps: '10'")),
]

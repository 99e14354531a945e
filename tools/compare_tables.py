"""Compare the result tables and the ledgers of two executions, cell by cell.

    python tools/compare_tables.py outputs/smoke elsewhere/smoke

Columns that measure time or memory are left out, and so are the claims about speed.
Exit status: 0 all equal, 1 something differs, or there is nothing to compare.
"""

import csv
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

MEASURED = re.compile(
    r"second|minute|hour|time|tokens_per|per_s|_ms|mib|memory|bytes|rss|date|host|started|ended", re.I)
CLAIMS = Path(__file__).resolve().parent.parent / "suite" / "claims" / "ledger.yaml"
SHOWN = 20                    # differences that are printed


def timed() -> set[str]:
    """The claims about speed."""
    claims = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    return {claim["id"] for claim in claims if "speed" in (claim.get("measure") or {}).get("name", "")}


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a table; of claims.csv without the claims about speed."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    left_out = timed() if path.name == "claims.csv" else set()
    return [row for row in rows if row.get("identifier") not in left_out]


def ledger(path: Path) -> list[dict[str, str]]:
    """Every claim as a row of JSON texts, but for the claims about speed."""
    left_out = timed()
    return [{key: json.dumps(value, sort_keys=True) for key, value in entry.items()}
            for entry in json.loads(path.read_text(encoding="utf-8")) if entry["identifier"] not in left_out]


def cells(rows: list[dict[str, str]]) -> Iterator[tuple[tuple[int, str], str]]:
    for number, row in enumerate(rows):
        yield from (((number, column), value) for column, value in row.items() if not MEASURED.search(column))


def main(first: Path, second: Path) -> int:
    names = sorted({path.name for folder in (first, second) for path in (folder / "results").glob("*.csv")})
    pairs = [(name, table, f"results/{name}") for name in names] + [("ledger.json", ledger, "report/ledger.json")]
    compared, differences = 0, []
    for name, read, at in pairs:
        missing = [str(folder / at) for folder in (first, second) if not (folder / at).is_file()]
        if missing:
            differences.append(f"{name}: {' and '.join(missing)} missing")
            continue
        left, right = (dict(cells(read(folder / at))) for folder in (first, second))
        compared += len(left.keys() & right.keys())
        differences += [f"{name}, row {key[0]}, {key[1]}: {left.get(key)} against {right.get(key)}"
                        for key in sorted(left.keys() | right.keys()) if left.get(key) != right.get(key)]
    for line in differences[:SHOWN]:
        print(line)
    print(f"{len(names)} tables, {compared} cells compared, {len(differences)} differ")
    return 1 if differences or not names or not compared else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

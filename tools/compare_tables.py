"""Compare the result tables and the ledgers of two executions, cell by cell.

    python tools/compare_tables.py outputs/smoke elsewhere/smoke

Columns that measure time or memory are left out, and so are the claims about speed.
Exit status: 0 all equal, 1 something differs, or there is nothing to compare.
"""

import csv
import json
import re
import sys
from pathlib import Path

import yaml

MEASURED = re.compile(
    r"second|minute|hour|time|tokens_per|per_s|_ms|mib|memory|bytes|rss|date|host|started|ended", re.I)
CLAIMS = Path(__file__).resolve().parent.parent / "suite" / "claims" / "ledger.yaml"
LEDGER = Path("report") / "ledger.json"


def cells(path: Path, timed: set[str]) -> dict[tuple[int, str], str]:
    """The values of a table or ledger by row and column, without the claims `timed`."""
    text = path.read_text(encoding="utf-8")
    rows = json.loads(text) if path.suffix == ".json" else csv.DictReader(text.splitlines(keepends=True))
    kept = [row for row in rows if row.get("identifier") not in timed]
    return {(number, column): json.dumps(value, sort_keys=True) for number, row in enumerate(kept)
            for column, value in row.items() if not MEASURED.search(column)}


def main(first: Path, second: Path) -> int:
    timed = {claim["id"] for claim in yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
             if "speed" in (claim.get("measure") or {}).get("name", "")}
    tables = {path.relative_to(folder) for folder in (first, second) for path in folder.glob("results/*.csv")}
    compared, differences = 0, []
    for file in sorted({*tables, LEDGER}):
        if missing := [str(folder / file) for folder in (first, second) if not (folder / file).is_file()]:
            differences.append(f"{' and '.join(missing)} missing")
            continue
        left, right = cells(first / file, timed), cells(second / file, timed)
        compared += len(left.keys() & right.keys())
        differences += [f"{file}, row {key[0]}, {key[1]}: {left.get(key)} against {right.get(key)}"
                        for key in sorted(left.keys() | right.keys()) if left.get(key) != right.get(key)]
    print(*differences[:20], f"{len(tables)} tables, {compared} cells compared, {len(differences)} differ", sep="\n")
    return 1 if differences or not tables or not compared else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

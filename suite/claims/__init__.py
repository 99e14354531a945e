"""The ledger of claims: what each document says, the rule fixed beforehand, and the verdict that a profile's runs give.

`ledger.yaml` lists the claims. A claim is added by an entry there; a new kind of evidence by a function in `measures`.
"""

from suite.claims.judge import Evidence, Judgement, as_json, as_table, judge, judge_from
from suite.claims.ledger import Claim, load

__all__ = ["Claim", "Evidence", "Judgement", "as_json", "as_table", "judge", "judge_from", "load"]

"""What notebook 00 shows: any pattern, any trained model, and a pattern of one's own. Nothing here trains unasked.

    from suite import lab
    lab.explore("scaled_base")
"""

from suite.lab.models import attention, losses
from suite.lab.own import bring
from suite.lab.sketch import explore, picture

__all__ = ["attention", "bring", "explore", "losses", "picture"]

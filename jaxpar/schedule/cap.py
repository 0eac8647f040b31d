"""The cap on memory, `max_live`: the most microbatches of a whole rank's activations that any rank may hold."""

import math
import numbers

from jaxpar.errors import SettingError

# Products V x cap are compared with whole numbers of chunks: thirds and the like may be off by a rounding.
ROUNDING = 1e-6


def check_max_live(max_live):
    """`max_live` as a float, inf for None (no cap) and for what no float holds.

    Raises:
      SettingError: it is not a number, which no comparison would notice.
    """
    if max_live is None:
        return math.inf
    if isinstance(max_live, bool) or not isinstance(max_live, numbers.Real) or max_live != max_live:
        raise SettingError(
            f"pipeline.max_live={max_live!r} is not a number: it counts microbatches. "
            "Use 1 or more, or None for no cap."
        )
    try:
        return float(max_live)
    except OverflowError:
        return math.copysign(math.inf, 1 if max_live > 0 else -1)

"""What differential privacy allows a membership attack: the bound that guarantees are tested against."""

from __future__ import annotations

import math


def highest_tpr(epsilon: float, delta: float, fpr: float) -> float:
    """The largest true-positive rate that (epsilon, delta) allows a membership attack at a false-positive rate.

    min(e^epsilon FPR + delta, 1 - e^-epsilon (1 - delta - FPR), 1): the definition, for what the attack calls members
    and for what it does not (Kairouz, Oh, Viswanath, "The composition theorem for differential privacy", ICML 2015,
    theorem 2.1).
    """
    return min(math.exp(epsilon) * fpr + delta, 1 - math.exp(-epsilon) * (1 - delta - fpr), 1.0)

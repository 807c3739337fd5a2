"""Membership inference against image encoders: the mathematics, in PyTorch, NumPy and scikit-learn.

Data flows through the folders in this order: ``images`` (decode), ``augmentations`` (seeded views), ``encoders`` (image
to embedding; those from elsewhere: ``adoption``), ``features`` (embedding to membership feature), ``attacks`` (feature
to score), ``metrics`` and ``validity`` (score to verdict), ``report``; ``auditing`` does all of it in one call;
``lots`` is about images that chance chose. Nothing here imports ray, reads a configuration file or looks at the
environment, but for secrets of an API, where the caller names their variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mi_core.auditing.audit import audit
    from mi_core.auditing.leak_meter import LeakMeter

__all__ = ["LeakMeter", "audit"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: torch takes seconds, and most of this package is without it."""
    if name == "audit":
        from mi_core.auditing.audit import audit

        return audit
    if name == "LeakMeter":
        from mi_core.auditing.leak_meter import LeakMeter

        return LeakMeter
    raise AttributeError(f"module 'mi_core' has no attribute {name!r}")

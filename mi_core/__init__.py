"""Membership inference against image encoders: the mathematics, in PyTorch, NumPy and scikit-learn.

Data flows through the folders in this order: ``images`` (decode), ``augmentations`` (seeded views),
``encoders`` (image to embedding), ``features`` (embedding to membership feature), ``attacks`` (feature to
score), ``metrics`` and ``validity`` (score to verdict), ``report``. Nothing here imports ray, reads a
configuration file or looks at the environment.
"""

"""Random views of images: one recipe per pre-training framework, as batched tensor operations.

`AUGMENTATIONS` is the table of recipes, under the names of `mi_core.objectives.OBJECTIVES`; `operations` holds what
the recipes are made of, `views` several views of each image.
"""

from __future__ import annotations

from mi_core.augmentations.simclr import SimCLRAugmentation

AUGMENTATIONS: dict[str, type[SimCLRAugmentation]] = {"simclr": SimCLRAugmentation}

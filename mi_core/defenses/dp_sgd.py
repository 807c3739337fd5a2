"""DP-SGD (Abadi et al., "Deep learning with differential privacy", CCS 2016, algorithm 1) for a classifier's head.

The head is trained again from fresh weights on the embeddings of the frozen backbone: every step takes each image with
probability q = batch size / N, clips its gradient to a length, adds Gaussian noise to the sum, and divides by the batch
size. Opacus clips, adds and counts. Adjacent data sets differ by one image that is there or not.

Epsilon is that of Opacus' RDP accountant (Mironov, Talwar, Zhang, "Renyi differential privacy of the sampled Gaussian
mechanism", 2019): an upper bound at any noise, 9 to 30 % above what tight numerical accountants find. It covers
neither the backbone nor the choice of settings.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import ConfigError, NumericError, check_fields, check_range, import_extra
from mi_core.defenses.base import ProviderData, State
from mi_core.defenses.head import HEAD, HeadDefense, head_inputs, head_labels, head_state, trained_head
from mi_core.defenses.sensitivity import LEAVE
from mi_core.encoders.checkpoint import Encoder, seeded
from mi_core.hashing import digest64

ORDERS = (
    *(1 + order / 100 for order in range(1, 10)),
    *(1 + order / 10 for order in range(1, 100)),
    *range(11, 64),
    *range(64, 1025, 16),
)
"""Of the Renyi divergences that the accountant takes the best of: more than its own, for very much noise or little."""


@dataclass(frozen=True)
class DpSgdParameters:
    """Settings of DP-SGD.

    Args:
        noise_multiplier: standard deviation of the noise, in units of ``max_grad_norm``.
        max_grad_norm: length to which the gradient of each image is clipped.
        delta: at which epsilon is told; below 1 / N for N images.
        epochs: passes over the images, on average.
        batch_size: images per step, on average; at most N.
        learning_rate: of stochastic gradient descent.
    """

    noise_multiplier: float = 1.0
    max_grad_norm: float = 1.0
    delta: float = 1e-5
    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 0.5

    def __post_init__(self) -> None:
        check_fields(self, "noise_multiplier", low=0)
        check_fields(self, "max_grad_norm", "learning_rate", low=0, open_low=True)
        check_fields(self, "delta", low=0, high=1, open_low=True)
        check_fields(self, "epochs", "batch_size", low=1)


class DpSgd(HeadDefense):
    """The head trained again under differential privacy; the weights that it had are not read.

    It promises for every image of the head's training what noise on finished weights promises at a sampled sensitivity
    only. It takes the extra `dp`.
    """

    name = "dp-sgd"
    source = "Abadi et al., Deep learning with differential privacy (CCS 2016), algorithm 1"
    needs = frozenset({HEAD, "labels"})
    mechanism = "sampled-gaussian"
    adjacencies = (LEAVE,)  # an image is there or not
    Parameters = DpSgdParameters

    def fit(self, encoder: Encoder, members: ProviderData, outside: ProviderData | None = None) -> State:
        """Train the head.

        Raises ConfigError: something is missing, the head is not linear, a label is no class of it, or delta or the
        batch size does not fit the number of images; NumericError: the weights diverged.
        """
        opacus = import_extra("opacus", self.name, "dp", "accountants", "optimizers")
        self._check_needs(encoder, members, outside)
        old = trained_head(encoder)
        if not isinstance(old, nn.Linear):
            raise ConfigError(f"{self.name} trains a linear head, {HEAD} is a {type(old).__name__}")
        chosen, labels = self.parameters, head_labels(members, old.out_features)
        count = len(labels)
        if chosen.delta * count >= 1:
            raise ConfigError(f"delta = {chosen.delta} with {count} images, allowed: below 1 / {count}")
        check_range(f"batch_size with {count} images", chosen.batch_size, 1, count)
        inputs = head_inputs(encoder, members.images)

        def fresh() -> nn.Linear:
            return nn.Linear(old.in_features, old.out_features, bias=old.bias is not None)

        head = opacus.GradSampleModule(seeded(digest64(self.seed, self.name, "weights"), fresh))
        rate, steps = chosen.batch_size / count, math.ceil(chosen.epochs * count / chosen.batch_size)
        optimizer = opacus.optimizers.DPOptimizer(
            torch.optim.SGD(head.parameters(), lr=chosen.learning_rate),
            noise_multiplier=chosen.noise_multiplier,
            max_grad_norm=chosen.max_grad_norm,
            expected_batch_size=chosen.batch_size,
            generator=self._generator("noise"),
        )
        accountant = opacus.accountants.RDPAccountant()
        optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=rate))
        drawn = self._generator("batches")
        for _ in range(steps):
            rows = torch.rand(count, generator=drawn, dtype=torch.float64) < rate
            optimizer.zero_grad()
            batch = inputs[rows].requires_grad_()  # for Opacus' hooks: PyTorch warns where no input has a gradient
            F.cross_entropy(head(batch), labels[rows]).backward()
            optimizer.step()
        trained = head._module.state_dict()
        if not all(bool(weight.isfinite().all()) for weight in trained.values()):
            raise NumericError(f"the head of {self.name} diverged; lower its learning_rate")
        dtype = old.weight.dtype
        with warnings.catch_warnings():  # where the best order is the first or last, the bound is loose, and a bound
            warnings.filterwarnings("ignore", message="Optimal order is")
            epsilon = float(accountant.get_epsilon(chosen.delta, alphas=list(ORDERS)))
        promise = {"epsilon_rdp": epsilon, "delta": chosen.delta} if math.isfinite(epsilon) else {}
        return head_state({name: weight.to(dtype) for name, weight in trained.items()}) | {
            **{f"report.{name}": np.array(value) for name, value in promise.items()},
            "report.noise_multiplier": np.array(chosen.noise_multiplier),
            "report.sample_rate": np.array(rate),
            "report.steps": np.array(float(steps)),
        }

    def _generator(self, purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(digest64(self.seed, self.name, purpose) % 2**63)

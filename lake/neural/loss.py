"""The loss of an autoencoder that is to reconstruct, to classify and to keep its codes small, in terms."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class JointLoss:
    """A weighted sum of reconstruction (mean square), task (cross entropy) and code (mean square of its numbers).

    A weight of 0 leaves a term out. Codes that are kept small spread less, and so lose less when rounded to 8 bits.
    """

    reconstruction: float = 1.0
    task: float = 0.1
    code: float = 1e-3

    def __post_init__(self) -> None:
        weights = (self.reconstruction, self.task, self.code)
        if not all(isinstance(weight, int | float) and 0 <= weight < math.inf for weight in weights):
            raise ValueError(f"weights are numbers, finite and not negative: {self}")

    def __call__(
        self,
        target: Tensor,
        reconstruction: Tensor,
        code: Tensor,
        logits: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The terms, unweighted, and `loss`, their weighted sum: scalars.

        Without labels (class numbers [B]) or logits [B, num_classes] there is no task.
        """
        terms = {
            "reconstruction": functional.mse_loss(reconstruction, target),
            "code": code.square().mean(),
        }
        if self.task and logits is not None and labels is not None:
            terms["task"] = functional.cross_entropy(logits, labels)
        weighted = [getattr(self, name) * term for name, term in terms.items()]
        return {**terms, "loss": sum(weighted[1:], weighted[0])}

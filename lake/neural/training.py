"""Training by Lightning, fed by scans of a lake: checkpoints hold the position, and resuming goes on exactly there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn import functional

from lake.asked import whole
from lake.errors import SchemaError
from lake.neural.codes import Quantiser
from lake.neural.loss import JointLoss
from lake.neural.models import Autoencoder
from lake.scan import Scan
from lake.torch import Loader, loader


class _Task(lightning.LightningModule):
    """AdamW, under `fit` with one cycle of learning rates over the whole run."""

    rate: float
    batches: Loader | None = None  # what `fit` trains on

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.rate, weight_decay=1e-4)
        if self.batches is None:
            return {"optimizer": optimizer}
        # Asking the trainer for the number would have it set the loader up before it knows of a checkpoint, and
        # never give it its position.
        steps = (self.trainer.max_epochs or 1) * len(self.batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.rate, total_steps=max(2, steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class AutoencoderTask(_Task):
    """Trains a model on a tensor column `field` and, where it has classes, class numbers in the column `label`."""

    def __init__(
        self,
        model: Autoencoder,
        field: str,
        *,
        label: str | None = None,
        loss: JointLoss | None = None,
        rate: float = 2e-3,
    ) -> None:
        super().__init__()
        self.model, self.field, self.label = model, field, label
        self.loss = loss or JointLoss()
        self.rate = rate

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """The loss of a batch; its terms are logged."""
        target = self.model.standard(batch[self.field])
        code = self.model.encoder(target)
        labels = None if self.label is None else batch[self.label]
        logits = None if labels is None else self.model.classify(code)
        terms = self.loss(target, self.model.decoder(code), code, logits, labels)
        self.log_dict({name: term.detach() for name, term in terms.items()})
        return terms["loss"]


class ClassifierTask(_Task):
    """Trains a classifier of vectors on a column `field`, of numbers or of stored codes, and a column `label`.

    `quantiser`: what stored codes mean, `Quantiser.of(dataset)`. `model` takes [B, *] floats and gives logits.
    """

    def __init__(
        self,
        model: nn.Module,
        field: str,
        label: str,
        *,
        quantiser: Quantiser | None = None,
        rate: float = 2e-3,
    ) -> None:
        super().__init__()
        self.model, self.field, self.label, self.quantiser, self.rate = model, field, label, quantiser, rate

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """The cross entropy of a batch, which is logged."""
        loss = functional.cross_entropy(self(batch), batch[self.label])
        self.log("loss", loss.detach())
        return loss

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Logits of a batch."""
        values = batch[self.field]
        logits: Tensor = self.model(
            values.float() if self.quantiser is None else self.quantiser.values(values)
        )
        return logits


def fit(
    task: AutoencoderTask | ClassifierTask,
    scan: Scan,
    *,
    epochs: int,
    folder: str | Path | None = None,
    every_n_steps: int | None = None,
    resume: str | Path | None = None,
    **options: Any,
) -> lightning.Trainer:
    """Train for so many epochs of a scan, whose shuffle and batch size hold for each rank; the Trainer.

    Args:
        folder: where checkpoints go: the last one, after every epoch or every so many steps. None: none are kept.
        resume: a checkpoint, with which the run goes on at the next batch as if it had never stopped.
        options: what `lightning.Trainer` takes: `accelerator`, `devices`, `strategy`, `precision`, ...

    Raises:
        SchemaError: the scan has not the columns that the task trains on, or classes that are no numbers.
    """
    epochs = whole("epochs", epochs, least=1)
    if isinstance(scan, Scan) and not scan.is_mapped:
        _check_columns(scan, task.field, task.label)
    saved = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=folder, filename="last", every_n_train_steps=every_n_steps, enable_version_counter=False
    )
    chosen = {
        "accelerator": "auto",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "use_distributed_sampler": False,
        **options,
    }
    chosen["callbacks"] = [*([] if folder is None else [saved]), *options.get("callbacks", [])]
    trainer = lightning.Trainer(max_epochs=epochs, enable_checkpointing=folder is not None, **chosen)
    task.batches = loader(scan)
    trainer.fit(task, task.batches, ckpt_path=resume)
    return trainer


def _check_columns(scan: Scan, field: str, label: str | None) -> None:
    schema = scan.schema
    for name in (field, label):
        if name is not None and name not in schema.names:
            raise SchemaError(
                f"the task trains on the column {name!r}; the scan has {', '.join(schema.names)}"
            )
    kind = None if label is None else schema.field(label).type
    if kind is not None and not (pa.types.is_integer(kind) or pa.types.is_dictionary(kind)):
        raise SchemaError(
            f"column {label!r} is {kind}; classes are whole numbers, or codes of a dictionary column"
        )

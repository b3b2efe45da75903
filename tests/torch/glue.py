"""Training programs, each run as one of two processes: `python glue.py PROGRAM LAKE OUT`.

Each writes the rows that its rank trained on, and how many steps that took, to OUT.RANK.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lake

BATCH = 8


def number(sample: Any) -> int:
    return int(sample[1]["n"])


def loss_of(model: Any, rows: torch.Tensor) -> torch.Tensor:
    return model(rows[:, None].float() / 100).square().mean()  # type: ignore[no-any-return]


def ddp(ds: Any) -> list[list[int]]:
    """Gradients are all-reduced at each step: unequal counts would hang."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(1, 1))
    seen: list[list[int]] = []
    scan = lake.torch.loader(ds.scan(["n"], batch_size=BATCH))
    pipe = lake.torch.loader(ds.samples(columns=["n"]).map(number).batch(BATCH).map(torch.tensor))
    for rows in [*(batch["n"] for batch in scan), *pipe]:
        loss_of(model, rows).backward()
        seen.append(rows.tolist())
    assert len(seen) == len(scan) + len(pipe)
    return seen


def fsdp(ds: Any) -> list[list[int]]:
    """A rank for each shard of the model; parameters are gathered at each step."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    model: Any = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
    fully_shard(model, mesh=mesh)
    seen = []
    for batch in lake.torch.loader(ds.scan(["n"], batch_size=BATCH), mesh=mesh["dp"]):
        loss_of(model, batch["n"]).backward()
        seen.append(batch["n"].tolist())
    return seen


def stop(ds: Any) -> list[list[int]]:
    """Counts that nobody knows, a seed that nobody chose, and a state of both ranks."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(1, 1))
    uneven = ds.samples(columns=["n"]).map(number).filter(lambda n: n % 4 or n > 60).shuffle(8).batch(2)
    loader = lake.torch.loader(uneven.map(torch.tensor), even="stop", gather=True, num_workers=1)
    seen, states = [], []
    for rows in loader:
        loss_of(model, rows).backward()
        seen.append(rows.tolist())
        states.append(loader.state_dict())
    everybody: list[Any] = [None, None]
    dist.all_gather_object(everybody, states[3])
    assert everybody[0] == everybody[1]
    loader.load_state_dict(json.loads(json.dumps(states[3])))
    assert [rows.tolist() for rows in loader] == seen[4:]
    return seen


def lightning(ds: Any) -> list[list[int]]:
    """The loader as it is."""
    import lightning as pl

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = nn.Linear(1, 1), list[list[int]]()

        def training_step(self, batch: Any, _: int) -> Any:
            self.seen.append(batch["n"].tolist())
            return loss_of(self.layer, batch["n"])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    model = Model()
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, lake.torch.loader(ds.scan(["n"], batch_size=BATCH)))
    return model.seen


def accelerate(ds: Any) -> list[list[int]]:
    """`prepare` hands it back unchanged."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = lake.torch.loader(ds.samples(columns=["n"]).map(number).batch(BATCH).map(torch.tensor))
    model, prepared = accelerator.prepare(nn.Linear(1, 1), loader)
    assert prepared is loader
    seen = []
    for rows in prepared:
        accelerator.backward(loss_of(model, rows))
        seen.append(rows.tolist())
    return seen


def trainer(ds: Any) -> list[list[int]]:
    """A plain Trainer gets it from `get_train_dataloader`."""
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = nn.Linear(1, 1), list[list[int]]()

        def forward(self, n: Any) -> dict[str, Any]:
            self.seen.append(n.tolist())
            return {"loss": loss_of(self.layer, n)}

    class Mine(Trainer):
        def get_train_dataloader(self) -> Any:
            return lake.torch.loader(ds.scan(["n"], batch_size=BATCH))

    model = Model()
    options = TrainingArguments(
        output_dir=sys.argv[3], use_cpu=True, num_train_epochs=1, report_to=[], save_strategy="no",
        disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    Mine(model=model, args=options).train()
    return model.seen


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    program, folder, out = sys.argv[1:]
    seen = globals()[program](lake.open(folder).dataset("rows"))
    Path(f"{out}.{os.environ['RANK']}").write_text(json.dumps(seen))
    if dist.is_initialized():
        dist.destroy_process_group()

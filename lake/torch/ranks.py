"""Which share of the data this process takes: found when iteration starts, never before."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.distributed as dist

from lake.plan import Ranks

# A launcher's variables: rank, ranks, and ranks of this node or nodes. SLURM's are those of a step, which `srun`
# sets for each task; a script that merely runs inside an allocation is no rank of anything.
_TORCHRUN: Final = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_MPI: Final = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_SLURM: Final = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES")


def find_ranks(rank: int | None = None, world_size: int | None = None, mesh: Any = None) -> Ranks:
    """This process's rank: as given, of a device mesh, of `torch.distributed`, or as a launcher says; else 0 of 1.

    `mesh`: a one-dimensional `DeviceMesh` of the data-parallel ranks, such as `mesh["dp"]`.

    Raises:
        ValueError: one of a pair is missing, or a mesh of several dimensions.
    """
    if mesh is not None:
        if rank is not None or world_size is not None:
            raise ValueError("mesh= says what rank= and world_size= say: give one of them")
        if mesh.ndim != 1:
            raise ValueError(
                f"mesh= is that of the data-parallel ranks, such as mesh['dp'], not one of {mesh.ndim} dimensions"
            )
        return Ranks(mesh.get_local_rank(), mesh.size())
    if rank is not None or world_size is not None:
        found = Ranks.of(rank, world_size)
        assert found is not None
        return found
    if has_group():
        return _on_nodes(dist.get_rank(), dist.get_world_size(), _local_size(os.environ))
    return launched(os.environ)


def has_group() -> bool:
    """Whether `torch.distributed` is there to ask."""
    return bool(dist.is_available() and dist.is_initialized())


def launched(environment: Mapping[str, str]) -> Ranks:
    """What a launcher's variables say.

    >>> launched({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"})
    Ranks(rank=3, world_size=8, nodes=2)
    >>> launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"})
    Ranks(rank=0, world_size=1, nodes=1)
    """
    for names in (_TORCHRUN, _MPI):
        if names[0] in environment and names[1] in environment:
            rank, world_size = (_number(environment, name) or 0 for name in names[:2])
            return _on_nodes(rank, world_size, _number(environment, names[2]))
    rank_name, size_name, nodes_name = _SLURM
    if rank_name in environment and size_name in environment:
        world_size, nodes = _number(environment, size_name) or 0, _number(environment, nodes_name) or 1
        return _on_nodes(_number(environment, rank_name) or 0, world_size, world_size // nodes)
    return Ranks(0, 1)


def is_cut_by_accelerate() -> bool:
    """Whether this process is one of several under Accelerate, which cuts what a DataLoader gives."""
    state = sys.modules.get("accelerate.state")
    shared: Mapping[str, Any] = {} if state is None else state.PartialState._shared_state
    return int(shared.get("num_processes") or 1) > 1


def _on_nodes(rank: int, world_size: int, local: int | None) -> Ranks:
    """Ranks numbered node by node, where each node has as many."""
    nodes = world_size // local if local and world_size % local == 0 else 1
    return Ranks(rank, world_size, nodes)


def _local_size(environment: Mapping[str, str]) -> int | None:
    return _number(environment, _TORCHRUN[2]) or _number(environment, _MPI[2])


def _number(environment: Mapping[str, str], name: str) -> int | None:
    if name not in environment:
        return None
    try:
        return int(environment[name])
    except ValueError:
        raise ValueError(f"the variable {name} is a whole number, not {environment[name]!r}") from None


def agree(value: Any, mesh: Any = None) -> Any:
    """The first rank's value, on every rank: a collective."""
    group = None if mesh is None else mesh.get_group()
    found = [value]
    dist.broadcast_object_list(found, src=0 if group is None else dist.get_global_rank(group, 0), group=group)
    return found[0]


def gathered(value: Any, mesh: Any = None) -> list[Any]:
    """Every rank's value, on every rank: a collective."""
    group = None if mesh is None else mesh.get_group()
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group=group)
    return found


class Flag:
    """Whether all ranks go on, asked at each step: a collective, over a group of its own that needs no device."""

    def __init__(self, mesh: Any = None) -> None:
        ranks = None if mesh is None else dist.get_process_group_ranks(mesh.get_group())
        self._group = dist.new_group(ranks, backend="gloo", use_local_synchronization=ranks is not None)

    def all_go_on(self, goes_on: bool) -> bool:
        """Whether every rank goes on."""
        flag = torch.tensor([goes_on], dtype=torch.uint8)
        dist.all_reduce(flag, dist.ReduceOp.MIN, group=self._group)
        return bool(flag.item())

"""Samples, committed once, streamed anywhere: a columnar data lake for machine learning.

import lake

lk = lake.open("./mylake")
lk.commit("birds", "recordings/")
birds = lk.dataset("birds")
for batch in birds.scan(batch_size=64, shuffle=True).to_torch():
    train(batch)
lk.sql("select label, count(*) from birds group by label")
"""

import importlib
import typing

from lake.errors import (
    ArchiveError,
    BudgetError,
    CommitStateUnknown,
    ConfigError,
    ConflictError,
    FormatError,
    IntegrityError,
    LakeError,
    NotFoundError,
    NotReproducibleError,
    SchemaError,
    StoreError,
    VersionExpired,
)

if typing.TYPE_CHECKING:
    from lake.archives import archive
    from lake.dataset import Dataset
    from lake.pipeline import (
        Pipeline,
        PipelinePlan,
        choice,
        concat,
        from_iterable,
        merge_states,
        mix,
        random_stream,
        seeded,
        seeded_rng,
        select,
        zip,
        zip_with,
    )
    from lake.repo import Lake, open
    from lake.snapshot import Version

__version__ = "0.1.0"

__all__ = [
    "ArchiveError",
    "BudgetError",
    "CommitStateUnknown",
    "ConfigError",
    "ConflictError",
    "Dataset",
    "FormatError",
    "IntegrityError",
    "Lake",
    "LakeError",
    "NotFoundError",
    "NotReproducibleError",
    "Pipeline",
    "PipelinePlan",
    "SchemaError",
    "StoreError",
    "Version",
    "VersionExpired",
    "archive",
    "choice",
    "concat",
    "from_iterable",
    "merge_states",
    "mix",
    "open",
    "random_stream",
    "seeded",
    "seeded_rng",
    "select",
    "zip",
    "zip_with",
]

_HOMES = {
    "Dataset": "lake.dataset",
    "Lake": "lake.repo",
    "Pipeline": "lake.pipeline",
    "PipelinePlan": "lake.pipeline",
    "Version": "lake.snapshot",
    "archive": "lake.archives",
    "choice": "lake.pipeline",
    "concat": "lake.pipeline",
    "from_iterable": "lake.pipeline",
    "merge_states": "lake.pipeline",
    "mix": "lake.pipeline",
    "open": "lake.repo",
    "random_stream": "lake.pipeline",
    "seeded": "lake.pipeline",
    "seeded_rng": "lake.pipeline",
    "select": "lake.pipeline",
    "zip": "lake.pipeline",
    "zip_with": "lake.pipeline",
}
_MODULES = frozenset({"algebra", "codecs", "live", "neural", "ray", "torch"})


if not typing.TYPE_CHECKING:  # a type checker reads the imports above, and refuses other names

    def __getattr__(name: str) -> object:
        """Import what is behind a public name when it is first used: Arrow alone takes longer than Python."""
        if name in _MODULES:
            return importlib.import_module(f"lake.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'lake' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES})

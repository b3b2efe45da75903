"""Samples, committed once, streamed anywhere: a columnar data lake for machine learning.

import lake

lk = lake.open("./mylake")
lk.commit("birds", "recordings/")
birds = lk.dataset("birds")
for batch in birds.scan(batch_size=64, shuffle=True).to_torch():
    train(batch)
lk.sql("select label, count(*) from birds group by label")
"""

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

__version__ = "0.1.0"

__all__ = [
    "ArchiveError",
    "BudgetError",
    "CommitStateUnknown",
    "ConfigError",
    "ConflictError",
    "FormatError",
    "IntegrityError",
    "LakeError",
    "NotFoundError",
    "NotReproducibleError",
    "SchemaError",
    "StoreError",
    "VersionExpired",
]

"""From the content of a pool to ResourceSlice bodies: limits, splitting, order, generation. Pure.

`pool_specs` is the way through: check, lay out, encode, number.
"""

from dradriver.slices.check import LeftOut
from dradriver.slices.diff import Earlier, next_generation, same
from dradriver.slices.encode import ApiShape, Body
from dradriver.slices.pool import Pool, PoolSpecs, pool_specs

__all__ = [
    "ApiShape",
    "Body",
    "Earlier",
    "LeftOut",
    "Pool",
    "PoolSpecs",
    "next_generation",
    "pool_specs",
    "same",
]

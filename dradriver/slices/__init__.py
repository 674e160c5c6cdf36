"""From the content of a pool to ResourceSlice bodies: limits, splitting, order, generation. Pure.

`pool_specs` is the way through: check, reduce to what the server stores, lay out, encode, number.
"""

from dradriver.slices.check import LeftOut
from dradriver.slices.diff import UNSOUND_GENERATION, Earlier, next_generation, same
from dradriver.slices.encode import Body, NodeAllocatableField, slice_object
from dradriver.slices.features import ApiFeatures, Feature, features_of, learned, probes, still_stored
from dradriver.slices.pool import Pool, PoolSpecs, pool_specs
from dradriver.slices.refusal import offenders, only

__all__ = [
    "UNSOUND_GENERATION",
    "ApiFeatures",
    "Body",
    "Earlier",
    "Feature",
    "LeftOut",
    "NodeAllocatableField",
    "Pool",
    "PoolSpecs",
    "features_of",
    "learned",
    "next_generation",
    "offenders",
    "only",
    "pool_specs",
    "probes",
    "same",
    "slice_object",
    "still_stored",
]

"""The function that flat_map.yaml names."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def words_of(reviews: DataFrame) -> DataFrame:
    """One row for each word of a review. `_topic`, `_partition` and `_offset` go along, and say which review it was."""
    word = F.explode(F.split(F.lower("value"), " ")).alias("word")
    return reviews.select(word, "_topic", "_partition", "_offset")

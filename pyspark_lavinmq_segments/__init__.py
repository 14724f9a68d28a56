"""Where Spark finds the format `lavinmq-segments`: it imports every module named `pyspark_...`.

It does so in every session on the machine and gives up looking when one of them fails, so this
imports nothing, and has no `DefaultSource` where the format cannot work.
"""


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        try:
            from lavinmq.spark import SegmentDataSource
        except ImportError as error:
            raise AttributeError(str(error)) from None
        return SegmentDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

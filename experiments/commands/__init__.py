"""What commands in experiments/ share: flags, start and end, processes, the cache of compiled
programs, and run folders in buckets.
"""

from experiments.commands import buckets  # noqa: F401  it enters the storage of gs://

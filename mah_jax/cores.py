"""The processor cores of this machine."""

import os


def usable() -> int:
  """How many cores this process may use."""
  if hasattr(os, 'sched_getaffinity'):  # Linux
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1

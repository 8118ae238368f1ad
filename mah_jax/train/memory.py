"""The memory of devices: how much there is, and how much a program will need."""

from __future__ import annotations

import os
from collections.abc import Sequence

import jax

MEGABYTE = 2**20


def limit(devices: Sequence[jax.Device]) -> int | None:
  """Bytes that programs may use on each device; None where that is not known, as on CPUs."""
  stats = [device.memory_stats() or {} for device in devices]
  return min((known['bytes_limit'] for known in stats if 'bytes_limit' in known), default=None)


def of_machine() -> int:
  """Bytes of memory that this machine has."""
  return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')


def needed(program: jax.stages.Compiled) -> int:
  """Bytes that a program needs on each device, what it reads and what it returns included."""
  plan = program.memory_analysis()
  return (plan.argument_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
          + plan.temp_size_in_bytes)

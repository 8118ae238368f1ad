"""What several runs in one process share: datasets, features, and programs once compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mah_jax import config as config_lib
from mah_jax import options
from mah_jax.data import datasets
from mah_jax.methods import scaling
from mah_jax.train import dataset as dataset_lib
from mah_jax.train import features as features_lib
from mah_jax.train import step as step_lib

FILES = ('dataset', 'data_dir')
SPLIT = (*FILES, 'protocol', 'query_fraction', 'query_list', 'split_seed')
EXTRACTION = (*FILES, 'backbone', 'pretrained', 'feature', 'width', 'image_size', 'crop',
              'precision', 'mirror')
ROWS = (*EXTRACTION, 'input', 'keep_maps', 'frozen_stages', 'resident_mb', 'num_devices')
# Runs whose programs are kept. On CPUs each takes some 350 pieces of memory, of which Linux gives
# 65,530 to a process: after 180 runs with other settings compilation failed.
KEPT_PROGRAMS = 40


class Sources:
  """Loads what a run reads, once for all runs that read the same."""

  def __init__(self):
    self._kept: dict[tuple, Any] = {}
    self._programs: dict[tuple, Any] = {}

  def dataset(self, config: config_lib.Config) -> datasets.Dataset:
    """The dataset of a run."""
    return self._once(config, SPLIT, lambda: dataset_lib.load(config))

  def features(self, config: config_lib.Config, data: datasets.Dataset, devices: step_lib.Devices,
               maps: np.ndarray | None = None) -> features_lib.Features:
    """The features of its rows, made of `maps` of them where there are any."""
    return self._once(config, EXTRACTION,
                      lambda: features_lib.extract(config, data, devices, maps))

  def scaling(self, config: config_lib.Config, data: datasets.Dataset,
              devices: step_lib.Devices) -> scaling.Scaling:
    """The scaling that standardises them by the rows for training."""
    return self._once(config, EXTRACTION + SPLIT, lambda: scaling.standardize(
        self.features(config, data, devices).values[data.protocol.training]))

  def feed(self, config: config_lib.Config, load: Callable[[], Any]) -> Any:
    """What `load` returns: the way of rows to the devices, and the rows that are there already."""
    return self._once(config, ROWS, load)

  def programs(self, config: config_lib.Config, load: Callable[[], Any]) -> Any:
    """What `load` returns: programs that depend on the settings, but not on the seed."""
    names = (config_lib.settings(config).keys() - config_lib.changeable(config, options.ALWAYS)
             .keys() - {'seed'} | {'num_rounds', 'num_devices', *FILES})
    key = _key(config, tuple(sorted(names)))
    if key not in self._programs:
      if len(self._programs) == KEPT_PROGRAMS:
        self._programs.clear()
        jax.clear_caches()
      self._programs[key] = load()
    return self._programs[key]

  def _once(self, config: config_lib.Config, names: tuple[str, ...],
            load: Callable[[], Any]) -> Any:
    """What `load` returns; called once for all runs that agree in the flags of these names."""
    key = _key(config, names)
    if key not in self._kept:
      self._kept[key] = load()
    return self._kept[key]


def _key(config: config_lib.Config, names: tuple[str, ...]) -> tuple:
  """The flags of these names with their values."""
  settings = config_lib.settings(config)
  return names, *[options.text(settings.get(name, '')) for name in names]

"""What encoding does beside applying the network."""

import numpy as np
import toy

from mah_jax import experiment
from mah_jax.data import pipeline
from mah_jax.train import step


def test_with_mirror_an_image_and_its_mirror_image_are_averaged():
  data = toy.dataset()
  mirrored = data._replace(images=np.ascontiguousarray(data.images[:, :, ::-1]))
  rows = np.arange(70)  # one batch and a short one

  def outputs(data, **changes):
    config = toy.settings(**changes)
    devices = step.Devices(step.pick_devices(2), config.batch_size)
    made = experiment.Experiment(config, data, pipeline.Pixels(8, 1, (0.5,), (0.3,)), devices)
    return made.outputs(made.new_state(), rows)

  plain, other = outputs(data), outputs(mirrored)
  for u, v, mean in zip(plain, other, outputs(data, mirror=True)):
    assert np.abs(u - v).max() > 1e-3
    np.testing.assert_allclose(mean, (u + v) / 2, atol=1e-6)

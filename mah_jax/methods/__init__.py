"""The registry of methods: name -> make(config, labels)."""

from mah_jax.methods import mah

METHODS = {'mah': mah.make}

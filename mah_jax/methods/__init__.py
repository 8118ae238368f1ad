"""The registries of methods: deep ones, make(config, labels), and shallow ones, make(config)."""

from mah_jax.methods import cosdish
from mah_jax.methods import itq
from mah_jax.methods import ksh
from mah_jax.methods import lfh
from mah_jax.methods import lsh
from mah_jax.methods import mah
from mah_jax.methods import sdh

METHODS = {'mah': mah.make}

SHALLOW = {
    'lsh': lambda config: lsh.make(center=config.center),
    'itq': lambda config: itq.make(),
    'sdh': lambda config: sdh.make(anchors=config.anchors, sigma=config.sigma),
    'ksh': lambda config: ksh.make(anchors=config.anchors, labelled=config.labelled),
    'lfh': lambda config: lfh.make(columns=config.columns),
    'cosdish': lambda config: cosdish.make(columns=config.columns),
}

"""The registries: deep methods are made with (config, labels), shallow ones with (config)."""

from mah_jax.methods import adsh
from mah_jax.methods import classifier
from mah_jax.methods import cosdish
from mah_jax.methods import daph
from mah_jax.methods import dpsh
from mah_jax.methods import drsch
from mah_jax.methods import itq
from mah_jax.methods import ksh
from mah_jax.methods import lfh
from mah_jax.methods import lsh
from mah_jax.methods import mah
from mah_jax.methods import sdh

DEEP = {
    'mah': mah.make,
    'adsh': adsh.make,
    'dpsh': dpsh.make,
    'drsch': drsch.make,
    'classifier': classifier.make,
    'daph': daph.make,
}

SHALLOW = {
    'lsh': lambda config: lsh.make(center=config.center),
    'itq': lambda config: itq.make(),
    'sdh': lambda config: sdh.make(anchors=config.anchors, sigma=config.sigma),
    'ksh': lambda config: ksh.make(anchors=config.anchors, labelled=config.labelled),
    'lfh': lambda config: lfh.make(columns=config.columns),
    'cosdish': lambda config: cosdish.make(columns=config.columns),
}

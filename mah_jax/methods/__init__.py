"""The registry of methods; a method's facts are in its own file."""

from mah_jax.methods import adsh
from mah_jax.methods import base
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

DEFAULT = 'mah'
METHODS: dict[str, base.Spec] = {
    'mah': mah.SPEC,
    'adsh': adsh.SPEC,
    'dpsh': dpsh.SPEC,
    'drsch': drsch.SPEC,
    'daph': daph.SPEC,
    'classifier': classifier.SPEC,
    'lsh': lsh.SPEC,
    'itq': itq.SPEC,
    'sdh': sdh.SPEC,
    'ksh': ksh.SPEC,
    'lfh': lfh.SPEC,
    'cosdish': cosdish.SPEC,
}

"""What can be done: each file is the whole story of one --mode."""

from mah_jax.modes import check
from mah_jax.modes import encode
from mah_jax.modes import evaluate
from mah_jax.modes import export
from mah_jax.modes import index
from mah_jax.modes import search
from mah_jax.modes import serve
from mah_jax.modes import train

MODES = {'train': train.train, 'evaluate': evaluate.evaluate, 'encode': encode.encode,
         'search': search.search, 'index': index.index, 'serve': serve.serve,
         'export': export.export, 'check': check.check}

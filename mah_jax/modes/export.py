"""--mode=export: the database of a run, and its encoder, as files for other programs."""

from __future__ import annotations

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import errors
from mah_jax import options
from mah_jax import storage
from mah_jax.runs import folder as folder_lib
from mah_jax.search import export as export_lib
from mah_jax.search import searcher as searcher_lib
from mah_jax.search.export import content as content_lib
from mah_jax.train import dataset

MEGABYTE = 1e6


def export(config: config_lib.Config):
  """Writes the run in --workdir for --format to --output."""
  with console.StopRequest('Stopped; the export is what it was.'):
    export_lib.require(config.format)
    output = storage.path(config.output or f'{config.workdir}/exported/{config.format}')
    if config.output:
      folder_lib.RunFolder(config.workdir).check_output('output', output)
      dataset.check_apart(config, 'output', output)
    kind = f'an export for {config.format}'
    storage.check_replaceable(output, kind)
    searcher = searcher_lib.Searcher(config)
    content = content_lib.select(searcher, config.code_length, config.database)
    files = export_lib.FORMATS[config.format].files(searcher, content)
    console.pause()
    try:
      storage.replace_folder(output, files, kind)
    except OSError as error:
      raise errors.InputError(f'--output={output} cannot be written to ({error.strerror}): choose '
                              'another.') from error
    size = sum(map(len, files.values())) / MEGABYTE
    console.say(f'{len(content):,} rows with {content.kind} codes of '
                f'{options.text(tuple(content.codes))} bits exported for {config.format}, '
                f'{size:.1f} MB. Written to {output}; README.md there says how to use it.')

"""A script called npm that stands in for the real one."""

import os
import pathlib
from collections.abc import Callable


def install(folder: pathlib.Path, pack: str, monkeypatch) -> tuple[Callable, pathlib.Path]:
  """Puts the script first on PATH.

  Args:
    folder: an existing folder for the script and its log.
    pack: shell command that `npm pack` stands for.
    monkeypatch: of pytest.

  Returns:
    A function that gives it other commands for pack and view, and the log of its calls.
  """
  log = folder / 'npm.log'
  (folder / 'bin').mkdir()

  def script(pack, view='echo 0.0.1'):
    path = folder / 'bin' / 'npm'
    path.write_text(f'#!/bin/sh\necho "$@" >> {log}\n'
                    f'case "$1" in view) {view};; pack) {pack};; esac\n')
    path.chmod(0o755)

  monkeypatch.setenv('PATH', f'{folder}/bin:{os.environ["PATH"]}')
  script(pack)
  return script, log

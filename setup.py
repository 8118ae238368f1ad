"""The build: it takes place in a temporary folder, so that this tree stays as it is.

pyproject.toml has all settings but this one, which cannot stand there.
"""

import tempfile

import setuptools

with tempfile.TemporaryDirectory() as folder:
  setuptools.setup(options={'build': {'build_base': folder}, 'egg_info': {'egg_base': folder}})

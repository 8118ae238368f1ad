"""What runs of one process share."""

from mah_jax import config as config_lib
from mah_jax.train import sources as sources_lib


def test_programs_serve_all_seeds_and_make_room_for_others(monkeypatch):
  monkeypatch.setattr(sources_lib, 'KEPT_PROGRAMS', 2)
  cleared = []
  monkeypatch.setattr('jax.clear_caches', lambda: cleared.append(len(made)))  # others use them
  sources, made = sources_lib.Sources(), []

  def programs(**settings):
    return sources.programs(config_lib.make(**settings), lambda: made.append(settings) or settings)

  first = programs(gamma=1.0)
  assert programs(gamma=1.0, seed=7, workdir='elsewhere') is first
  assert programs(gamma=2.0) is not first
  assert programs(gamma=1.0) is first and len(made) == 2
  programs(gamma=3.0)  # the third: the others are let go
  programs(gamma=1.0)
  assert [settings['gamma'] for settings in made] == [1.0, 2.0, 3.0, 1.0] and cleared == [2]

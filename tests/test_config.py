"""The Config's checks, flags and flagfiles."""

import dataclasses
import json
import pathlib

import pytest

from mah_jax import config
from mah_jax import errors
from mah_jax import flags

LAUNCH = pathlib.Path(__file__).parents[1] / 'launch'


@pytest.mark.parametrize('changes, words', [
    ({'code_lengths': (8, 4), 'head_weights': (1.0, 1.0)}, 'ascending'),
    ({'code_lengths': (4, 4), 'head_weights': (1.0, 1.0)}, 'ascending'),
    ({'code_lengths': (), 'head_weights': ()}, 'ascending'),
    ({'code_lengths': (0, 4), 'head_weights': (1.0, 1.0)}, 'ascending'),
    ({'head_weights': (1.0, 2.0, 3.0, 4.0)}, '--head_weights=1,2,3,4'),
    ({'head_weights': ()}, '--head_weights='),
    ({'head_weights': (0.0, 0.0, 0.0)}, '--head_weights'),
    ({'similarity': 'soft'}, 'balanced, signed, standardized'),
    ({'batch_size': 0}, '--batch_size=0'),
    ({'num_rounds': 0}, '--num_rounds=0'),
    ({'seed': -1}, '--seed=-1'),
    ({'seed': 2**32}, '--seed'),
    ({'max_to_keep': 1}, '--max_to_keep=1'),
    ({'workdir': ''}, '--workdir'),
    ({'lr_drop_rounds': (3, -1)}, '--lr_drop_rounds=3,-1'),
    ({'head_weights': (1.0, float('inf'), 1.0)}, '--head_weights=1,inf,1'),
    ({'learning_rate': 0.0}, '--learning_rate'),
    ({'learning_rate': float('nan')}, '--learning_rate'),
    ({'gamma': float('nan')}, '--gamma=nan'),
    ({'momentum': 1.0}, '--momentum=1.0'),
    ({'crop': 0.0}, '--crop=0.0'),
    ({'warmup': 1.0}, '--warmup=1.0'),
    ({'method': 'none'}, '--method=none is not one of mah, adsh'),
    ({'hold_codes_rounds': 2}, '--code_init=codebook'),
    ({'code_init': 'alike'}, '--code_init=alike compares features .* --head_rounds'),
])
def test_a_wrong_value_is_refused_by_name(changes, words):
  with pytest.raises(errors.UsageError, match=words):
    config.make(**changes)


def test_flags_are_read_and_later_ones_win():
  made = flags.from_arguments(['--gamma=3', '--code_lengths=4,8', '--head_weights=2,1',
                               '--shuffle', '--gamma=5', '--lr_drop_rounds='])
  assert made == config.make(gamma=5.0, code_lengths=(4, 8), head_weights=(2.0, 1.0),
                             shuffle=True, lr_drop_rounds=())


@pytest.mark.parametrize('arguments, words', [
    (['--gama=3'], 'Did you mean: gamma'),
    (['--gamma=many'], 'gamma=many'),
    (['--code_lengths=4,x'], 'separated by commas'),
    (['--heads=tree'], 'one of flat, cascaded'),
    (['quickstart'], 'write --name=value'),
    (['--flagfile=missing.cfg'], 'quickstart.cfg'),
    (['--flagfile=elsewhere/quickstart.cfg'], 'does not exist'),
    (['--flagfile'], 'needs a file'),
])
def test_a_wrong_argument_is_explained(arguments, words):
  with pytest.raises(errors.UsageError) as caught:
    flags.from_arguments(arguments)
  assert words in str(caught.value)


def test_flagfiles_nest_and_have_comments(tmp_path):
  inner, outer = tmp_path / 'inner.cfg', tmp_path / 'outer.cfg'
  inner.write_text('# inner\n--gamma=1\n--seed=7\n')
  outer.write_text(f'// outer\n\n--flagfile={inner}\n  --gamma=2\n')
  made = flags.from_arguments([f'--flagfile={outer}'])
  assert (made.options.gamma, made.seed) == (2.0, 7)


def test_a_flagfile_that_includes_itself_is_refused(tmp_path):
  path = tmp_path / 'loop.cfg'
  path.write_text(f'--flagfile={path}\n')
  with pytest.raises(errors.UsageError, match='includes itself'):
    flags.from_arguments([f'--flagfile={path}'])


def test_no_arguments_mean_the_quickstart_from_any_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert flags.from_arguments([]) == flags.from_arguments(['--flagfile=launch/quickstart.cfg'])
  assert flags.from_arguments([]).dataset == 'digits'


@pytest.mark.parametrize('path', sorted(LAUNCH.glob('*.cfg')), ids=lambda path: path.name)
def test_every_launch_file_is_a_valid_run_and_opens_with_its_claim(path):
  flags.from_arguments([f'--flagfile={path}'])
  first = path.read_text().splitlines()[0]
  assert first.startswith('# python -m mah_jax.main --flagfile=launch/') or 'profile' in path.name


def test_evaluate_takes_the_flags_of_the_run(tmp_path):
  trained = config.make(workdir=str(tmp_path), gamma=3.25, head_weights=(0.1, 1 / 3, 1.0),
                        shuffle=True, lr_drop_rounds=(), num_devices=7)
  (tmp_path / 'config.json').write_text(json.dumps({'flags': config.to_json(trained)}))
  for given, devices in ([], 0), (['--num_devices=2'], 2):  # the machine may be another
    made = flags.from_arguments(['--mode=evaluate', f'--workdir={tmp_path}', *given])
    assert made == dataclasses.replace(trained, mode='evaluate', num_devices=devices)
  assert config.differences(made, config.to_json(trained)) == []


def test_a_run_is_lengthened_unless_its_rate_depends_on_the_end():
  for schedule, different in ('steps', []), ('triangle', ['--num_rounds=9 (was 5)']):
    before = config.make(num_rounds=5, lr_schedule=schedule)
    longer = dataclasses.replace(before, num_rounds=9)
    assert config.differences(longer, config.to_json(before)) == different


@pytest.mark.parametrize('content', ['{"flags": {"gone": 1}}', '[]', '{', '{}', '{"flags": 3}'])
def test_a_config_json_that_cannot_be_used_is_refused(tmp_path, content):
  (tmp_path / 'config.json').write_text(content)
  with pytest.raises(errors.InputError, match='gone|damaged'):
    flags.from_arguments(['--mode=evaluate', f'--workdir={tmp_path}'])


def test_a_flagfile_of_other_bytes_is_refused(tmp_path):
  (tmp_path / 'bytes.cfg').write_bytes(b'\xff\xfe--gamma=3')
  with pytest.raises(errors.UsageError):
    flags.from_arguments([f'--flagfile={tmp_path / "bytes.cfg"}'])


def test_differences_name_what_changed_and_free_fields_do_not_count():
  saved = config.to_json(config.make(gamma=1.0, num_rounds=3))
  now = config.make(gamma=2.0, num_rounds=9, workdir='elsewhere')
  assert config.differences(now, saved) == ['--gamma=2.0 (was 1.0)']


def test_options_of_other_methods_keep_no_run_from_being_resumed(tmp_path):
  now = config.make(method='itq', workdir=str(tmp_path))
  saved = config.to_json(now) | {'eta': 3.0, 'gamma': 1.0, 'num_rounds': 7}
  assert config.differences(now, saved) == []
  (tmp_path / 'config.json').write_text(json.dumps({'flags': saved}))
  made = flags.from_arguments(['--mode=evaluate', f'--workdir={tmp_path}'])
  assert made == dataclasses.replace(now, mode='evaluate')


def test_config_json_has_every_flag():
  saved = config.to_json(config.make(method='sdh', anchors=7))
  assert saved.keys() == config.all_fields().keys()
  assert (saved['anchors'], saved['eta'], saved['code_lengths']) == (7, 50.0, [4, 6, 8])


def test_help_names_every_flag_with_a_sentence():
  text = flags.help_text()
  for name, field in config.all_fields().items():
    assert text.count(f'  --{name}=') == 1
    assert field.metadata['doc'].endswith('.')


def test_help_shows_flags_in_groups_and_options_under_their_methods():
  groups = dict(part.split(':', 1) for part in flags.help_text().split('\n\n')[1:])
  assert list(groups)[:5] == ['Method', 'Network', 'Data', 'Training', 'Run']
  assert '--backbone=' in groups['Network'] and '--learning_rate=' in groups['Training']
  assert '--eta=' in groups['Options of dpsh'] and '--gamma=' in groups['Options of mah and adsh']
  assert '--heads=' in groups['Options of mah']

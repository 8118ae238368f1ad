"""Runs of deep baselines from the command line: scored again, cut, encoded, started from others."""

import json

import image_files
import numpy as np

from mah_jax import main

TINY = ['--dataset=digits', '--backbone=compact', '--width=4', '--image_size=0', '--crop=1.0',
        '--normalize=dataset', '--batch_size=64', '--num_rounds=1', '--epochs_per_round=2',
        '--num_sampled=64', '--learning_rate=0.01', '--num_devices=1']


def _results(folder):
  return json.loads((folder / 'results.json').read_text())


def test_a_drsch_run_is_cut_to_other_lengths_and_encodes(tmp_path, capsys):
  workdir, photos = tmp_path / 'run', tmp_path / 'photos'
  photos.mkdir()
  (photos / 'a.png').write_bytes(image_files.encode(np.zeros((8, 8), np.uint8)))
  assert main.main([*TINY, '--method=drsch', '--code_lengths=4,8', f'--workdir={workdir}']) == 0
  before = _results(workdir)
  assert 'weighted' in capsys.readouterr().out
  weights = np.load(workdir / 'codes' / 'bit_weights_8.npy')
  assert np.all(np.diff(weights) <= 0) and len(weights) == 8
  evaluate = ['--mode=evaluate', f'--workdir={workdir}', '--num_devices=1']
  assert main.main([*evaluate, '--code_lengths=4,6,8']) == 0
  after = _results(workdir)
  assert list(after['metrics']) == ['4', '6', '8']
  assert after['metrics']['8'] == before['metrics']['8']
  assert main.main([*evaluate, '--code_lengths=4,6']) == 2
  assert main.main(['--mode=encode', f'--workdir={workdir}', f'--images={photos}',
                    '--num_devices=1']) == 0
  assert (workdir / 'encoded' / 'bit_weights_4.npy').exists()


def test_a_daph_run_starts_from_another_and_is_scored_both_ways(tmp_path):
  first, second = tmp_path / 'first', tmp_path / 'second'
  daph = [*TINY, '--method=daph', '--code_lengths=6']
  assert main.main([*TINY, '--method=adsh', '--code_lengths=6', f'--workdir={first}']) == 0
  assert main.main([*daph, f'--pretrained={first}', f'--workdir={second}']) == 0
  one = _results(second)['metrics']['6']['encoded']
  for towers, same in (('symmetric', False), ('asymmetric', True)):
    assert main.main(['--mode=evaluate', f'--towers={towers}', f'--workdir={second}',
                      '--num_devices=1']) == 0
    assert (_results(second)['metrics']['6']['encoded'] == one) == same

"""Runs of deep baselines from the command line: scored again, cut, encoded, started from others."""

import json
import shutil

import image_files
import numpy as np
import pytest

from mah_jax import main
from mah_jax.evaluation import metrics
from mah_jax.train import encoder

TINY = ['--dataset=digits', '--backbone=compact', '--width=4', '--image_size=0', '--crop=1.0',
        '--normalize=dataset', '--batch_size=64', '--num_rounds=1', '--epochs_per_round=2',
        '--num_sampled=64', '--learning_rate=0.01', '--num_devices=1']


def _results(folder):
  return json.loads((folder / 'results.json').read_text())


@pytest.fixture
def encoded(monkeypatch):
  """How many rows each pass through a network encodes, in a list that grows."""
  found, encode = [], encoder.Encoder.__call__

  def count(self, variables, feed, rows, name):
    found.append(len(rows))
    return encode(self, variables, feed, rows, name)

  monkeypatch.setattr(encoder.Encoder, '__call__', count)
  return found


def test_a_drsch_run_is_cut_to_other_lengths_and_encodes(tmp_path, capsys, encoded):
  workdir, photos = tmp_path / 'run', tmp_path / 'photos'
  photos.mkdir()
  (photos / 'a.png').write_bytes(image_files.encode(np.zeros((8, 8), np.uint8)))
  assert main.main([*TINY, '--method=drsch', '--code_lengths=4,8', f'--workdir={workdir}']) == 0
  assert sorted(encoded) == [100, 1697]  # queries and database, once
  before = _results(workdir)
  assert 'weighted' in capsys.readouterr().out
  queries, database, weights, *labels = (
      np.load(workdir / 'codes' / f'{name}.npy') for name in (
          'queries_8', 'database_8', 'bit_weights_8', 'query_labels', 'database_labels'))
  assert np.all(np.diff(weights) <= 0) and len(weights) == 8
  plain, weighted = (metrics.evaluate(queries, database, *labels, weights=w)
                     for w in (None, weights))
  outputs, = np.load(workdir / 'codes.npz')['outputs_8']
  by_outputs = metrics.evaluate_outputs(outputs, database, *labels)
  assert before['metrics']['8']['encoded'] == plain | {'outputs': by_outputs}
  assert before['metrics']['8']['weighted'] == pytest.approx(weighted)
  assert plain['map'] != weighted['map']
  evaluate = ['--mode=evaluate', f'--workdir={workdir}', '--num_devices=1']
  assert main.main([*evaluate, '--code_lengths=4,6,8']) == 0
  after = _results(workdir)
  assert list(after['metrics']) == ['4', '6', '8']
  assert after['metrics']['8'] == before['metrics']['8']
  assert main.main([*evaluate, '--code_lengths=4,6']) == 2
  assert main.main(['--mode=encode', f'--workdir={workdir}', f'--images={photos}',
                    '--num_devices=1']) == 0
  assert (workdir / 'encoded' / 'bit_weights_4.npy').exists()
  assert main.main(['--mode=encode', f'--workdir={workdir}', f'--images={photos}',
                    '--num_devices=1', '--code_lengths=6,8']) == 0
  assert sorted(path.name for path in (workdir / 'encoded').iterdir()) == [
      'bit_weights_6.npy', 'bit_weights_8.npy', 'codes_6.npy', 'codes_8.npy', 'files.jsonl',
      'skipped.jsonl', 'written.json']
  assert main.main([*evaluate, '--code_lengths=6,8']) == 0
  last = _results(workdir)
  shutil.rmtree(workdir / 'checkpoints')  # codes alone are scored alike, at their own lengths
  for lengths in ([], ['--code_lengths=6,8']):
    assert main.main([*evaluate, *lengths]) == 0
    assert _results(workdir) == last
  assert main.main([*evaluate, '--code_lengths=4,8']) == 2


def test_a_daph_run_starts_from_another_and_is_scored_both_ways(tmp_path):
  first, second = tmp_path / 'first', tmp_path / 'second'
  daph = [*TINY, '--method=daph', '--code_lengths=6']
  assert main.main([*TINY, '--method=adsh', '--code_lengths=6', f'--workdir={first}']) == 0
  assert main.main([*daph, f'--pretrained={first}', f'--workdir={second}']) == 0

  def codes():
    return {name: np.load(second / 'codes' / f'{name}_6.npy') for name in ('queries', 'database')}

  first, scores = codes(), _results(second)['metrics']['6']['encoded']
  for towers, same in (('symmetric', False), ('asymmetric', True)):
    assert main.main(['--mode=evaluate', f'--towers={towers}', f'--workdir={second}',
                      '--num_devices=1']) == 0
    assert (_results(second)['metrics']['6']['encoded'] == scores) == same
    assert np.array_equal(codes()['queries'], first['queries']) == same
    np.testing.assert_array_equal(codes()['database'], first['database'])

"""Where MAH earns its place: labels that are wrong, few or many, and classes never seen.

PYTHONPATH=. python benchmarks/hard_cases.py [--data_dir=data] [--seeds=5]

Networks and shallow methods on fixed ResNet-50 features at 96 px. All networks have one hidden
layer and see every training row ten times; no setting was changed for a case. Each line of
scores.jsonl is one run; runs that are there are not made again. tables.md beside it has the tables,
README.md says how the rates were chosen.
"""

import argparse
import json
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from mah_jax import compiling
from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import flags
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.evaluation import intervals
from mah_jax.evaluation import scores
from mah_jax.train import backbone
from mah_jax.train import shallow
from mah_jax.train import sources as sources_lib
from mah_jax.train import step
from mah_jax.train import trainer as trainer_lib

LENGTHS = (4, 8)  # the lengths of the table; MAH-2 has a head of 6 bits too
NETWORK = ('--flagfile=launch/profile_network.cfg', '--flagfile=launch/profile_features.cfg',
           '--optimizer=adam', '--lr_schedule=triangle', '--epochs_per_round=1', '--num_rounds=10',
           '--batch_size=64')
CODES = ('--learning_rate=0.003', '--scale_heads', '--code_init=codebook')
LEARNED = (*CODES, '--hold_codes_rounds=3')
HELD = (*CODES, '--hold_codes_rounds=10', '--binarize=nearest')
MAH = (*NETWORK, '--heads=cascaded', '--code_lengths=4,6,8', '--head_weights=4,2,1')
METHODS = {  # name in the table: flags
    'MAH-2': (*MAH, *LEARNED),
    'MAH-2, codes held': (*MAH, *HELD),
    'ADSH': (*NETWORK, '--method=adsh', *LEARNED),
    'classifier': (*NETWORK, '--method=classifier', '--code_lengths=4,8', '--learning_rate=0.001'),
    'COSDISH': ('--flagfile=launch/features_shallow.cfg', '--method=cosdish', '--num_seeds=1',
                '--code_lengths=4,8'),
    'ITQ': ('--flagfile=launch/features_shallow.cfg', '--method=itq', '--num_seeds=1',
            '--code_lengths=4,8'),
}
CONTROL = 'classifier'


class Case(NamedTuple):
  """A hard case.

  title: its row in the table.
  dataset: where its images come from.
  change: (dataset, generator) -> the dataset as methods see it, and the true labels, [rows, L].
  """
  title: str
  dataset: str
  change: Callable[[datasets.Dataset, np.random.Generator], tuple[datasets.Dataset, np.ndarray]]


def plain(data, rng):
  """The dataset as it is."""
  del rng
  return data, data.labels


def wrong(share: float):
  """A share of the database rows has another class than its own."""
  def change(data, rng):
    labels, rows = data.labels.copy(), data.protocol.database
    flipped = rng.choice(rows, round(share * len(rows)), replace=False)
    classes = labels.shape[1]
    others = (labels[flipped].argmax(axis=1) + rng.integers(1, classes, len(flipped))) % classes
    labels[flipped] = np.eye(classes, dtype=labels.dtype)[others]
    return data._replace(labels=labels), data.labels
  return change


def few(share: float):
  """A share of the database rows, the same of each class, is labelled: methods learn from it."""
  def change(data, rng):
    rows = data.protocol.database
    kind = data.labels[rows].argmax(axis=1)
    part = np.concatenate([rng.permutation(np.flatnonzero(kind == c))[
        :round(share * np.count_nonzero(kind == c))] for c in range(data.labels.shape[1])])
    part = rows[np.sort(part)]
    return data._replace(protocol=data.protocol._replace(training_part=part)), data.labels
  return change


def unseen(classes: int):
  """Methods learn from the other classes; queries and database are of classes never seen."""
  def change(data, rng):
    hidden = rng.choice(data.labels.shape[1], classes, replace=False)
    split = data.protocol
    is_hidden = data.labels[:, hidden].any(axis=1)
    return data._replace(protocol=split._replace(
        queries=split.queries[is_hidden[split.queries]],
        database=split.database[is_hidden[split.database]],
        training_part=split.database[~is_hidden[split.database]])), data.labels
  return change


def label_sets(count: int, queries: int = 5):
  """The commonest sets of labels are the classes, with so many queries of each."""
  def change(data, rng):
    sets, set_of, sizes = np.unique(data.labels, axis=0, return_inverse=True, return_counts=True)
    sizes[~sets.any(axis=1)] = 0  # no label is no class
    chosen = np.argsort(-sizes, kind='stable')[:count]
    place = np.full(len(sets), -1)
    place[chosen] = np.arange(count)
    kind = place[set_of]
    labels = np.zeros((len(kind), count), np.uint8)
    labels[kind >= 0, kind[kind >= 0]] = 1
    of_class = [rng.permutation(np.flatnonzero(kind == c)) for c in range(count)]
    split = data.protocol._replace(
        queries=np.concatenate([rows[:queries] for rows in of_class]),
        database=np.sort(np.concatenate([rows[queries:] for rows in of_class])),
        training_part=None)
    return data._replace(labels=labels, protocol=split,
                         class_names=tuple(map(str, range(count)))), labels
  return change


CASES = {
    'plain': Case('CIFAR-10 as it is', 'cifar10', plain),
    'wrong_10': Case('10 % of the labels are wrong', 'cifar10', wrong(0.1)),
    'wrong_30': Case('30 % of the labels are wrong', 'cifar10', wrong(0.3)),
    'few_10': Case('10 % of the rows are labelled', 'cifar10', few(0.1)),
    'few_1': Case('1 % of the rows are labelled', 'cifar10', few(0.01)),
    'unseen': Case('3 of 10 classes never seen, searched alone', 'cifar10', unseen(3)),
    'several': Case('several labels an image: MIRFlickr-25K', 'mirflickr', plain),
    'sets_100': Case('100 classes: the commonest label sets of MIRFlickr-25K', 'mirflickr',
                     label_sets(100)),
}


def configs(method: str, case: Case, seed: int, data_dir: str) -> Iterator[config_lib.Config]:
  """The runs that a method needs for all lengths."""
  each = [f'--code_lengths={c}' for c in LENGTHS] if method == 'ADSH' else ['']
  for lengths in each:
    yield backbone.resolve(flags.from_arguments([
        *METHODS[method], f'--dataset={case.dataset}', f'--data_dir={data_dir}', f'--seed={seed}',
        f'--pretrained={data_dir}/resnet50_imagenet.safetensors', *filter(None, [lengths])]), None)


def run(config: config_lib.Config, data: datasets.Dataset, truth: np.ndarray,
        devices: step.Devices, sources: sources_lib.Sources) -> dict[str, dict[str, float]]:
  """MAP by length and kind of database codes, scored by the true labels."""
  split, updates = data.protocol, None
  if config.spec.trains_network:
    progress = trainer_lib.begin(config, data, devices, sources)
    for pause in progress.trainer.fit(progress.state, lambda steps: False):
      state = pause.state
    codes, updates = progress.trainer.codes(state), progress.trainer.code_updates(state)
  else:
    x = sources.features(config, data, devices).values
    training = None if split.training_part is None else x[split.training]
    codes = shallow.fit(config, x[split.queries], x[split.database], data.labels[split.training],
                        config.seed, training).codes
  found = {}
  for of_length in codes:
    kinds = scores.score(of_length, truth[split.queries], truth[split.database], k=5000,
                         code_updates=updates)
    found[str(of_length.queries.shape[1])] = {
        kind: kinds[kind]['map'] for kind in scores.KINDS if kind in kinds}
  return found


def read(file: pathlib.Path) -> dict[tuple[str, str, int], dict]:
  """The runs that were made, by case, method and seed."""
  lines = file.read_text().splitlines() if file.exists() else []
  return {(line['case'], line['method'], line['seed']): line['map'] for line in map(
      json.loads, lines)}


def table(made: dict[tuple[str, str, int], dict], kind: str, bits: int) -> list[str]:
  """Lines of a Markdown table: cases by methods; a star where one differs from the classifier."""
  lines = [f'| {bits} bits, {kind} codes | {" | ".join(METHODS)} |',
           '|---|' + '---|' * len(METHODS)]
  for name, case in CASES.items():
    values = {method: {} for method in METHODS}
    for (of_case, method, seed), lengths in made.items():
      kinds = lengths.get(str(bits), {})
      value = kinds.get('encoded') if kind == 'encoded' else kinds.get(
          'learned', kinds.get('assigned'))
      if of_case == name and value is not None:
        values[method][seed] = value
    cells = []
    for of_seed in values.values():
      if not of_seed:
        cells.append('')
        continue
      mean, apart = intervals.of(list(of_seed.values())), intervals.paired(of_seed, values[CONTROL])
      star = ' *' if apart and apart.low * apart.high > 0 else ''
      cells.append(f'{mean.mean:.3f} ±{mean.half:.3f}{star}')
    if any(cells):
      lines.append(f'| {case.title} | {" | ".join(cells)} |')
  return [*lines, '']


def tables(made: dict[tuple[str, str, int], dict]) -> str:
  """The text of tables.md."""
  return '\n'.join(line for bits in LENGTHS for kind in ('encoded', 'own')
                   for line in table(made, kind, bits))


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--data_dir', default='data')
  parser.add_argument('--seeds', type=int, default=5)
  parser.add_argument('--output', default='results/hard_cases')
  arguments = parser.parse_args()
  compiling.prepare()
  output = pathlib.Path(arguments.output)
  output.mkdir(parents=True, exist_ok=True)
  file = output / 'scores.jsonl'
  devices = step.Devices(step.pick_devices(1), 64)
  for name, case in CASES.items():
    whole = datasets.load(case.dataset, arguments.data_dir, split_seed=0)
    for seed in range(arguments.seeds):
      data, truth = case.change(whole, np.random.default_rng(seed))
      sources = sources_lib.Sources()  # another seed has other rows for training
      jax.clear_caches()  # Linux gives a process memory for some 180 compiled runs
      for method in METHODS:
        if (name, method, seed) in read(file):
          continue
        found = {}
        for config in configs(method, case, seed, arguments.data_dir):
          found |= run(config, data, truth, devices, sources)
        storage.append(file, storage.json_lines(
            [{'case': name, 'method': method, 'seed': seed, 'map': found}]))
        console.say(f'{name} {method} {seed} {found}')
  storage.write_text(output / 'tables.md', tables(read(file)))


if __name__ == '__main__':
  main()

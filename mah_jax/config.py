"""The frozen Config and its checks: the one place where a run's numbers are declared."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from typing import Any

from mah_jax import errors

DEEP = ('mah', 'adsh', 'dpsh', 'drsch', 'daph', 'classifier')  # methods that train a network
SHALLOW = ('lsh', 'itq', 'sdh', 'ksh', 'lfh', 'cosdish')  # methods that fit fixed features
TRUNCATES = ('drsch',)  # those whose shorter codes are parts of the longest
ONE_LENGTH = ('adsh', 'dpsh', 'daph')  # deep methods whose network has one code length


def _flag(default: Any, doc: str, choices: tuple[str, ...] | None = None) -> Any:
  return dataclasses.field(default=default, metadata={'doc': doc, 'choices': choices})


@dataclasses.dataclass(frozen=True)
class Config:
  """Every number a run depends on. Built once in main; passed, never imported.

  The defaults are the authors' CIFAR-10 script, but for the head weights, those of Table 1.
  """
  mode: str = _flag('train', 'train: fit, evaluate, write the run folder. evaluate: evaluate '
                    'the newest checkpoint or, without one, the codes that were kept. encode: turn '
                    '--images into codes by a checkpoint.', ('train', 'evaluate', 'encode'))
  method: str = _flag('mah', 'Hashing method. The first six train a network; the others work on '
                      'the features of one (--backbone and --pretrained) or, without --pretrained, '
                      'on pixels.', (*DEEP, *SHALLOW))
  heads: str = _flag('cascaded', 'mah: structure of the heads: flat is MAH-1 (Eq. 2), cascaded is '
                     'MAH-2 (Eq. 3).', ('flat', 'cascaded'))
  dataset: str = _flag('cifar10', 'Dataset; folder is any folder of labelled images.',
                       ('digits', 'cifar10', 'mirflickr', 'nuswide', 'folder'))
  data_dir: str = _flag('data', 'Folder of the dataset\'s files. For --dataset=folder: a folder '
                        'with a sub-folder of images for each class, or a CSV file of lines '
                        'file,label1;label2 (also found as labels.csv in the folder).')
  workdir: str = _flag('runs/default', 'Run folder: settings, scores, codes and checkpoints. The '
                       'same command on the same folder resumes.')
  images: str = _flag('', 'Folder of images for --mode=encode.')
  output: str = _flag('', 'Folder for the codes of --images; empty: encoded/ in --workdir.')
  protocol: str = _flag('', 'Name of the split into queries and database; empty: the paper\'s. '
                        'mirflickr-1700-queries and nuswide-2100-queries have the authors\' sizes.')
  query_fraction: float = _flag(0.1, 'Share of each class that becomes queries (folder only).')
  query_list: str = _flag('', 'File with the names of the query images, one a line, instead of a '
                          'random draw (folder, mirflickr, nuswide).')
  split_seed: int = _flag(0, 'Seed of the split into queries and database.')
  backbone: str = _flag('resnet50', 'Feature network f(x; Theta_E).',
                        ('resnet18', 'resnet34', 'resnet50', 'resnet50_v1', 'alexnet', 'vgg11',
                         'vgg16', 'compact'))
  pretrained: str = _flag('', 'Weights that the backbone starts from: a torchvision .pth or '
                          '.safetensors, a Keras ResNet-50 in TensorFlow.js format, or the folder '
                          'of a run. Empty: random.')
  feature: str = _flag('pooled', 'What the heads read: the pooled feature (ResNet-50: 2048, '
                       'AlexNet and VGG: 4096) or the 1000 logits (D of the paper).',
                       ('pooled', 'logits'))
  width: int = _flag(64, 'Channels of the first block of the compact backbone.')
  image_size: int = _flag(224, 'Side in pixels of what the network sees; 0 keeps the images\' own.')
  crop: float = _flag(0.875, 'Share of the resized image\'s side that is kept, from its centre.')
  normalize: str = _flag('imagenet', 'Pixel mean and deviation: those of ImageNet or of the '
                         'dataset; --pretrained weights bring their own instead.',
                         ('imagenet', 'dataset'))
  precision: str = _flag('float32', 'Type that backbones are computed in; bf16 is for GPUs. '
                         'Parameters, statistics, heads and losses are float32 either way.',
                         ('float32', 'bf16'))
  resident_mb: int = _flag(1024, 'Photographs of a set that has at most so many megabytes when '
                           'decoded are kept on the devices; larger sets stream from disk.')
  augment: str = _flag('none', 'Random changes of training images.',
                       ('none', 'shift', 'flip_shift'))
  shift_pixels: int = _flag(2, 'Largest random shift, in pixels of the stored image (of '
                            'photographs: once resized).')
  mirror: bool = _flag(False, 'Encode an image by the mean of the outputs for it and its mirror '
                       'image, in twice the time.')
  binarize: str = _flag('sign', 'mah, adsh: how outputs become a code: by their signs, or the '
                        'learned code that agrees with them most, for searching learned codes.',
                        ('sign', 'nearest'))
  code_lengths: tuple[int, ...] = _flag((4, 6, 8), 'Bits of each head, ascending (c-, c, c+).')
  head_weights: tuple[float, ...] = _flag((6.0, 2.0, 1.0), 'mah: weight of each head\'s loss '
                                          '(alpha, beta, 1 of Eq. 7).')
  gamma: float = _flag(200.0, 'mah, adsh: weight of the quantization loss (gamma of Eq. 7).')
  similarity: str = _flag('balanced', 'mah, adsh: value of S for dissimilar pairs: balanced is -r, '
                          'so that S sums to zero; signed is -1, the paper\'s text.',
                          ('balanced', 'signed'))
  code_init: str = _flag('zeros', 'mah, adsh: database codes B before training: zeros, random '
                         'signs, or a codebook of well-separated codewords, one per class.',
                         ('zeros', 'random', 'codebook'))
  hold_codes_rounds: int = _flag(0, 'Rounds at the start in which the codes B stay as they are.')
  code_update: str = _flag('round', 'When B is updated: after each round (authors) or after each '
                           'epoch (Algorithm 1).', ('round', 'epoch'))
  code_embeddings: str = _flag('training', 'Outputs H in the update of B: as seen while training '
                               '(authors) or computed afresh (paper).', ('training', 'fresh'))
  dcc_sweeps: int = _flag(1, 'mah, adsh: passes over the bits in one update of B.')
  num_rounds: int = _flag(41, 'Rounds (K).')
  epochs_per_round: int = _flag(3, 'Passes over the sampled rows in a round (T).')
  num_sampled: int = _flag(2000, 'Database rows sampled (m = |Omega|), anew in each round by mah, '
                           'adsh and classifier, once by the others; 0 takes all.')
  shuffle: bool = _flag(False, 'Draw a new order of the sampled rows for each epoch.')
  batch_size: int = _flag(64, 'Images per step, over all devices (M).')
  learning_rate: float = _flag(1e-3, 'Learning rate.')
  momentum: float = _flag(0.0, 'Momentum of SGD.')
  weight_decay: float = _flag(5e-4, 'Weight decay, on every parameter.')
  lr_schedule: str = _flag('steps', 'How the learning rate changes: in --lr_drop_rounds, or evenly '
                           'up over a share --warmup of all steps, then evenly down to 0.',
                           ('steps', 'triangle'))
  lr_drop_rounds: tuple[int, ...] = _flag((10, 20, 30, 40, 50), 'steps: the rate is divided by ten '
                                          'after each of these rounds (counted from 0).')
  warmup: float = _flag(0.2, 'triangle: share of all steps until the rate is at its highest.')
  eta: float = _flag(50.0, 'dpsh: weight of the quantization loss (its eta).')
  margin: float = _flag(5.0, 'drsch: by how much a dissimilar image must be farther than a similar '
                        'one.')
  laplacian: float = _flag(1e-3, 'drsch: weight of the Laplacian term.')
  towers: str = _flag('asymmetric', 'daph: asymmetric encodes queries by one network and the '
                      'database by the other, symmetric both by the latter.',
                      ('asymmetric', 'symmetric'))
  quantization: float = _flag(10.0, 'daph: weight of the distance from outputs to codes (alpha).')
  agreement: float = _flag(1.0, 'daph: weight of the distance between the two codes (gamma); from '
                           '--quantization on, codes never change.')
  independence: float = _flag(0.01, 'daph: weight of the correlation between bits (lambda).')
  balance: float = _flag(0.1, 'daph: weight of the unevenness of bits (beta).')
  center: bool = _flag(False, 'lsh: hyperplanes through the mean of the features instead of the '
                       'origin, as published; better, since features are never negative.')
  anchors: int = _flag(1000, 'sdh, ksh: rows that the kernel compares with.')
  sigma: float = _flag(0.4, 'sdh: width of the kernel; 0: the mean distance to the nearest anchor.')
  labelled: int = _flag(2000, 'ksh: rows whose pairs are compared.')
  columns: int = _flag(0, 'lfh, cosdish: rows sampled per iteration; 0: as many as bits, as '
                       'published. For lfh 64 is better at few bits.')
  num_seeds: int = _flag(1, 'lsh to cosdish: seeds from --seed on whose scores are averaged.')
  num_devices: int = _flag(0, 'Devices to use; 0 takes all.')
  eval_every: int = _flag(1, 'Score the queries after every so many rounds; 0: at the end only.')
  checkpoint_every: int = _flag(1, 'Save a checkpoint after every so many rounds.')
  max_to_keep: int = _flag(2, 'Newest checkpoints to keep, at least 2, so that one may be damaged.')
  seed: int = _flag(0, 'Seed of everything random but the split.')

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value, choices = getattr(self, field.name), field.metadata['choices']
      if choices and value not in choices:
        raise errors.UsageError(f'--{field.name}={value} is not one of {", ".join(choices)}.')
      numbers = value if isinstance(value, tuple) else (value,)
      if any(isinstance(x, float) and not math.isfinite(x) for x in numbers):
        raise errors.UsageError(f'--{field.name}={text(value)} must be finite.')
    lengths = self.code_lengths
    if not lengths or min(lengths) < 1 or list(lengths) != sorted(set(lengths)):
      raise errors.UsageError(f'--code_lengths={text(lengths)} must be ascending positive '
                              'numbers of bits, such as 4,6,8.')
    shallow = self.method in SHALLOW
    if len(self.head_weights) != len(lengths) and self.method == 'mah':
      raise errors.UsageError(f'--head_weights={text(self.head_weights)} needs a weight for each '
                              f'of --code_lengths={text(lengths)}.')
    if len(lengths) > 1 and self.method in ONE_LENGTH:
      raise errors.UsageError(f'--method={self.method} trains a network for one code length: '
                              f'give one of --code_lengths={text(lengths)}, and a --workdir, '
                              'to each run.')
    self._check_at_least(1, 'width', 'dcc_sweeps', 'num_rounds', 'epochs_per_round',
                         'batch_size', 'checkpoint_every', 'anchors', 'labelled', 'num_seeds')
    self._check_at_least(2, 'max_to_keep')
    self._check_at_least(0, 'image_size', 'resident_mb', 'shift_pixels', 'gamma',
                         'hold_codes_rounds', 'num_sampled', 'weight_decay', 'num_devices',
                         'eval_every', 'seed', 'split_seed', 'sigma', 'columns', 'eta', 'margin',
                         'laplacian', 'quantization', 'agreement', 'independence', 'balance')
    if max(self.seed, self.split_seed) >= 2**32:
      raise errors.UsageError('--seed and --split_seed must be below 2^32.')
    if self.query_list and self.protocol:
      raise errors.UsageError('--query_list and --protocol both choose the queries: give one.')
    if not 0 < self.query_fraction < 1:
      raise errors.UsageError(f'--query_fraction={self.query_fraction} must be between 0 and 1.')
    if (self.mode == 'encode') != bool(self.images):
      raise errors.UsageError('--mode=encode and --images=FOLDER need each other.')
    if self.num_seeds > 1 and not shallow:
      raise errors.UsageError(f'--num_seeds averages methods that fit in seconds; train '
                              f'{self.method} once for each --seed, with a --workdir of its own.')
    if self.mode == 'encode' and shallow:
      raise errors.UsageError(f'--mode=encode needs a network: --method={self.method} has none.')
    if not self.workdir:
      raise errors.UsageError('--workdir needs the name of a folder.')
    if min(self.lr_drop_rounds, default=0) < 0:
      raise errors.UsageError(f'--lr_drop_rounds={text(self.lr_drop_rounds)} counts from 0.')
    if not 0.1 <= self.crop <= 1:
      raise errors.UsageError(f'--crop={self.crop} must be from 0.1 to 1.')
    for name in ('momentum', 'warmup'):
      if not 0 <= getattr(self, name) < 1:
        raise errors.UsageError(f'--{name}={getattr(self, name)} must be from 0 to below 1.')
    weights = self.head_weights
    if not self.learning_rate > 0 or min(weights, default=1) < 0 or max(weights, default=1) == 0:
      raise errors.UsageError('--learning_rate must be above 0 and --head_weights at least 0, '
                              'not all of them 0.')
    if self.binarize == 'nearest' and self.method not in ('mah', 'adsh'):
      raise errors.UsageError(f'--binarize=nearest is for mah and adsh, not {self.method}.')
    if self.hold_codes_rounds and self.code_init == 'zeros' and self.method in ('mah', 'adsh'):
      raise errors.UsageError('--hold_codes_rounds needs codes worth holding: use it with '
                              '--code_init=codebook or random.')

  def sample_size(self, n: int) -> int:
    """Rows that are sampled of a database of n rows."""
    return min(self.num_sampled or n, n)

  def _check_at_least(self, least: int, *names: str):
    for name in names:
      if not getattr(self, name) >= least:
        raise errors.UsageError(f'--{name}={getattr(self, name)} must be at least {least}.')


# A run may go on with other values of these; any other change makes it another run.
FREE_FIELDS = ('mode', 'data_dir', 'workdir', 'images', 'output', 'resident_mb', 'num_rounds',
               'num_devices', 'eval_every', 'checkpoint_every', 'max_to_keep')
EVALUATION_FIELDS = ('binarize', 'mirror', 'towers')  # may change after training


def differences(config: Config, saved: dict[str, Any]) -> list[str]:
  """Fields in which a saved run differs from this one, each as '--name=now (was then)'."""
  before = to_json(Config()) | saved  # a flag that is newer than the run has its default
  free = FREE_FIELDS
  if config.lr_schedule == 'triangle':
    free = tuple(name for name in free if name != 'num_rounds')  # which its rate depends on
  if config.mode != 'train':
    free += ('batch_size', *EVALUATION_FIELDS)
    if config.method in TRUNCATES and before['code_lengths'][-1] == config.code_lengths[-1]:
      free += ('code_lengths',)
  return [f'--{name}={text(value)} (was {text(before[name])})'
          for name, value in to_json(config).items()
          if name not in free and before[name] != value]


def to_json(config: Config) -> dict[str, Any]:
  """The fields as JSON has them: tuples become lists."""
  return {name: list(value) if isinstance(value, tuple) else value
          for name, value in dataclasses.asdict(config).items()}


def text(value: Any) -> str:
  """A value as it is written in a flag."""
  if isinstance(value, (tuple, list)):
    return ','.join(repr(x).removesuffix('.0') for x in value)
  return str(value)


def saved_flags(folder: pathlib.Path) -> dict[str, Any] | None:
  """The flags of the run in a folder, or None where there is no run."""
  path = folder / 'config.json'
  if not path.exists():
    return None
  try:
    return dict(json.loads(path.read_text())['flags'])
  except (ValueError, KeyError, TypeError):
    raise errors.InputError(f'{path} is damaged: remove it and give the training command '
                            'again, which goes on with the run.') from None

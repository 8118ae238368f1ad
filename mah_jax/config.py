"""The frozen Config: every setting of a run, with its checks and its form in config.json."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from mah_jax import errors
from mah_jax import methods
from mah_jax import models
from mah_jax import options as options_lib
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.models import imagenet
from mah_jax.models import precision
from mah_jax.options import AFTER_TRAINING
from mah_jax.options import ALWAYS
from mah_jax.options import EVALUATION
from mah_jax.options import option

METHOD, NETWORK, DATA, TRAINING, RUN, SEARCH, MACHINES = GROUPS = (
    'method', 'network', 'data', 'training', 'run', 'search', 'machines')
IMAGE_MODES = ('encode', 'search', 'index')  # they need --images
SHARED_MODES = ('train', 'evaluate', 'encode', 'check')  # several processes can share their work
SEARCH_MODES = ('search', 'index', 'serve', 'export')  # they open the database of a run
PATHS = ('workdir', 'data_dir', 'pretrained', 'query_list', 'images', 'output', 'sheet')
FORMATS = ('faiss', 'pgvector', 'parquet', 'stablehlo')  # of an export
SCORED_ROWS, NEIGHBOURS = 5000, 10  # what --k=0 means: of scores, of a search


@dataclasses.dataclass(frozen=True)
class Config:
  """Every setting that a run depends on. Main builds it once; it is passed, never imported.

  `options` has the settings of the method alone. The defaults are the authors' CIFAR-10 script,
  but for the head weights, which are those of Table 1.
  """
  mode: str = option(
      'train', 'train: fit, evaluate, write the run folder. evaluate: evaluate the newest '
      'checkpoint or, without one, the codes that were kept. encode: turn --images into codes by '
      'what the run has learned. search: find the neighbours of --images in the database. index: '
      'add --images to the database. serve: show a page to search by. export: write the database '
      'for other programs. check: say whether the training that the flags describe could start, '
      'and what it lacks; nothing is changed.',
      choices=('train', 'evaluate', 'encode', 'search', 'index', 'serve', 'export', 'check'),
      may_change=ALWAYS, group=RUN)
  method: str = option(
      methods.DEFAULT, 'Hashing method: some train a network; the others fit the features of one '
      '(--backbone and --pretrained) or, without --pretrained, pixels.',
      choices=lambda: methods.METHODS, group=METHOD)
  code_lengths: tuple[int, ...] = option(
      (4, 6, 8), 'Bits of each code, ascending (c-, c, c+).', most=4096, group=METHOD)
  dataset: str = option(
      datasets.DEFAULT, 'Dataset.', choices=lambda: datasets.SPECS, group=DATA)
  data_dir: str = option('data', datasets.data_dir_help(), may_change=ALWAYS, group=DATA)
  protocol: str = option('', datasets.protocol_help(), group=DATA)
  query_fraction: float = option(
      0.1, 'Share of each class that becomes queries, where a dataset has no split of its own.',
      group=DATA)
  query_list: str = option(
      '', 'File with the names of the query images, one a line, instead of a random draw, where '
      'images are files.', group=DATA)
  split_seed: int = option(0, 'Seed of the split into queries and database.', least=0, group=DATA)
  resident_mb: int = option(
      1024, 'The images of a set that has at most so many megabytes when decoded are kept on the '
      'devices, if these have room beside a training step; others stream.', least=0,
      may_change=ALWAYS, group=DATA)
  backbone: str = option(
      '', 'Feature network f(x; Theta_E). Empty: the one that the --pretrained weights are of '
      f'or, if they do not say, {models.DEFAULT}.', choices=lambda: ('', *models.BACKBONES),
      group=NETWORK)
  pretrained: str = option(
      '', 'Weights that the backbone starts from: a torchvision .pth or .safetensors, a Keras '
      'ResNet-50 in TensorFlow.js format, or the folder of a run. Empty: random.', group=NETWORK)
  input: str = option(
      'images', 'What the network reads: images; or features of --backbone and --pretrained, which '
      'are extracted once and kept (pixels without weights), by --hidden layers of its own.',
      choices=('images', 'features'), group=NETWORK, networks_only=True)
  hidden: tuple[int, ...] = option(
      (512,), 'features: units of each fully connected layer between features and heads; empty: '
      'none.', least=1, group=NETWORK, networks_only=True)
  feature: str = option(
      'pooled', 'What the heads read: the pooled feature (ResNet-50: 2048, AlexNet and VGG: 4096) '
      'or the 1000 logits (D of the paper).', choices=imagenet.FEATURES, group=NETWORK)
  width: int = option(
      64, 'Channels of the first block, for a backbone whose width can be chosen.', least=1,
      most=4096,
      group=NETWORK)
  image_size: int = option(
      224, 'Side in pixels of images as the network sees them; 0 keeps their stored size.', least=0,
      most=8192,
      group=NETWORK)
  crop: float = option(
      0.875, 'Share of the resized image\'s side that is kept, from its centre.', group=NETWORK)
  normalize: str = option(
      'imagenet', 'Pixel mean and deviation: those of ImageNet or of the dataset; --pretrained '
      'weights bring their own instead.', choices=('imagenet', 'dataset'), group=NETWORK)
  precision: str = option(
      'float32', 'Numbers that backbones are computed in: float32, on cards that would take TF32 '
      'too; tf32: products in TF32 where a card has it; bf16, for GPUs and for CPUs that multiply '
      'bfloat16 numbers (AVX512_BF16). Parameters, statistics, heads and losses are float32 in any '
      'case.', choices=tuple(precision.PRECISIONS),
      group=NETWORK)
  batch_norm: str = option(
      'global', 'Statistics that batch normalisation takes in training: of the whole batch, which '
      'costs two exchanges between the devices for each such layer; of each device\'s part of it, '
      'which costs none, for parts of 16 images or more; or fixed, those of the --pretrained '
      'weights, so that training starts from the very features of these weights.',
      choices=('global', 'device', 'fixed'), group=NETWORK, networks_only=True)
  frozen_stages: int = option(
      0, 'Stages of a ResNet, the first of its four and the layers before them, that keep their '
      '--pretrained weights, with --batch_norm=fixed. With two of them frozen, training took 0.6 '
      'of the time on a CPU.', least=0, most=4, group=NETWORK, networks_only=True)
  keep_maps: bool = option(
      False, 'Keep on disk what the --frozen_stages make of each image and of its mirror image, so '
      'that these pass once and no training step nor score computes them again.', group=NETWORK,
      networks_only=True)
  mirror: bool = option(
      False, 'Encode an image by the mean of the outputs for it and its mirror image, in twice the '
      'time.', may_change=EVALUATION, group=NETWORK)
  batch_size: int = option(
      64, 'Images per step, over all devices (M).', least=1, most=2**20, may_change=AFTER_TRAINING,
      group=TRAINING)
  num_rounds: int = option(41, 'Rounds (K).', least=1, most=10**6, may_change=ALWAYS,
                           group=TRAINING, networks_only=True)
  head_rounds: int = option(
      0, 'images: rounds before these in which the heads alone learn, from features of the '
      '--pretrained backbone, which are extracted once and kept. Rounds with held codes count '
      'from the first of them.', least=0, most=10**6, group=TRAINING, networks_only=True)
  head_learning_rate: float = option(
      0.003, 'Highest learning rate of the --head_rounds, in which it rises and falls evenly.',
      group=TRAINING, networks_only=True)
  head_weight_decay: float = option(
      5e-4, 'Weight decay in the --head_rounds. It may be far stronger than --weight_decay, which '
      'shrinks the whole network, while --batch_norm=fixed keeps its statistics.', least=0,
      group=TRAINING, networks_only=True)
  epochs_per_round: int = option(
      3, 'Passes over the sampled rows in a round (T).', least=1, most=10**6, group=TRAINING,
      networks_only=True)
  num_sampled: int = option(
      2000, 'Database rows sampled (m = |Omega|): anew in each round or, by methods with a fixed '
      'training set, once; 0 takes all.', least=0, group=TRAINING, networks_only=True)
  shuffle: bool = option(
      False, 'Draw a new order of the sampled rows for each epoch.', group=TRAINING,
      networks_only=True)
  augment: str = option(
      'none', 'Random changes of training images.', choices=('none', 'flip', 'shift', 'flip_shift'),
      group=TRAINING, networks_only=True)
  shift_pixels: int = option(
      2, 'Largest random shift, in pixels of the stored image (of photographs: once resized).',
      least=0, most=8192, group=TRAINING, networks_only=True)
  learning_rate: float = option(1e-3, 'Learning rate.', group=TRAINING, networks_only=True)
  optimizer: str = option(
      'sgd', 'How gradients become steps: sgd, or adam (AdamW), whose steps do not depend on the '
      'scale of the loss, so that one --learning_rate serves methods and lengths alike.',
      choices=('sgd', 'adam'), group=TRAINING, networks_only=True)
  momentum: float = option(0.0, 'Momentum of SGD; of Adam, its beta 1.', group=TRAINING,
                           networks_only=True)
  weight_decay: float = option(
      5e-4, 'Weight decay, on every parameter.', least=0, group=TRAINING, networks_only=True)
  lr_schedule: str = option(
      'steps', 'How the learning rate changes: in --lr_drop_rounds, or evenly up over a share '
      '--warmup of all steps, then evenly down to 0.', choices=('steps', 'triangle'),
      group=TRAINING, networks_only=True)
  lr_drop_rounds: tuple[int, ...] = option(
      (10, 20, 30, 40, 50), 'steps: the rate is divided by ten after each of these rounds (counted '
      'from 0).', least=0, group=TRAINING, networks_only=True)
  warmup: float = option(
      0.2, 'triangle: share of all steps until the rate is at its highest.', group=TRAINING,
      networks_only=True)
  workdir: str = option(
      'runs/default', 'Run folder: settings, scores, codes and checkpoints. The same command on '
      'the same folder resumes.', may_change=ALWAYS, group=RUN)
  images: str = option(
      '', 'Images that are encoded, searched for or added: a folder or a file.', may_change=ALWAYS,
      group=RUN, modes=IMAGE_MODES)
  output: str = option(
      '', 'encode: folder for the codes; empty: encoded/ in --workdir. search: file for the '
      'neighbours, .csv or .jsonl. export: folder for the files; empty: exported/FORMAT in '
      '--workdir.', may_change=ALWAYS, group=RUN, modes=('encode', 'search', 'export'))
  k: int = option(
      0, 'How many of the first rows precision@k and map@k look at (0: 5,000), or how many '
      'neighbours a search finds (0: 10).', least=0, may_change=ALWAYS, group=RUN)
  code_length: int = option(
      0, 'Bits of the codes that are searched or exported; 0: the most that the run has, in an '
      'export all.', least=0, may_change=ALWAYS, group=SEARCH,
      modes=('search', 'serve', 'export'))
  database: str = option(
      '', 'Codes of the database that are searched: those that were learned (or assigned), or '
      'those that the network gives. Empty: learned where there are any.',
      choices=('', 'learned', 'encoded'), may_change=ALWAYS, group=SEARCH,
      modes=('search', 'serve', 'export'))
  ranking: str = option(
      'hamming', 'Order of the neighbours: by the number of differing bits, or by the agreement of '
      'the query\'s real outputs with the codes, which is finer.', choices=('hamming', 'outputs'),
      may_change=ALWAYS, group=SEARCH, modes=('search', 'serve'))
  key_bytes: int = option(
      64, 'Bytes of the feature of each database image that order images at equal distance; 0: '
      'they keep the order of the database.', least=0, may_change=ALWAYS, group=SEARCH,
      modes=SEARCH_MODES)
  sheet: str = option(
      '', 'PNG file for a contact sheet of the images and their neighbours.', may_change=ALWAYS,
      group=SEARCH, modes=('search',))
  host: str = option(
      '127.0.0.1', 'Address or name of this machine at which the page is served; by the default, '
      'no other machine can reach it.', may_change=ALWAYS, group=SEARCH, modes=('serve',))
  port: int = option(
      8000, 'Port of the page; 0: any that is free.', least=0, may_change=ALWAYS, group=SEARCH,
      modes=('serve',))
  format: str = option(
      '', 'What an export is for. faiss: an index file of FAISS. pgvector: tables and queries for '
      'PostgreSQL. parquet: a table for Arrow. stablehlo: encoder and index for a program that has '
      'JAX and NumPy, but not mah_jax.', choices=('', *FORMATS), may_change=ALWAYS, group=SEARCH,
      modes=('export',))
  seed: int = option(0, 'Seed of everything random but the split.', least=0, group=RUN)
  num_seeds: int = option(
      1, 'Seeds from --seed on whose scores are averaged, for methods that fit features.', least=1,
      group=RUN)
  num_devices: int = option(
      0, 'Devices to use, of each process; 0 takes all.', least=0, may_change=ALWAYS,
      group=MACHINES)
  distributed: bool = option(
      False, 'Share the work with the other processes of a job that Slurm, Open MPI 4 or '
      'Kubernetes started.', may_change=ALWAYS, group=MACHINES, modes=SHARED_MODES)
  coordinator: str = option(
      '', 'HOST:PORT at which process 0 waits for the others, where processes are started by hand.',
      may_change=ALWAYS, group=MACHINES, modes=SHARED_MODES)
  num_processes: int = option(
      1, 'Number of processes, with --coordinator.', least=1, may_change=ALWAYS, group=MACHINES,
      modes=SHARED_MODES)
  process_id: int = option(
      0, 'Number of this process, from 0, with --coordinator.', least=0, may_change=ALWAYS,
      group=MACHINES, modes=SHARED_MODES)
  process_timeout: int = option(
      60, 'Seconds without an answer after which a process counts as dead, and the others end.',
      least=1, most=86400, may_change=ALWAYS, group=MACHINES, modes=SHARED_MODES)
  eval_every: int = option(
      1, 'Score the queries after every so many rounds; 0: at the end only.', least=0,
      may_change=ALWAYS, group=RUN, networks_only=True)
  checkpoint_every: int = option(
      1, 'Save a checkpoint after every so many rounds; 0: only when the run is stopped, for runs '
      'of seconds.', least=0, may_change=ALWAYS, group=RUN,
      networks_only=True)
  max_to_keep: int = option(
      2, 'Newest checkpoints to keep, at least 2, so that one may be damaged.', least=2,
      may_change=ALWAYS, group=RUN, networks_only=True)
  report: bool = option(
      True, 'Write report.html, a page with curves, codewords, confusions and pictures, when a run '
      'is trained or evaluated.', may_change=ALWAYS, group=RUN)
  options: Any = None  # an instance of `spec.options`; None: its defaults

  def __post_init__(self):
    options_lib.check(self)
    if self.options is None:
      object.__setattr__(self, 'options', self.spec.options())
    self._check_ranges()
    self._check_mode()
    self._check_method()
    self._check_without_effect()

  @property
  def spec(self) -> methods.base.Spec:
    """The method's entry in the registry."""
    return methods.METHODS[self.method]

  @property
  def keeps_features(self) -> bool:
    """Whether what a backbone makes of the images is kept in the cache."""
    return bool(self.pretrained and (self.reads_features or self.head_rounds or self.keep_maps))

  @property
  def reads_features(self) -> bool:
    """Whether features of the images, which are kept, take their place in training."""
    return not self.spec.trains_network or self.input == 'features'

  @property
  def scored_rows(self) -> int:
    """How many of the first rows precision@k and map@k look at."""
    return self.k or SCORED_ROWS

  @property
  def neighbours(self) -> int:
    """How many neighbours a search finds."""
    return self.k or NEIGHBOURS

  def sample_size(self, n: int) -> int:
    """Rows that are sampled of a database of n rows."""
    return min(self.num_sampled or n, n)

  def _check_ranges(self):
    lengths = self.code_lengths
    if not lengths or min(lengths) < 1 or list(lengths) != sorted(set(lengths)):
      raise errors.UsageError(f'--code_lengths={options_lib.text(lengths)} must be ascending '
                              'positive numbers of bits, such as 4,6,8.')
    if max(self.seed, self.split_seed) >= 2**32:
      raise errors.UsageError('--seed and --split_seed must be below 2^32.')
    if self.port > 65535:
      raise errors.UsageError(f'--port={self.port} must be at most 65535.')
    if not 0 < self.query_fraction < 1:
      raise errors.UsageError(f'--query_fraction={self.query_fraction} must be between 0 and 1.')
    if not 0.1 <= self.crop <= 1:
      raise errors.UsageError(f'--crop={self.crop} must be from 0.1 to 1.')
    for name in ('momentum', 'warmup'):
      if not 0 <= getattr(self, name) < 1:
        raise errors.UsageError(f'--{name}={getattr(self, name)} must be from 0 to below 1.')
    if self.image_size and 'shift' in self.augment and self.shift_pixels >= self.image_size:
      raise errors.UsageError(f'--shift_pixels={self.shift_pixels} must be below '
                              f'--image_size={self.image_size}, else nothing of an image is left.')
    if self.keep_maps and 'shift' in self.augment:
      raise errors.UsageError(f'--augment={self.augment} shifts images, of which --keep_maps keeps '
                              'maps: use --augment=flip or none, or leave --keep_maps out.')
    for name in ('learning_rate', 'head_learning_rate'):
      if not getattr(self, name) > 0:
        raise errors.UsageError(f'--{name}={getattr(self, name)} must be above 0.')

  def _check_mode(self):
    for name in PATHS:
      storage.path(getattr(self, name))  # which refuses what cannot be a path
    if not self.workdir:
      raise errors.UsageError('--workdir needs the name of a folder.')
    if not options_lib.is_text(self.workdir):
      raise errors.UsageError(f'--workdir={self.workdir} is no text in UTF-8, which Orbax needs to '
                              'save checkpoints: choose another name.')
    if self.mode in IMAGE_MODES and not self.images:
      raise errors.UsageError(f'--mode={self.mode} needs --images=FILE_OR_FOLDER.')
    if self.mode == 'export' and not self.format:
      raise errors.UsageError(f'--mode=export needs --format={"|".join(FORMATS)}.')
    for name, field in options_lib.fields(Config).items():
      modes = field.metadata['modes']
      if modes and self.mode not in modes and getattr(self, name) != field.default:
        raise errors.UsageError(f'--{name} belongs to --mode={" and --mode=".join(modes)}, and '
                                f'has no effect with --mode={self.mode}: leave it out.')
    self._check_processes()
    if self.query_list and self.protocol:
      raise errors.UsageError('--query_list and --protocol both choose the queries: give one.')

  def _check_processes(self):
    if self.distributed and self.coordinator:
      raise errors.UsageError('--distributed finds the other processes by itself, --coordinator '
                              'says where they are: give one.')
    if (self.num_processes > 1 or self.process_id) and not self.coordinator:
      raise errors.UsageError('--num_processes and --process_id need --coordinator=HOST:PORT.')
    if self.process_id >= self.num_processes:
      raise errors.UsageError(f'--process_id={self.process_id} must be below --num_processes='
                              f'{self.num_processes}: processes are counted from 0.')
    host, _, port = self.coordinator.rpartition(':')
    if self.coordinator and not (host and port.isdigit() and 0 < int(port) < 2**16):
      raise errors.UsageError(f'--coordinator={self.coordinator} must be HOST:PORT, such as '
                              '10.0.0.1:7000.')

  def _check_method(self):
    spec, lengths = self.spec, self.code_lengths
    if len(lengths) > 1 and spec.one_length:
      raise errors.UsageError(f'--method={self.method} trains a network for one code length: '
                              f'give one of --code_lengths={options_lib.text(lengths)}, and a '
                              '--workdir, to each run.')
    if self.num_seeds > 1 and spec.trains_network:
      raise errors.UsageError(f'--num_seeds averages methods that fit in seconds; train '
                              f'{self.method} once for each --seed, with a --workdir of its own.')
    if getattr(self.options, 'code_init', '') == 'alike' and not (
        self.reads_features or self.head_rounds):
      raise errors.UsageError('--code_init=alike compares features of the images: use it with '
                              '--head_rounds or --input=features.')
    spec.check(self.options, lengths)

  def _check_without_effect(self):
    """Refuses flags that other flags leave without effect, unless they stand at their defaults."""
    dataset = datasets.SPECS[self.dataset]
    reasons = {
        'query_fraction': '--query_list chooses the queries' if self.query_list else
                          '' if dataset.takes_query_fraction else
                          f'--dataset={self.dataset} has a split of its own',
        'warmup': '' if self.lr_schedule == 'triangle' else
                  f'--lr_schedule={self.lr_schedule} has no warm-up',
        'lr_drop_rounds': '' if self.lr_schedule == 'steps' else
                          f'--lr_schedule={self.lr_schedule} has no steps',
        'hidden': '' if self.input == 'features' else f'--input={self.input} has no such layers',
        'head_rounds': f'--input={self.input} trains nothing but heads' if self.input != 'images'
                       else '' if self.pretrained else 'there are no --pretrained weights',
        **dict.fromkeys(('head_learning_rate', 'head_weight_decay'),
                        '' if self.head_rounds else '--head_rounds=0 asks for none of them'),
        'augment': '' if self.input == 'images' else f'--input={self.input} trains on features',
        'batch_norm': f'--input={self.input} has no such layers' if self.input != 'images' else
                      f'--backbone={self.backbone} has no such layers' if self.backbone and
                      not models.BACKBONES[self.backbone].has_batch_norm else
                      'there are no --pretrained weights' if self.batch_norm == 'fixed' and
                      not self.pretrained else '',
        'frozen_stages': f'--input={self.input} trains no backbone' if self.input != 'images' else
                         f'--backbone={self.backbone} has no stages' if self.backbone and
                         not models.BACKBONES[self.backbone].stages else
                         '' if self.batch_norm == 'fixed' else
                         f'--batch_norm={self.batch_norm} changes them in any case',
        'keep_maps': '' if self.frozen_stages else '--frozen_stages=0 makes no maps',
        'shift_pixels': '' if 'shift' in self.augment else
                        f'--augment={self.augment} shifts nothing',
        'width': '' if not self.backbone or models.BACKBONES[self.backbone].has_width else
                 f'--backbone={self.backbone} has a width of its own'}
    if not self.spec.trains_network:
      reasons |= dict.fromkeys(
          (name for name, field in options_lib.fields(Config).items()
           if field.metadata['networks_only']), f'--method={self.method} trains no network')
    for name, field in options_lib.fields(Config).items():
      if reasons.get(name) and getattr(self, name) != field.default:
        raise errors.UsageError(f'--{name} has no effect, as {reasons[name]}: leave it out.')


def make(**values: Any) -> Config:
  """A Config from values of flags, among which are the options of the method.

  Raises:
    errors.UsageError: a value is wrong, or belongs to an option that the method does not have
      and differs from its default.
  """
  shared = {name: values.pop(name) for name in options_lib.fields(Config) if name in values}
  method = shared.get('method', methods.DEFAULT)
  if method not in methods.METHODS:
    return Config(**shared)  # which refuses it
  spec, fields = methods.METHODS[method], all_fields()
  names = options_lib.fields(spec.options)
  foreign = [name for name, value in values.items()
             if name not in names and value != fields[name].default]
  if foreign:
    clauses = [f'--{name} is an option of {options_lib.listed(owners(name))}' for name in foreign]
    raise errors.UsageError(f'{"; ".join(clauses)}; --method={method} has none: leave '
                            f'{"it" if len(foreign) == 1 else "them"} out.')
  mine = spec.options(**{name: values[name] for name in names if name in values})
  return Config(**shared, options=mine)


def all_fields() -> dict[str, dataclasses.Field]:
  """Every flag by name: the shared ones, then those of each method."""
  fields = options_lib.fields(Config)
  for spec in methods.METHODS.values():
    fields |= options_lib.fields(spec.options)
  return fields


def owners(name: str) -> list[str]:
  """The methods among whose options this one is."""
  return [method for method, spec in methods.METHODS.items()
          if name in options_lib.fields(spec.options)]


def settings(config: Config) -> dict[str, Any]:
  """The values of all flags that a run depends on, as JSON has them: tuples become lists."""
  values = {name: getattr(config, name) for name, field in options_lib.fields(Config).items()
           if config.spec.trains_network or not field.metadata['networks_only']}
  values |= {name: getattr(config.options, name) for name in options_lib.fields(config.options)}
  return {name: list(value) if isinstance(value, tuple) else value
          for name, value in values.items()}


def to_json(config: Config) -> dict[str, Any]:
  """The values of all flags there are; those that the run does not depend on have defaults."""
  defaults = {name: field.default for name, field in all_fields().items()}
  return {name: list(value) if isinstance(value, tuple) else value
          for name, value in defaults.items()} | settings(config)


def changeable(config: Config, *when: str) -> dict[str, Any]:
  """The settings that may change at given times, see options.py, with their values."""
  fields = all_fields()
  return {name: value for name, value in settings(config).items()
          if fields[name].metadata['may_change'] in when}


def relevant(saved: Mapping[str, Any]) -> dict[str, Any]:
  """The flags of a saved run without those that its method does not have."""
  spec = methods.METHODS.get(saved.get('method', methods.DEFAULT))
  if spec is None:
    return dict(saved)
  shared, mine = options_lib.fields(Config), options_lib.fields(spec.options)
  other = all_fields().keys() - shared.keys() - mine.keys()
  if not spec.trains_network:
    other |= {name for name, field in shared.items() if field.metadata['networks_only']}
  return {name: value for name, value in saved.items() if name not in other}


def differences(config: Config, saved: Mapping[str, Any], *, as_trained: bool = False) -> list[str]:
  """Settings in which a saved run differs from this one, each as '--name=now (was then)'.

  With `as_trained` those count too that an evaluation may change.
  """
  before = to_json(Config()) | saved  # a flag that is newer than the run has its default
  free = changeable(config, ALWAYS).keys()
  if config.lr_schedule == 'triangle':
    free -= {'num_rounds'}  # which the rate of every step depends on
  if config.mode != 'train':
    free |= changeable(config, AFTER_TRAINING).keys()
  if config.mode != 'train' and not as_trained:
    free |= changeable(config, EVALUATION).keys()
    if config.spec.truncates and before['code_lengths'][-1] == config.code_lengths[-1]:
      free |= {'code_lengths'}
  return [f'--{name}={options_lib.text(value)} (was {options_lib.text(before[name])})'
          for name, value in settings(config).items()
          if name not in free and before[name] != value]


def check_same(config: Config, saved: Mapping[str, Any], *, as_trained: bool = False):
  """Refuses to go on with a run that was begun with other settings; see `differences`."""
  different = differences(config, saved, as_trained=as_trained)
  if different:
    raise errors.UsageError(f'{config.workdir} holds a run with other settings: '
                            f'{"; ".join(different)}. '
                            f'{"Choose" if config.mode == "train" else "Leave them out, or choose"}'
                            ' another --workdir.')


def saved_flags(folder: pathlib.Path) -> dict[str, Any] | None:
  """The flags in the config.json of a run folder, or None where there is no such file."""
  path = folder / 'config.json'
  if not path.exists():
    return None
  try:
    saved, fields = dict(storage.read_json(path)['flags']), all_fields()
    wrong = [name for name in saved if name in fields
             and not options_lib.fits(fields[name], saved[name])]
  except (ValueError, KeyError, TypeError):
    wrong = ['flags']
  if wrong:
    remedy = ('remove it and give the training command again, which goes on with the run'
              if any((folder / 'checkpoints').glob('*')) else
              'copy it again, or remove the folder and give the training command again')
    raise errors.InputError(f'{path} is damaged (its {wrong[0]}): {remedy}.')
  return saved

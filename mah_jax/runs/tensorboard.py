"""An event file for TensorBoard: the lines of metrics.jsonl, where tensorboardX is installed."""

from __future__ import annotations

import pathlib
import struct
import time
from collections.abc import Sequence
from typing import Any

from mah_jax import storage
from mah_jax.evaluation import scores as scores_lib

VERSION = 'brain.Event:2'  # the first record of such a file says so
RATES = ('learning_rate', 'images_per_second')


def write(target: pathlib.Path, lines: Sequence[dict[str, Any]]):
  """Writes a file of these rounds, as if the last of them had ended now."""
  library = _library()
  if library is None:
    return
  now = time.time()
  records = [_record(library, wall_time=now, file_version=VERSION)]
  for line in lines:
    ago = lines[-1].get('seconds', 0.0) - line.get('seconds', 0.0)
    records.append(_round(library, line, now - ago))
  storage.write(target, b''.join(records))


def append(target: pathlib.Path, line: dict[str, Any]):
  """Adds a round that has just ended."""
  library = _library()
  if library is not None:
    storage.append(target, _round(library, line, time.time()))


def numbers(line: dict[str, Any]) -> dict[str, float]:
  """The numbers of a round by the names that TensorBoard shows, in groups before a slash."""
  found = {f'loss/{name.replace("/", "_")}': value for name, value in line['losses'].items()}
  found |= {f'map/{kind}_{c}': scores[kind]['map'] for c, scores in line['metrics'].items()
            for kind in scores_lib.KINDS if kind in scores}
  return found | {name: line[name] for name in RATES if name in line}


def _library():
  """The messages and the checksum of tensorboardX; None where it is not installed."""
  try:
    from tensorboardX import proto
    from tensorboardX import record_writer
    from tensorboardX.proto import event_pb2  # noqa: F401  which makes it a part of `proto`
    from tensorboardX.proto import summary_pb2  # noqa: F401
  except (ImportError, TypeError):  # the second is protobuf's, of a version that does not fit
    return None
  return proto, record_writer.masked_crc32c


def _round(library, line: dict[str, Any], wall_time: float) -> bytes:
  summary = library[0].summary_pb2.Summary
  values = [summary.Value(tag=name, simple_value=value) for name, value in numbers(line).items()]
  return _record(library, wall_time=wall_time, step=line['round'], summary=summary(value=values))


def _record(library, **fields) -> bytes:
  """An event as TensorBoard reads it: its length and its bytes, each with a checksum."""
  proto, checksum = library
  content = proto.event_pb2.Event(**fields).SerializeToString()
  length = struct.pack('<Q', len(content))
  return b''.join([length, struct.pack('<I', checksum(length)), content,
                   struct.pack('<I', checksum(content))])

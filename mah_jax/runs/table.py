"""The results of one run for a person: a table, the classes that share a codeword, a line."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from mah_jax import console
from mah_jax import options
from mah_jax.evaluation import scores as scores_lib

LISTED = 5  # groups of classes that share a codeword, named in one sentence


def say(results: dict[str, Any]):
  """Prints the content of results.json as a table, and the sentences that belong to it."""
  protocol, k = results['protocol'], results['k']
  if not results['classes']:
    lengths = options.text(results['code_lengths'])
    console.say(f'No labels, so no scores: {protocol["database"]:,} images have codes of '
                f'{lengths} bits.')
    return
  console.say(f'\n{table(results)}')
  for sentence in by_outputs(results):
    console.say(sentence)
  console.say(f'A random order has map {protocol["chance"]:.4f}, the labels themselves '
              f'{protocol["ceiling"]:.4f}.')
  if 'training' in protocol:
    console.say(f'{protocol["training"]:,} of {protocol["database"]:,} database rows are for '
                'training; the database is encoded.')
  if protocol['database'] < k:
    console.say(f'The database has {protocol["database"]} rows, fewer than {k}: precision@{k} is '
                'the share of relevant rows in all of it.')
  for sentence in collisions(results):
    console.say(sentence)


def table(results: dict[str, Any]) -> str:
  """The scores: one line for each length and kind of database codes."""
  return align(rows(results))


def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
  """The cells of `table`, the titles of its columns first."""
  k = results['k']
  rows = [('bits', 'database', 'map', '(low..high)', 'map_database_order', f'precision@{k}',
           'distinct codewords')]
  for c, scores in results['metrics'].items():
    for kind in scores_lib.KINDS:
      if kind not in scores:
        continue
      s = scores[kind]
      spread = f' +-{scores["deviation"][kind]["map"]:.4f}' if 'deviation' in scores else ''
      rows.append((c, kind, f'{s["map"]:.4f}{spread}', f'({s["map_low"]:.4f}..{s["map_high"]:.4f})',
                   f'{s["map_database_order"]:.4f}', f'{s[f"precision@{k}"]:.4f}',
                   str(scores['codebook']['distinct'])))
  return rows


def by_outputs(results: dict[str, Any]) -> list[str]:
  """A sentence with the MAP of the ranking by outputs, where it was scored.

  It stands apart from the table, for published MAP is that of the Hamming distance.
  """
  maps, name = [], scores_lib.OUTPUTS
  for c, scores in results['metrics'].items():
    for kind in scores_lib.KINDS:
      if name not in scores.get(kind, {}):
        continue
      spread = f' +-{scores["deviation"][kind][name]["map"]:.4f}' if 'deviation' in scores else ''
      maps.append(f'{scores[kind][name]["map"]:.4f}{spread} ({c} bits {kind})')
  if not maps:
    return []
  return [f'Ranked by the outputs of each query in place of its code: map {", ".join(maps)}.']


def collisions(results: dict[str, Any]) -> list[str]:
  """A sentence for each code length at which classes share a codeword, with their names."""
  sentences = []
  for c, scores in results['metrics'].items():
    owners = collections.defaultdict(list)
    for name, word in zip(results['classes'], scores['codebook']['codewords']):
      owners[word].append(name)
    shared = [' = '.join(names) for word, names in owners.items() if word and len(names) > 1]
    if shared:
      more = f' and {len(shared) - LISTED} more' if len(shared) > LISTED else ''
      sentences.append(f'At {c} bits, classes share a codeword: '
                       f'{"; ".join(shared[:LISTED])}{more}.')
  return sentences


def line(metrics: dict[str, dict[str, Any]]) -> str:
  """Codewords and MAP of each length, for a line of progress."""
  codewords = ' '.join(str(scores['codebook']['distinct']) for scores in metrics.values())
  kind = next(kind for kind in scores_lib.KINDS
              if all(kind in scores for scores in metrics.values()))
  maps = ' '.join(f'{scores[kind]["map"]:.3f}' for scores in metrics.values())
  return f'  codewords {codewords}  {kind} map {maps}'


def align(rows: Sequence[Sequence[str]]) -> str:
  """Right-aligned columns, two spaces apart."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return '\n'.join('  '.join(cell.rjust(width) for cell, width in zip(row, widths))
                   for row in rows)

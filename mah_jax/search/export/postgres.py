"""The export to PostgreSQL: a table, a file for COPY, and queries with pgvector and without it.

A code is a `bit(c)`, which pgvector compares. Up to 64 bits it is an integer as well, whose B-tree
a function walks level by level: first the rows with the query's code, then those with a code that
differs in one bit, and so on. It needs no extension.
"""

from __future__ import annotations

import numpy as np

from mah_jax.search import searcher as searcher_lib
from mah_jax.search.export import content as content_lib

TABLE = 'images'
WALKED = 64  # bits of the longest codes that an integer of PostgreSQL holds
# So many look-ups for each 100 rows are made at most, else the table is read: in a table of 300,000
# rows a look-up took as long as reading 8 to 20 rows.
LOOKUPS = 5

README = """\
# {rows:,} images for PostgreSQL

In this folder, with PostgreSQL 14 or newer and the name of a database for DATABASE:

    psql DATABASE --set=ON_ERROR_STOP=1 -f schema.sql -f load.sql  # makes and fills `{table}`
    psql DATABASE -c "CREATE EXTENSION IF NOT EXISTS vector"       # only for queries with <~>
    psql DATABASE -f queries.sql -c "EXECUTE nearest_{longest}({example}, 10)"

`queries.sql` has, for codes of C bits ({lengths}): `nearest_C(code, k)`, the k nearest rows, and
`within_C(code, radius)`, all rows in a radius, both by pgvector 0.7 or newer{walked}.
Answers are exact, and ordered by distance and id. An HNSW or IVF index would make them inexact.
A code is written as B'...', 1 for +1 and 0 for -1, as `mah_jax.load(RUN).encode(images)` has it.
"""
WALK_README = """; and, up to 64
bits, `walk_C(code, k)`, the k nearest rows by a B-tree, without any extension:
`SELECT * FROM walk_{c}({example}, 10)`"""

SCHEMA = """\
-- A row is an image. `added_from` is a folder; empty for images of the run's own dataset.
-- code_C: its code, a bit for each bit. number_C: the same as an integer, up to 64 bits.
CREATE TABLE {table} (
{columns}
);
"""

LOAD = """\
-- To be run by psql in this folder. Indexes come after the rows, which is quicker.
\\copy {table} ({names}) FROM 'rows.copy'
{indexes}ANALYZE {table};
"""

QUERIES = """\
-- Codes of {c} bits.

-- The $2 rows nearest to the code $1. Needs pgvector.
PREPARE nearest_{c} (bit({c}), integer) AS
  SELECT id, name, labels, (code_{c} <~> $1)::integer AS distance
  FROM {table} ORDER BY code_{c} <~> $1, id LIMIT $2;

-- All rows whose codes differ from $1 in at most $2 bits. Needs pgvector.
PREPARE within_{c} (bit({c}), integer) AS
  SELECT id, name, labels, (code_{c} <~> $1)::integer AS distance
  FROM {table} WHERE code_{c} <~> $1 <= $2 ORDER BY code_{c} <~> $1, id;
"""

# Each mask of a level grows into those of the next by a bit above its highest, so that none comes
# twice; `mask >> b = 0` says that b is above it, for the sign as well.
WALK = """
-- The k rows nearest to a code, by the B-tree of number_{c}. Needs no extension.
CREATE OR REPLACE FUNCTION walk_{c}(query bit, k integer)
RETURNS TABLE (id bigint, name text, labels text[], distance integer)
LANGUAGE plpgsql STABLE AS $$
DECLARE
  masks bigint[] := ARRAY[0];  -- all numbers with `level` of {c} bits
  missing integer := k;
  hits integer;
BEGIN
  FOR level IN 0..{c} LOOP
    IF cardinality(masks) > {most} THEN  -- then reading all other rows is the shorter way
      RETURN QUERY
        SELECT i.id, i.name, i.labels, bit_count(i.code_{c} # query)::integer FROM {table} i
        WHERE bit_count(i.code_{c} # query) >= level ORDER BY 4, 1 LIMIT missing;
      RETURN;
    END IF;
    RETURN QUERY
      SELECT i.id, i.name, i.labels, level FROM {table} i
      WHERE i.number_{c} = ANY (ARRAY(SELECT query::bigint # mask FROM unnest(masks) AS mask))
      ORDER BY i.id LIMIT missing;
    GET DIAGNOSTICS hits = ROW_COUNT;
    missing := missing - hits;
    EXIT WHEN missing <= 0;
    masks := ARRAY(SELECT mask | (1::bigint << b)
                   FROM unnest(masks) AS mask, generate_series(0, {last}) AS b WHERE mask >> b = 0);
  END LOOP;
END $$;
"""


def files(searcher: searcher_lib.Searcher, content: content_lib.Content) -> dict[str, bytes]:
  """The files of the export by name."""
  del searcher
  lengths = list(content.codes)
  walked = [c for c in lengths if c <= WALKED]
  columns = ['id bigint PRIMARY KEY', 'name text NOT NULL', 'added_from text NOT NULL',
             'labels text[] NOT NULL', *[f'code_{c} bit({c}) NOT NULL' for c in lengths],
             *[f'number_{c} bigint GENERATED ALWAYS AS (code_{c}::bigint) STORED' for c in walked]]
  indexes = ''.join(f'CREATE INDEX ON {TABLE} (number_{c});\n' for c in walked)
  most = max(1, len(content) * LOOKUPS // 100)
  queries = [QUERIES.format(c=c, table=TABLE) + (
      WALK.format(c=c, last=c - 1, table=TABLE, most=most) if c in walked else '')
             for c in lengths]
  longest = lengths[-1]
  texts = {
      'schema.sql': SCHEMA.format(table=TABLE, columns=',\n'.join(f'  {x}' for x in columns)),
      'load.sql': LOAD.format(table=TABLE, indexes=indexes, names=', '.join(
          ['id', 'name', 'added_from', 'labels', *[f'code_{c}' for c in lengths]])),
      'queries.sql': '\n\n'.join(queries),
      'README.md': README.format(
          rows=len(content), table=TABLE, lengths=', '.join(map(str, lengths)), longest=longest,
          example=_example(longest), walked='' if not walked else WALK_README.format(
              c=walked[-1], example=_example(walked[-1])))}
  return {'rows.copy': copy_lines(content)} | {
      name: text.encode() for name, text in texts.items()}


def _example(c: int) -> str:
  return f"B'{'01' * (c // 2)}{'0' * (c % 2)}'"


def copy_lines(content: content_lib.Content) -> bytes:
  """The rows in the text format of COPY: columns between tabs, a line for each row."""
  columns = [map(str, range(len(content))), map(_escaped, content.names),
             map(_escaped, content.added_from),
             (_escaped(_array(labels)) for labels in content.labels)]
  columns += [_bits(packed, c) for c, packed in content.codes.items()]
  return ''.join('\t'.join(row) + '\n' for row in zip(*columns)).encode()


def _bits(packed: np.ndarray, c: int) -> list[str]:
  """Packed codes [n, ceil(c / 8)] as texts of 0 and 1."""
  digits = np.unpackbits(packed, axis=1, count=c) + np.uint8(ord('0'))  # [n, c]
  return np.ascontiguousarray(digits).view(f'S{c}')[:, 0].astype(str).tolist()


def _array(texts: tuple[str, ...]) -> str:
  """Texts as PostgreSQL writes an array of them, all in quotes."""
  quoted = (text.replace('\\', '\\\\').replace('"', '\\"') for text in texts)
  return '{' + ','.join(f'"{text}"' for text in quoted) + '}'


_ESCAPES = str.maketrans({'\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r'})


def _escaped(text: str) -> str:
  """A text as COPY reads it."""
  return text.translate(_ESCAPES)

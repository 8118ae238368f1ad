"""Intervals of means, by numbers worked by hand."""

import math

import pytest

from mah_jax.evaluation import intervals


def test_an_interval_by_hand():
  """Mean 2, deviation 1, three numbers: t of two degrees of freedom is 4.3027 (printed tables)."""
  interval = intervals.of([1.0, 2.0, 3.0])
  assert interval.mean == 2.0 and interval.count == 3
  assert interval.half == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
  assert interval.low == pytest.approx(2 - 4.3027 / math.sqrt(3), abs=1e-4)
  assert interval.high == pytest.approx(2 + 4.3027 / math.sqrt(3), abs=1e-4)


def test_ten_numbers_have_the_printed_quantile():
  values = [0.0] * 5 + [2.0] * 5  # deviation sqrt(10 / 9), t of nine degrees 2.2622
  assert intervals.of(values).half == pytest.approx(2.2622 * math.sqrt(10 / 9 / 10), abs=1e-4)


def test_one_number_says_nothing_about_its_spread():
  interval = intervals.of([0.5])
  assert interval.mean == 0.5 and interval.half == math.inf


def test_pairs_are_made_by_seed():
  first, second = {0: 0.5, 1: 0.9, 2: 0.7}, {2: 0.6, 1: 0.8, 3: 0.0}
  interval = intervals.paired(first, second)
  assert interval.count == 2 and interval.mean == pytest.approx(0.1)
  assert interval.half == pytest.approx(0.0, abs=1e-9)  # both differences are 0.1
  assert intervals.paired(first, second, factor=2).mean == pytest.approx((-0.7 - 0.5) / 2)
  assert intervals.paired(first, {7: 1.0}) is None

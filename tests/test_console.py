"""Lines and bars that a person sees, and the signals by which a person stops a run."""

import os
import signal

import pytest

from mah_jax import console


def test_a_log_file_gets_whole_lines_with_the_time_left(capsys):
  with console.Lines(total=3, desc='encoding', mininterval=0, miniters=1, leave=False) as bar:
    for _ in range(3):
      bar.update()
    console.say('a round')
  captured = capsys.readouterr()
  lines = captured.err.splitlines()
  assert '\r' not in captured.err
  assert all(line.startswith('encoding:') for line in lines)
  assert ' 2/3 [' in captured.err and '<' in lines[-1]
  assert captured.out == 'a round\n'


def test_a_short_job_leaves_no_line(capsys):
  with console.bar(2, 'short') as bar:
    bar.update(2)
  assert capsys.readouterr().err == ''


@pytest.mark.parametrize('number, code', [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_leaves_at_once_with_its_code(number, code, capsys):
  with pytest.raises(SystemExit) as caught, console.StopRequest('Come again.'):
    os.kill(os.getpid(), number)
  assert caught.value.code == code
  assert 'Come again.' in capsys.readouterr().out


def test_a_deferred_signal_is_only_noted_and_a_second_one_leaves():
  with console.StopRequest('Come again.') as stop, stop.deferred():
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.asked == signal.SIGTERM
    with pytest.raises(SystemExit):
      os.kill(os.getpid(), signal.SIGTERM)


def test_handlers_are_put_back():
  before = signal.getsignal(signal.SIGTERM)
  with console.StopRequest('Come again.'):
    assert signal.getsignal(signal.SIGTERM) != before
  assert signal.getsignal(signal.SIGTERM) == before

"""Lines and bars that a person sees, and the signals by which a person stops a run."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time

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


def test_a_terminal_gets_a_moving_bar_with_speed_and_time_left():
  """The program runs in a pseudo-terminal; its bar is drawn over itself, lines stay above it."""
  code = ('import time; from mah_jax import console\n'
          'with console.bar(40, "work") as bar:\n'
          '  for i in range(4):\n'
          '    time.sleep(0.15); bar.update(5)\n'
          '  console.say("a line")\n')
  terminal, end = pty.openpty()
  termios.tcsetwinsize(end, (24, 80))
  with subprocess.Popen([sys.executable, '-c', code], stdout=end, stderr=end) as process:
    os.close(end)
    text = b''
    with contextlib.suppress(OSError):  # the end of a pseudo-terminal
      while part := os.read(terminal, 4096):
        text += part
  os.close(terminal)
  assert process.returncode == 0, text.decode()
  assert '\rwork:' in text.decode() and ' images/s]' in text.decode() and '/40 [' in text.decode()
  assert 'a line\r\n' in text.decode()


def test_the_first_line_of_a_log_comes_within_the_first_minute_then_one_a_minute(
    capsys, monkeypatch):
  now = 1000.0
  with console.bar(1000, 'work') as bar:
    monkeypatch.setattr(bar, '_time', lambda: now)
    bar.start_t = bar.last_print_t = now
    seen = []
    for second in range(1, 201):
      now += 1.0
      bar.update(2)
      if capsys.readouterr().err:
        seen.append(second)
  assert seen == [10, 70, 130, 190]


def test_what_is_skipped_is_counted_but_not_measured(capsys, monkeypatch):
  now = 1000.0
  with console.bar(1000, 'training') as bar:
    monkeypatch.setattr(bar, '_time', lambda: now)
    bar.start_t = bar.last_print_t = now
    now += 75  # a first step, which is compiled
    bar.skip(64)
    assert capsys.readouterr().err == ''
    now += 20
    bar.update(64)
  # 64 in 20 s are 3.2 a second; 1000 - 128 are left, for 272.5 s.
  assert '128/1000 [00:20<04:32,  3.20 images/s]' in capsys.readouterr().err


def test_a_total_that_is_not_known_is_left_open(capsys):
  with console.bar(0, 'downloading', unit='MB') as bar:
    bar.delay = bar.mininterval = 0
    bar.update(3)
  assert ' 3/? [' in capsys.readouterr().err


NOTEBOOK = """
import sys, types
from unittest import mock
import tqdm.notebook
from mah_jax import console
shell = types.SimpleNamespace()
sys.modules['ipykernel'] = sys.modules['ipykernel.zmqshell'] = types.ModuleType('ipykernel')
sys.modules['IPython'] = types.SimpleNamespace(get_ipython=lambda: shell)
"""


@pytest.mark.parametrize('widgets', [True, False])
def test_a_notebook_gets_a_bar_of_its_own_or_one_of_text_without_ipywidgets(widgets):
  """tqdm decides by what it finds in this process; a notebook and its widgets are pretended."""
  code = NOTEBOOK + (
      f'tqdm.notebook.IProgress = {"mock.MagicMock()" if widgets else "None"}\n'
      'tqdm.notebook.HTML = mock.MagicMock()\n'
      'tqdm.notebook.TqdmHBox = lambda children: mock.MagicMock(children=children)\n'
      'tqdm.notebook.display = mock.MagicMock()\n'
      'with console.bar(4, "work") as bar:\n'
      '  bar.delay = 0; bar.update(2)\n'
      '  console.say("a line")\n'
      'print(isinstance(bar, tqdm.notebook.tqdm_notebook), isinstance(bar, console._Stopping))\n')
  ran = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
  assert ran.stdout == f'a line\n{widgets} True\n', ran.stderr
  assert ('2/4 [' in ran.stderr) != widgets and 'Warning' not in ran.stderr


def _wait_until_noted(stop):
  while stop.asked is None:
    time.sleep(0.01)


@pytest.mark.parametrize('number, code', [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_stops_work_where_it_next_asks(number, code, capfd):
  done = []
  with pytest.raises(SystemExit) as caught, console.StopRequest('Come again.') as stop:
    os.kill(os.getpid(), number)
    _wait_until_noted(stop)
    done.append('what must not be cut in two')
    with console.bar(2, 'work') as bar:
      bar.update()
      done.append('more')
  assert caught.value.code == code and len(done) == 1
  captured = capfd.readouterr()
  assert 'Come again.' in captured.out and 'Stopping as soon as' in captured.err


def test_a_signal_is_not_lost_in_a_callback_that_swallows_exceptions():
  with pytest.raises(SystemExit), console.StopRequest('Come again.') as stop:
    try:
      os.kill(os.getpid(), signal.SIGTERM)
      _wait_until_noted(stop)
    except BaseException:  # as a garbage collector's callback does
      pass
    console.pause()


def test_a_signal_is_acknowledged_while_the_program_is_busy():
  """The main thread is in a call that lets no handler run, as a long compilation is."""
  code = ('import sys, time; from mah_jax import console\n'
          'with console.StopRequest("Come again."):\n'
          '  print("busy", flush=True)\n'
          '  import ctypes; ctypes.CDLL(None).usleep.argtypes = [ctypes.c_uint]\n'
          '  deadline = time.time() + 3\n'
          '  while time.time() < deadline: ctypes.CDLL(None).usleep(900000)\n'
          '  console.pause()\n')
  with subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, text=True) as process:
    assert process.stdout.readline() == 'busy\n'
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == '\n'
    assert 'Stopping as soon as' in process.stderr.readline()
    assert time.monotonic() - began < 2
    assert process.wait(20) == 130 and 'Come again.' in process.stdout.read()


def test_a_deferred_signal_is_only_noted_and_a_second_one_ends_the_program():
  with console.StopRequest('Come again.') as stop, stop.deferred():
    os.kill(os.getpid(), signal.SIGTERM)
    _wait_until_noted(stop)
    console.pause()
    assert stop.asked == signal.SIGTERM
  code = ('import os, signal, time; from mah_jax import console\n'
          'with console.StopRequest("Come again."):\n'
          '  for _ in range(2): os.kill(os.getpid(), signal.SIGINT); time.sleep(0.3)\n'
          '  print("still here")\n')
  ended = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
  assert ended.returncode == 130 and 'still here' not in ended.stdout


def test_handlers_are_put_back():
  before = signal.getsignal(signal.SIGTERM)
  with console.StopRequest('Come again.'):
    assert signal.getsignal(signal.SIGTERM) != before
  assert signal.getsignal(signal.SIGTERM) == before


def test_bars_leave_no_threads_behind():
  before = threading.active_count()
  for _ in range(5):
    with console.bar(3, 'work') as bar:
      bar.update()
  assert threading.active_count() == before

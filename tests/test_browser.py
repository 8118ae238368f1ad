"""The page in a real browser: upload, clicks, settings, a broken image, an empty database."""

import contextlib
import shutil

import numpy as np
import pytest
import served

for library in ('starlette', 'uvicorn'):
  pytest.importorskip(library, reason='the page needs requirements-serve.txt')
sync_api = pytest.importorskip('playwright.sync_api',
                               reason='driving a browser needs requirements-browser.txt')
CHROMIUM = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))),
                None)
if CHROMIUM is None:
  pytest.skip('no Chromium is installed', allow_module_level=True)

FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
         '--disable-background-networking', '--disable-component-update', '--disable-sync']


@pytest.fixture(scope='module')
def browser():
  with sync_api.sync_playwright() as playwright:
    made = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
    with contextlib.closing(made):
      yield made


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  with served.trained(tmp_path_factory.mktemp('runs')) as made:
    yield made


@pytest.fixture(scope='module')
def searcher(folder):
  return served.open_run(folder)


@pytest.fixture(scope='module')
def port(searcher):
  with served.serving(searcher) as number:
    yield number


@contextlib.contextmanager
def _opened(browser, port, path='/', **settings):
  """A tab with the page; at its end nothing was refused by the browser and no script failed."""
  with contextlib.closing(browser.new_context(**settings)) as context:
    page, complaints = context.new_page(), []
    page.on('console', lambda message: complaints.append(message.text))
    page.on('pageerror', lambda error: complaints.append(str(error)))
    page.set_default_timeout(20_000)
    page.goto(f'http://127.0.0.1:{port}{path}')
    yield page, complaints
    assert not complaints


@pytest.fixture
def page(browser, port):
  with _opened(browser, port) as (made, _):
    made.wait_for_selector('.card')
    yield made


@pytest.fixture
def query(searcher, tmp_path):
  """The file of a digit that is not in the database."""
  file = tmp_path / 'a digit.png'
  file.write_bytes(served.png(searcher.data.images[searcher.data.protocol.queries[0]]))
  return file


def _texts(page, selector):
  return [text.strip() for text in page.locator(selector).all_inner_texts()]


def _codes(page, selector):
  """The codes that are drawn as squares, and read aloud."""
  drawn = page.locator(f'{selector} .bits')
  codes = []
  for i in range(drawn.count()):
    squares = drawn.nth(i).locator('i')
    code = ''.join('1' if 'on' in (squares.nth(j).get_attribute('class') or '').split() else '0'
                   for j in range(squares.count()))
    assert drawn.nth(i).get_attribute('aria-label').startswith(f'Code {code}')
    codes.append(code)
  return codes


def _bits(code):
  return ''.join('1' if bit == 1 else '0' for bit in code)


def _expect_hits(page, hits):
  page.wait_for_function('count => document.querySelectorAll(".distance").length === count '
                         '&& document.getElementById("results").ariaBusy === "false"',
                         arg=len(hits))
  assert _texts(page, '#cards .name') == [hit.name for hit in hits]
  assert _texts(page, '#cards .labels') == [' '.join(hit.labels) for hit in hits]


def _distance(hit):
  return ('same code' if hit.distance == 0 else '1 bit' if hit.distance == 1 else
          f'{hit.distance} bits')


def test_the_page_begins_with_images_of_the_database(page, searcher):
  assert page.locator('.card').count() == 24
  assert 'digits · 1,697 images · digits · mah · 4, 8 bits' in page.inner_text('header')
  assert len(_codes(page, '#cards')) == 24 and page.locator('.distance').count() == 0
  page.wait_for_function('() => [...document.querySelectorAll(".card img")].slice(0, 4)'
                         '.every(image => image.naturalWidth === 256)')
  assert page.locator('.card img').first.get_attribute('alt')
  before = _texts(page, '#cards .name')
  page.click('#others')
  page.wait_for_function('before => document.querySelector("#cards .name").innerText !== before',
                         arg=before[0])
  assert _texts(page, '#cards .name') != before


def test_an_upload_shows_its_neighbours(page, searcher, query):
  page.set_input_files('#file', query)
  hits = searcher.search(query, 10)
  _expect_hits(page, hits)
  assert _texts(page, '.distance') == [_distance(hit) for hit in hits]
  assert _codes(page, '#cards') == [_bits(searcher.code(hit.row)) for hit in hits]
  assert _codes(page, '#query-code') == [_bits(searcher.encode(query))]
  assert page.inner_text('#query-name') == 'a digit.png'
  assert page.evaluate('document.getElementById("preview").naturalWidth') == 8
  differing = page.locator('#cards > li').last.locator('.other').count()
  assert differing == hits[-1].distance


def test_a_dropped_image_is_searched_for(page, searcher, query):
  page.evaluate("""async (bytes) => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(bytes)], 'dropped.png', {type: 'image/png'}));
      document.getElementById('drop').dispatchEvent(
          new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));
  }""", list(query.read_bytes()))
  _expect_hits(page, searcher.search(query, 10))
  assert page.inner_text('#query-name') == 'dropped.png'


def _hits_of(searcher, row, **choice):
  return searcher.search(searcher.image(row), **{'k': 10} | choice)


def test_a_click_searches_on_and_back_returns(page, searcher, query):
  page.set_input_files('#file', query)
  first = searcher.search(query, 10)
  _expect_hits(page, first)
  page.locator('.card').nth(3).click()
  second = _hits_of(searcher, first[3].row)
  _expect_hits(page, second)
  assert page.inner_text('#query-name') == first[3].name
  assert f'row={first[3].row}' in page.url
  shared = page.locator('#cards .shared').count()
  assert shared == sum(hit.labels == first[3].labels for hit in second)
  page.go_back()
  _expect_hits(page, first)
  assert page.inner_text('#query-name') == 'a digit.png'
  page.go_forward()
  _expect_hits(page, second)
  page.reload()
  _expect_hits(page, second)
  page.click('#others')
  page.wait_for_function('() => document.querySelectorAll(".card").length === 24')


def test_settings_change_the_answer(page, searcher, query):
  page.set_input_files('#file', query)
  _expect_hits(page, searcher.search(query, 10))
  page.locator('#lengths label', has_text='4').click()
  _expect_hits(page, searcher.search(query, 10, length=4))
  assert {len(code) for code in _codes(page, '#cards')} == {4}
  assert {len(code) for code in _codes(page, '#words')} == {4}
  page.locator('#databases label', has_text='encoded').click()
  _expect_hits(page, searcher.search(query, 10, length=4, database='encoded'))
  page.locator('#rankings label', has_text='outputs').click()
  by_outputs = searcher.search(query, 10, length=4, database='encoded', ranking='outputs')
  _expect_hits(page, by_outputs)
  assert _texts(page, '.distance') == [f'agreement {hit.distance:.3f}' for hit in by_outputs]
  page.fill('#k', '3')
  page.press('#k', 'Enter')
  _expect_hits(page, by_outputs[:3])


def test_the_keyboard_is_enough(page, searcher):
  page.keyboard.press('Tab')
  assert page.evaluate('document.activeElement.id') == 'home'
  page.keyboard.press('Tab')
  assert page.evaluate('document.activeElement.id') == 'file'
  page.keyboard.press('Tab')
  page.keyboard.press('ArrowLeft')  # of 4 and 8 bits
  page.wait_for_function('() => document.querySelector("#cards .bits i:nth-child(8)") === null')
  page.focus('.card')
  name = page.locator('.card .name').first.inner_text()
  row = searcher.database.names.index(name)
  page.keyboard.press('Enter')
  _expect_hits(page, _hits_of(searcher, row, length=4))
  assert page.evaluate('document.activeElement.id') == 'query-title'


def test_the_codebook_is_a_grid_of_classes(page, searcher, query):
  assert _texts(page, '#words th') == [str(i) for i in range(10)]
  majority = {}
  for i in range(10):
    rows = np.flatnonzero(searcher.database.labels[:, i])
    total = sum(searcher.code(row).astype(int) for row in rows)
    majority[str(i)] = _bits(np.where(total >= 0, 1, -1))
  assert _codes(page, '#words') == list(majority.values())
  page.set_input_files('#file', query)
  _expect_hits(page, searcher.search(query, 10))
  code = _bits(searcher.encode(query))
  apart = [sum(a != b for a, b in zip(majority[name], code)) for name in _texts(page, '#words th')]
  assert apart == sorted(apart)  # the nearest class comes first
  assert _texts(page, '#words td.number:nth-child(3)') == [
      f'{one} bit{"" if one == 1 else "s"}' for one in apart]


def test_a_broken_image_is_one_sentence_and_the_page_stays(
    browser, port, searcher, query, tmp_path):
  broken = tmp_path / 'broken.jpg'
  broken.write_bytes(b'not an image')
  with _opened(browser, port) as (page, complaints):
    page.wait_for_selector('.card')
    page.set_input_files('#file', query)
    hits = searcher.search(query, 10)
    _expect_hits(page, hits)
    page.set_input_files('#file', broken)
    page.wait_for_selector('#problem:not([hidden])')
    assert page.inner_text('#problem').startswith('The image cannot be read: it is none of JPEG,')
    _expect_hits(page, hits)
    complaints.clear()  # Chromium notes the status 422
    page.locator('.card').first.click()
    page.wait_for_selector('#problem', state='hidden')


def test_an_image_that_is_too_large_is_not_sent(page, tmp_path):
  large = tmp_path / 'large.png'
  large.write_bytes(bytes(20_000_001))
  page.set_input_files('#file', large)
  page.wait_for_selector('#problem:not([hidden])')
  assert page.inner_text('#problem') == (
      'large.png has more than 20 MB, which is the most that is accepted.')


def test_a_row_that_does_not_exist_is_one_sentence(browser, port):
  with _opened(browser, port, '/?row=99999&length=77&k=x') as (page, complaints):
    page.wait_for_selector('.card')
    assert '0 to 1696' in page.inner_text('#problem')
    assert page.locator('.card').count() == 24
    complaints.clear()


def test_an_empty_database_says_so(browser, folder, query):
  with (served.serving(served.empty(served.open_run(folder))) as port,
        _opened(browser, port) as (page, _)):
    page.wait_for_function('() => document.getElementById("status").innerText !== ""')
    assert page.inner_text('#status') == (
        'The database of this run has no images, so there is nothing to find.')
    assert page.locator('.card').count() == 0 and page.locator('#codebook').is_hidden()
    page.set_input_files('#file', query)
    page.wait_for_selector('#query-code .bits')
    assert page.inner_text('#title') == 'Neighbours' and 'no images' in page.inner_text('#status')


def test_without_labels_there_is_no_codebook(browser, folder, monkeypatch):
  searcher = served.open_run(folder)
  kept = searcher.database
  monkeypatch.setattr(searcher, 'database', kept._replace(
      labels=np.zeros_like(kept.labels), names=['<img src=x>', *kept.names[1:]]))
  with served.serving(searcher) as port, _opened(browser, port, '/?row=0') as (page, _):
    page.wait_for_selector('.distance')
    assert page.locator('#codebook').is_hidden() and page.locator('.labels li').count() == 0
    assert page.inner_text('#query-name') == '<img src=x>'


@pytest.mark.parametrize('width', [320, 375, 768, 1600])
def test_nothing_sticks_out_at_any_width(browser, port, query, width):
  with _opened(browser, port, viewport={'width': width, 'height': 800}) as (page, _):
    page.wait_for_selector('.card')
    page.set_input_files('#file', query)
    page.wait_for_selector('.distance')
    assert page.evaluate('document.documentElement.scrollWidth') <= width


def test_text_can_be_told_from_its_ground_in_light_and_dark(browser, port):
  """WCAG asks for a contrast of 4.5."""
  def brightness(colour):
    parts = [int(x) / 255 for x in colour[colour.index('(') + 1:-1].split(',')[:3]]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return np.dot(linear, (0.2126, 0.7152, 0.0722))

  for scheme in ('light', 'dark'):
    with _opened(browser, port, '/?row=1', color_scheme=scheme) as (page, _):
      page.wait_for_selector('.distance')
      grounds = {name: page.evaluate(
          f'getComputedStyle(document.querySelector("{name}")).backgroundColor')
          for name in ('body', '.card', '#lengths input:checked + span')}
      for text, ground in [('#status', 'body'), ('#hint strong', '.card'), ('.rank', '.card'),
                           ('.name', 'body'), ('#lengths input:checked + span',
                                               '#lengths input:checked + span')]:
        colour = page.evaluate(f'getComputedStyle(document.querySelector("{text}")).color')
        two = sorted([brightness(colour), brightness(grounds[ground])])
        assert (two[1] + 0.05) / (two[0] + 0.05) >= 4.5, (scheme, text)

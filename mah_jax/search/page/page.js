// The page: asks the API below /api/ and shows what it answers.

const RANKINGS = { hamming: 'differing bits', outputs: 'outputs' };
const BYTE = 8; // bits that stay together in a line
const MANY_BITS = 32; // from here on a code is drawn smaller
const TINY = 64; // pixels; a smaller image is enlarged without being blurred
const MANY_LABELS = 4; // labels of a card; the others are counted

const $ = (id) => document.getElementById(id);
const files = []; // images that were chosen; history entries name them by number
let run; // what /api/run says
let query = null; // {row} or {file: number}; null: none
let choice = {}; // length, ranking, database, k
let asking = new AbortController(); // of the questions whose answers are still wanted

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// A question to the server; what it refuses is thrown with the sentence that it gives.
async function ask(path, values = {}, options = {}) {
  const address = `/api/${path}?${new URLSearchParams(values)}`;
  let answer;
  try {
    answer = await fetch(address, { signal: asking.signal, ...options });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Error('The server does not answer. Is it still running?');
  }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(content.error || `The server answered ${answer.status}.`);
  return content;
}

function plural(count, word) {
  return `${count.toLocaleString('en')} ${word}${count === 1 ? '' : 's'}`;
}

function differences(code, other) {
  return [...code].filter((bit, i) => bit !== other[i]).length;
}

// A code as squares; bits that differ from another code have a colour of their own.
function bits(code, other = null) {
  const apart = other === null ? '' : `, ${plural(differences(code, other), 'bit')} from the query`;
  const kind = code.length > MANY_BITS ? 'bits many' : 'bits';
  const drawn = element('span', { class: kind, role: 'img', 'aria-label': `Code ${code}${apart}` });
  [...code].forEach((bit, i) => {
    const names = [bit === '1' && 'on', other !== null && bit !== other[i] && 'other'];
    if (i % BYTE === 0) drawn.append(element('b'));
    drawn.lastChild.append(element('i', { class: names.filter(Boolean).join(' ') }));
  });
  return drawn;
}

function labelItems(labels, shared = []) {
  const items = labels.slice(0, MANY_LABELS).map((label) => element(
    'li', shared.includes(label) ? { class: 'shared', title: 'The query has it too' } : {}, label));
  const more = labels.slice(MANY_LABELS);
  if (more.length) items.push(element('li', { title: more.join(', ') }, `+${more.length}`));
  return items;
}

function lastPart(name) {
  return name.split('/').pop();
}

function distanceText(hit, ranking) {
  if (ranking === 'outputs') return `agreement ${hit.distance.toFixed(3)}`;
  return hit.distance === 0 ? 'same code' : plural(hit.distance, 'bit');
}

function described(image) {
  return image.labels.length ? `${image.name}: ${image.labels.join(', ')}` : `Image ${image.name}`;
}

function addressOf(wanted) {
  const values = new URLSearchParams(choice);
  if (wanted && wanted.row !== undefined) values.set('row', wanted.row);
  return `/?${values}`;
}

// An image of the database as a link that searches on from it.
function card(image, answer, rank) {
  const picture = element('img', { src: image.thumbnail, alt: described(image), width: 256,
    height: 256, loading: 'lazy', decoding: 'async' });
  picture.addEventListener('error', () => { picture.alt = 'Its file cannot be read'; });
  const text = element('div', { class: 'text' });
  if (answer) {
    const itself = answer.query.row === image.row ? 'the query' : `${rank}`;
    text.append(element('div', { class: 'line' },
      element('span', { class: 'distance' }, distanceText(image, answer.ranking)),
      element('span', { class: 'rank' }, itself)));
  }
  text.append(element('div', {}, bits(image.code, answer ? answer.query.code : null)));
  if (image.labels.length) {
    text.append(element('ul', { class: 'labels' },
      ...labelItems(image.labels, answer ? answer.query.labels : [])));
  }
  text.append(element('div', { class: 'name', title: image.name }, lastPart(image.name)));
  const link = element('a', { class: 'card', href: addressOf({ row: image.row }) }, picture, text);
  link.addEventListener('click', (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return; // a new tab
    event.preventDefault();
    go({ row: image.row });
  });
  return element('li', {}, link);
}

function showQuery(answer) {
  $('about').hidden = !answer;
  $('preview').hidden = !answer;
  if (!answer) return;
  const file = query.file === undefined ? null : files[query.file];
  URL.revokeObjectURL($('preview').src);
  $('preview').src = file ? URL.createObjectURL(file) : answer.query.thumbnail;
  $('preview').alt = file ? `The query, ${file.name}` : `The query, ${described(answer.query)}`;
  $('query-name').textContent = file ? file.name : answer.query.name;
  $('query-name').title = $('query-name').textContent;
  $('query-labels').replaceChildren(...labelItems(answer.query.labels || []));
  $('query-labels').hidden = !(answer.query.labels || []).length;
  $('query-code').replaceChildren(bits(answer.query.code));
}

function showFound(images, answer) {
  $('title').textContent = answer ? 'Neighbours' : 'Images of the database';
  $('others').textContent = answer ? 'Back to the database' : 'Show others';
  $('others').hidden = !answer && images.length === run.rows;
  let status = '';
  if (!run.rows) {
    status = 'The database of this run has no images, so there is nothing to find.';
  } else if (answer) {
    const { encode, search } = answer.milliseconds;
    status = `The nearest ${images.length.toLocaleString('en')} of ${plural(run.rows, 'image')}, `
      + `encoded in ${encode.toFixed(1)} ms and searched in ${search.toFixed(1)} ms.`;
  } else {
    status = `${plural(images.length, 'image')} of ${run.rows.toLocaleString('en')}, at random. `
      + 'Click one to find its neighbours.';
  }
  $('status').textContent = status;
  $('cards').replaceChildren(...images.map((image, i) => card(image, answer, i + 1)));
}

// The classes in their order or, where there is a query, those with the nearest codewords first.
function showCodebook(classes, answer) {
  $('codebook').hidden = !classes.length;
  const words = new Set(classes.map((one) => one.code));
  $('codebook-note').textContent = `Classes: ${classes.length.toLocaleString('en')}, with `
    + `${plural(words.size, 'different codeword')} of ${plural(choice.length, 'bit')}.`;
  const code = answer ? answer.query.code : null;
  const lines = classes.map((one) => ({ ...one, apart: code ? differences(one.code, code) : 0 }));
  lines.sort((one, two) => one.apart - two.apart);
  $('apart').hidden = !code;
  $('words').replaceChildren(...lines.map((one) => element(
    'tr', code && one.apart === lines[0].apart ? { class: 'nearest' } : {},
    element('th', { scope: 'row' }, one.name),
    element('td', {}, bits(one.code, code)),
    ...(code ? [element('td', { class: 'number' }, plural(one.apart, 'bit'))] : []),
    element('td', { class: 'number' }, one.rows.toLocaleString('en')))));
}

function complain(sentence) {
  $('problem').textContent = sentence;
  $('problem').hidden = !sentence;
}

function answerTo(wanted) {
  const values = { ...choice };
  if (wanted.row !== undefined) return ask('search', { ...values, row: wanted.row });
  const body = files[wanted.file];
  return ask('search', values, { method: 'POST', body,
    headers: { 'Content-Type': 'application/octet-stream' } });
}

// Asks for everything that the page shows, and shows it; an error leaves the page as it was.
async function show(wanted) {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  $('results').setAttribute('aria-busy', 'true');
  const codes = { length: choice.length, database: choice.database };
  try {
    const [answer, some, codebook] = await Promise.all([
      wanted ? answerTo(wanted) : null, wanted ? null : ask('random', codes),
      ask('codebook', codes)]);
    query = wanted;
    complain('');
    showQuery(answer);
    showFound(answer ? answer.hits : some.images, answer);
    showCodebook(codebook.classes, answer);
    return true;
  } catch (error) {
    if (error.name !== 'AbortError') complain(error.message);
    return false;
  } finally {
    if (!signal.aborted) $('results').setAttribute('aria-busy', 'false');
  }
}

// Searches from an image, or goes back to the database where there is none.
async function go(wanted) {
  if (await show(wanted)) {
    history.pushState({ query, choice }, '', addressOf(wanted));
    window.scrollTo(0, 0);
    $('query-title').focus({ preventScroll: true });
  }
}

function choose(file) {
  if (!file) return;
  if (file.size > run.max_bytes) {
    complain(`${file.name} has more than ${run.max_bytes / 1e6} MB, which is the most that is `
      + 'accepted.');
    return;
  }
  files.push(file);
  go({ file: files.length - 1 });
}

function radios(fieldset, name, values, texts) {
  for (const value of values) {
    const input = element('input', { type: 'radio', name, value });
    input.checked = String(choice[name]) === String(value);
    input.addEventListener('change', () => change({ [name]: value }));
    fieldset.append(element('label', {}, input, element('span', {}, texts(value))));
  }
  fieldset.hidden = values.length < 2;
}

async function change(changed) {
  choice = { ...choice, ...changed };
  if (await show(query)) history.replaceState({ query, choice }, '', addressOf(query));
}

function showChoice() {
  for (const input of $('settings').querySelectorAll('input[type=radio]')) {
    input.checked = String(choice[input.name]) === input.value;
  }
  $('k').value = choice.k;
}

// The choice and the image that the address of the page names, where they can be meant.
function readAddress() {
  const values = new URLSearchParams(location.search);
  const known = { length: run.lengths, ranking: run.rankings, database: run.databases };
  for (const [name, allowed] of Object.entries(known)) {
    const value = allowed.find((one) => String(one) === values.get(name));
    if (value !== undefined) choice[name] = value;
  }
  const k = Number(values.get('k'));
  if (Number.isInteger(k) && k >= 1 && k <= run.max_k) choice.k = k;
  return /^\d{1,9}$/.test(values.get('row') || '') ? { row: Number(values.get('row')) } : null;
}

function listen() {
  $('file').addEventListener('change', () => {
    choose($('file').files[0]);
    $('file').value = ''; // so that the same file can be chosen again
  });
  for (const kind of ['dragenter', 'dragover', 'dragleave', 'drop']) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      $('drop').classList.toggle('over', kind === 'dragenter' || kind === 'dragover');
      if (kind === 'drop') choose(event.dataTransfer.files[0]);
    });
  }
  document.addEventListener('paste', (event) => choose(event.clipboardData.files[0]));
  $('preview').addEventListener('error', () => { $('preview').hidden = true; });
  $('preview').addEventListener('load', () => {
    $('preview').classList.toggle('tiny', $('preview').naturalWidth < TINY);
  });
  $('others').addEventListener('click', () => (query ? go(null) : show(null)));
  $('home').addEventListener('click', (event) => {
    event.preventDefault();
    go(null);
  });
  $('settings').addEventListener('submit', (event) => event.preventDefault());
  $('k').addEventListener('change', () => {
    if ($('k').reportValidity()) change({ k: Number($('k').value) });
  });
  window.addEventListener('popstate', (event) => {
    if (event.state) {
      choice = event.state.choice;
      showChoice();
      const { query: wanted } = event.state;
      show(wanted && wanted.file !== undefined && !files[wanted.file] ? null : wanted);
    }
  });
}

async function begin() {
  try {
    run = await ask('run');
  } catch (error) {
    complain(error.message);
    return;
  }
  choice = { ...run.start };
  const wanted = readAddress();
  document.title = `${run.name} · search by image`;
  $('run').textContent = `${run.name} · ${plural(run.rows, 'image')} · ${run.dataset} · `
    + `${run.method} · ${run.lengths.join(', ')} bits`;
  radios($('lengths'), 'length', run.lengths, String);
  radios($('rankings'), 'ranking', run.rankings, (value) => RANKINGS[value] || value);
  radios($('databases'), 'database', run.databases, String);
  $('k').max = run.max_k;
  $('k').value = choice.k;
  listen();
  if (!await show(wanted) && wanted) {
    const sentence = $('problem').textContent;
    await show(null);
    complain(sentence);
  }
  history.replaceState({ query, choice }, '', addressOf(query));
}

begin();

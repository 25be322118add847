// The served page: chooses the recording, or two to compare; follows a program that runs, and controls its recording.

import { parse } from './content.js';
import { element, copyText, timeText } from './text.js';
import { readState, writeState } from './state.js';
import { Page, byId, applyTheme, isDark } from './main.js';
import { Api } from './api.js';
import { Source } from './source.js';
import { COMPARED_PARTS, Comparison } from './compare.js';

/** Interval between two requests for a program that runs. */
const TICK_MILLIS = 1000;
/** Keys of the state whose change needs a request to the server. */
const ASKED = ['recording', 'against', 'before', 'after', 'below', 'thread', 'size', 'function', 'module', 'from', 'to'];
/** Each part in words; of two recordings that are compared, all but the calls. */
const PARTS = {
  below: () => 'only a part of the calls', thread: (name) => `only thread ${name}`, size: (sizes) => `only sizes ${sizes}`,
  function: (pattern) => `only function ${pattern}`, module: (pattern) => `only module ${pattern}`,
  from: (nanos) => `only from ${timeText(Number(nanos))} on`, to: (nanos) => `only up to ${timeText(Number(nanos))}`,
};

class View {
  constructor(api, list) {
    Object.assign(this, { api, list, grown: new Set() });
    this.state = readState();
    this.source = new Source(api);
    this.host = {
      state: this.state,
      onSource: (place) => this.source.show(place),
      onPart: (part) => this.choose({ ...part, zoom: part.below || this.state.zoom }),
      isCovered: () => this.source.box.open || !byId('comparison').hidden,
    };
    this.fillChoices();
    this.listen();
  }

  get id() {
    const ids = this.list.recordings.map((one) => one.id);
    return ids.includes(this.state.recording) ? this.state.recording : ids[0];
  }

  get against() {
    return this.list.recordings.some((one) => one.id === this.state.against) ? this.state.against : '';
  }

  /** The part of the recording that is requested. */
  get words() {
    return Object.fromEntries(Object.keys(PARTS).map((key) => [key, this.state[key]]));
  }

  // --- state

  write(changes, isStep) {
    Object.assign(this.state, changes);
    writeState(this.state, isStep);
  }

  choose(changes) {
    this.write(changes, true);
    this.load();
  }

  /** Follows a change of the address: by going back, or by hand. */
  async go() {
    const state = readState();
    const isOther = ASKED.some((key) => state[key] !== this.state[key]);
    if (!isOther && this.page && !this.against) {
      await this.page.goTo();
      this.showChoices();
      return;
    }
    Object.assign(this.state, state);
    if (!isOther && this.against && this.comparison?.ids) this.comparison.show();
    else await this.load();
  }

  /** Requests the content that the state names, and shows it. */
  async load() {
    const asked = (this.asked = {});
    applyTheme(this.state);
    this.showChoices();
    this.say('Reading …');
    try {
      if (this.against) await this.compare();
      else await this.open(asked);
      if (this.asked === asked) this.say('');
    } catch (error) {
      if (this.asked === asked) this.say(error.message, true);
      else if (!(error instanceof Error)) throw error;
    }
  }

  async open(asked) {
    const { id, words } = this;
    if (!id) {
      this.say('There are no recordings here yet. `cairn heap PROGRAM` makes one; this page checks for it each second.');
      return;
    }
    const answer = await this.api.content(id, words);
    const content = await this.prepared(id, words, answer);
    if (this.asked !== asked) return;
    document.querySelector('main').hidden = false;
    byId('comparison').hidden = true;
    this.version = answer.version;
    this.showBehind(content);
    if (this.page) {
      this.page.replace(content);
      this.page.sizeViews(true);
    } else {
      this.page = new Page(content, this.host);
      globalThis.cairnPage = this.page;
    }
    this.showParts(Object.keys(PARTS));
    byId('parts').title = content.recording.filters.join(', ');
  }

  /** A button for each part that is chosen, which leaves it out. */
  showParts(keys) {
    const chosen = keys.filter((key) => this.state[key]);
    byId('parts').replaceChildren(...chosen.map((key) =>
      element('button', { type: 'button', title: 'Show everything again', on: { click: () => this.choose({ [key]: '', zoom: '' }) } },
        `${PARTS[key](this.state[key])} ✕`)));
  }

  /** The content, with its slices where a range is shown at once. */
  async prepared(id, words, { version, bytes }) {
    const content = parse(bytes, async (of) => {
      try {
        of.addColumns(await this.api.slices(id, { ...words, version }));
      } catch (error) {
        // The recording has grown meanwhile; its newer content comes with newer slices.
        if (error.status === 409) setTimeout(() => this.load());
        else this.say(error.message, true);
        throw error;
      }
    });
    if (this.state.range) await content.needSlices();
    return content;
  }

  async compare() {
    document.querySelector('main').hidden = true;
    this.showParts(COMPARED_PARTS);
    byId('parts').title = '';
    if (!this.comparison) {
      this.comparison = new Comparison({
        api: this.api, state: this.state,
        onChoose: (changes, isStep) => this.write(changes, isStep),
        onFail: (error) => this.say(error.message, true),
      });
    }
    globalThis.cairnComparison = this.comparison;
    byId('command').textContent = 'Two recordings compared';
    byId('process').textContent = '';
    document.title = 'comparison · cairn';
    await this.comparison.load(this.id, this.against);
  }

  // --- a program that runs

  get shown() {
    return this.list.recordings.find((one) => one.id === this.id);
  }

  async tick() {
    try {
      await this.look();
    } catch (error) {
      // Without a status, the network refused the request: the server has ended.
      this.say(error.status ? error.message : 'cairn view has ended; what is shown stays.', true);
      if (!error.status) this.isOver = true;
    }
    if (!this.isOver) setTimeout(() => this.tick(), TICK_MILLIS);
  }

  async look() {
    if (document.hidden) return;
    if (!this.id) {
      await this.relist();
      if (this.id) await this.load();
      return;
    }
    this.reads = (this.reads || 0) + 1;
    // Other recordings may have begun.
    if (this.reads % 5 === 0) await this.relist();
    const { id } = this;
    // The last part of a recording that has ended comes when the command has packed it.
    if (!this.shown?.is_growing && !this.grown.has(id)) return;
    const now = await this.api.recording(id);
    if (id !== this.id) return;
    Object.assign(this.shown, now);
    this.showLive();
    if (this.state.live === 'paused' || this.against) return;
    await this.follow(id);
  }

  async follow(id) {
    const asked = this.asked;
    const answer = await this.api.content(id, { ...this.words, known: this.version });
    if (!answer) return;
    const content = await this.prepared(id, this.words, answer);
    // Nothing changes while the user brushes, or after another choice.
    if (this.asked !== asked || id !== this.id || this.page?.timeline.pressed) return;
    this.version = answer.version;
    this.showBehind(content);
    const began = performance.now();
    this.page.replace(content);
    document.documentElement.dataset.updates = String(Number(document.documentElement.dataset.updates || 0) + 1);
    document.documentElement.dataset.updateMillis = (performance.now() - began).toFixed(1);
  }

  /** Shows how far the content is behind now, while the rest is read. */
  showBehind(content) {
    this.behind = content.recording.behind_nanos;
    this.showLive();
  }

  async relist() {
    this.list = await this.api.recordings();
    this.fillChoices();
    this.showChoices();
  }

  async send(wish, text) {
    try {
      Object.assign(this.shown, await this.api.send(this.id, wish, text));
      this.showLive();
      this.say(wish === 'mark' ? 'The mark is set.' : '');
    } catch (error) {
      this.say(error.message, true);
    }
  }

  // --- views

  say(text, isBad = false) {
    byId('notice').textContent = text;
    byId('notice').className = isBad ? 'bad' : '';
  }

  fillChoices() {
    const { recordings } = this.list;
    const key = recordings.map((one) => one.id).join('\n');
    if (key === this.filled) return;
    this.filled = key;
    const options = () => recordings.map((one) => element('option', { value: one.id }, one.id));
    byId('recording').replaceChildren(...options());
    byId('against').replaceChildren(element('option', { value: '' }, 'nothing'), ...options());
    byId('recording-box').hidden = recordings.length < 2;
    byId('against-box').hidden = recordings.length < 2;
  }

  showChoices() {
    if (this.id) byId('recording').value = this.id;
    byId('against').value = this.against;
    this.showLive();
  }

  showLive() {
    const { shown } = this;
    const isFollowed = this.state.live !== 'paused';
    if (shown?.is_growing) this.grown.add(shown.id);
    byId('live-box').hidden = !shown || !this.grown.has(shown.id);
    if (!shown) return;
    byId('live').setAttribute('aria-pressed', String(isFollowed));
    byId('live').textContent = isFollowed ? 'Live' : 'Paused';
    const reported = shown.is_growing ? { recording: 'it records', paused: 'recording is stopped', full: 'its file is full', starting: 'it begins' }[shown.state] || shown.state : 'the program has ended';
    const { behind } = this;
    const text = `process ${shown.process}: ${shown.is_growing && behind ? `catching up: ${timeText(behind)} behind` : reported}`;
    document.body.classList.toggle('catching-up', Boolean(shown.is_growing && behind));
    if (byId('live-state').textContent !== text) byId('live-state').textContent = text;
    for (const id of ['record-start', 'record-stop', 'record-mark', 'mark-text']) byId(id).disabled = !shown.is_growing;
    byId('record-start').setAttribute('aria-pressed', String(shown.is_growing && shown.state === 'recording'));
    byId('record-stop').setAttribute('aria-pressed', String(shown.is_growing && shown.state === 'paused'));
  }

  // --- listeners

  listen() {
    const none = { zoom: '', below: '', thread: '', size: '', function: '', module: '', from: '', to: '', range: '', before: '', after: '' };
    byId('recording').addEventListener('change', (event) => this.choose({ ...none, recording: event.target.value }));
    byId('against').addEventListener('change', (event) => this.choose({ ...none, recording: this.id, against: event.target.value }));
    byId('live').addEventListener('click', () => {
      this.write({ live: this.state.live === 'paused' ? '' : 'paused' });
      this.showLive();
    });
    byId('record-start').addEventListener('click', () => this.send('start'));
    byId('record-stop').addEventListener('click', () => this.send('stop'));
    byId('mark-form').addEventListener('submit', (event) => {
      event.preventDefault();
      const text = byId('mark-text').value.trim();
      if (text) this.send('mark', text).then(() => (byId('mark-text').value = ''));
    });
    byId('copy-link').addEventListener('click', () => {
      copyText(`${location.origin}/${location.hash}`).then(() => this.say('The link is copied: it opens in this browser, as long as cairn view runs.'));
    });
    byId('theme').addEventListener('click', () => {
      // The page listens to this button itself, once it is there.
      if (!this.page) {
        this.write({ theme: isDark() ? 'light' : 'dark' });
        applyTheme(this.state);
      }
      this.comparison?.repaint();
    });
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.comparison?.repaint());
    window.addEventListener('popstate', () => this.go());
    window.addEventListener('hashchange', () => this.go());
  }
}

async function serve() {
  try {
    const api = new Api();
    const list = await api.recordings();
    const state = readState();
    // Two recordings that were named are compared, unless the address says something else.
    if (list.compares && !location.hash && list.recordings.length > 1) {
      writeState({ ...state, recording: list.recordings[0].id, against: list.recordings[1].id });
    }
    const view = new View(api, list);
    globalThis.cairnView = view;
    await view.load();
    document.documentElement.dataset.ready = '1';
    setTimeout(() => view.tick(), TICK_MILLIS);
  } catch (error) {
    byId('failure').hidden = false;
    byId('failure').textContent = `This page cannot be shown: ${error.message}.`;
    throw error;
  }
}

serve();

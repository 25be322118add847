// The served page: which recording is shown, or which two are compared; follows a program that runs, and tells it what to do.

import { parse } from './content.js';
import { element, copyText, timeText } from './text.js';
import { readState, writeState } from './state.js';
import { Page, byId, applyTheme, isDark } from './main.js';
import { Api } from './api.js';
import { Source } from './source.js';
import { Comparison } from './compare.js';

/** How often a program that runs is looked at. */
const TICK_MILLIS = 1000;
/** Parts of the state that need an answer of the server. */
const ASKED = ['recording', 'against', 'before', 'after', 'below', 'thread', 'size'];
const PARTS = { below: 'only a part of the calls', thread: 'only thread', size: 'only sizes' };

class View {
  constructor(api, list) {
    Object.assign(this, { api, list, grown: new Set() });
    this.state = readState();
    this.source = new Source(api);
    this.host = {
      state: this.state,
      onSource: (place) => this.source.show(place),
      onPart: (part) => this.choose({ ...part, zoom: part.zoom ?? this.state.zoom }),
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

  /** What of the recording is asked for. */
  get words() {
    const { below, thread, size } = this.state;
    return { below, thread, size };
  }

  // --- what is chosen

  write(changes, isStep) {
    Object.assign(this.state, changes);
    writeState(this.state, isStep);
  }

  choose(changes) {
    this.write(changes, true);
    this.load();
  }

  /** The address changed: by going back, or by hand. */
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

  /** Brings what the state says, and shows it. */
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
    byId('parts').replaceChildren(...Object.entries(PARTS).filter(([key]) => this.state[key]).map(([key, name]) =>
      element('button', { type: 'button', title: 'Show everything again', on: { click: () => this.choose({ [key]: '', zoom: '' }) } },
        `${name}${key === 'below' ? '' : ` ${this.state[key]}`} ✕`)));
    byId('parts').title = content.recording.filters.join(', ');
  }

  /** The content, with its slices where a range is shown at once. */
  async prepared(id, words, { version, bytes }) {
    const content = parse(bytes, async (of) => {
      try {
        of.addColumns(await this.api.slices(id, { ...words, version }));
      } catch (error) {
        // It has grown meanwhile: what is newer comes with its own.
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
    byId('parts').replaceChildren();
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
      // Refused by the network: the server has ended. Words: it goes on.
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
    // Others may have begun.
    if (this.reads % 5 === 0) await this.relist();
    const { id } = this;
    // Of one that has ended the last part comes when the command has packed it.
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
    // Not under the hand that brushes, and not what is not wanted any more.
    if (this.asked !== asked || id !== this.id || this.page?.timeline.pressed) return;
    this.version = answer.version;
    this.showBehind(content);
    const began = performance.now();
    this.page.replace(content);
    document.documentElement.dataset.updates = String(Number(document.documentElement.dataset.updates || 0) + 1);
    document.documentElement.dataset.updateMillis = (performance.now() - began).toFixed(1);
  }

  /** What is shown is older than now by so much, while the rest is read. */
  showBehind(content) {
    this.behind = content.recording.behind_nanos;
    this.showLive();
  }

  async relist() {
    this.list = await this.api.recordings();
    this.fillChoices();
    this.showChoices();
  }

  async tell(wish, text) {
    try {
      Object.assign(this.shown, await this.api.tell(this.id, wish, text));
      this.showLive();
      this.say(wish === 'mark' ? 'The mark is set.' : '');
    } catch (error) {
      this.say(error.message, true);
    }
  }

  // --- what is shown

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

  // --- once

  listen() {
    const none = { zoom: '', below: '', thread: '', size: '', range: '', before: '', after: '' };
    byId('recording').addEventListener('change', (event) => this.choose({ ...none, recording: event.target.value }));
    byId('against').addEventListener('change', (event) => this.choose({ ...none, recording: this.id, against: event.target.value }));
    byId('live').addEventListener('click', () => {
      this.write({ live: this.state.live === 'paused' ? '' : 'paused' });
      this.showLive();
    });
    byId('record-start').addEventListener('click', () => this.tell('start'));
    byId('record-stop').addEventListener('click', () => this.tell('stop'));
    byId('mark-form').addEventListener('submit', (event) => {
      event.preventDefault();
      const text = byId('mark-text').value.trim();
      if (text) this.tell('mark', text).then(() => (byId('mark-text').value = ''));
    });
    byId('copy-link').addEventListener('click', () => {
      copyText(`${location.origin}/${location.hash}`).then(() => this.say('The link is copied: it opens in this browser, as long as cairn view runs.'));
    });
    byId('theme').addEventListener('click', () => {
      // The page has its own ear for that, once it is there.
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
    // Two recordings were named: they are compared, unless the address says something else.
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

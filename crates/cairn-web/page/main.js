// Connects the views: each change of the state goes through `set` and `restore`, and every view follows.

import { bytesText, countText, timeText, shareText, element, nameElement } from './text.js';
import { METRICS, metricOf, Model, nameUnfreed } from './model.js';
import { ownerKeys } from './owners.js';
import { Flame } from './flame.js';
import { ABSENT, Timeline } from './timeline.js';
import { FunctionTable, ROWS, copyButton, sourceElement } from './tables.js';
import { THREADS, showSizes, showLifetimes, showThreads, showModules } from './charts.js';
import { limitOf, readState, writeState } from './state.js';
import { transformsOf } from './shape.js';
import { Transforms, openedOf } from './transforms.js';

/** The same words as in docs/book/reference/report.md, which has both definitions in full. */
const TEMPORARY_NOTE = 'Frees in between, allocations of other threads and the thread that frees do not matter. heaptrack counts otherwise: '
  + 'a free right behind an allocation of the same stack and size, in the order of the events of all threads.';

const TABS = ['functions', 'modules', 'sizes', 'lifetimes', 'threads', 'about'];

export const byId = (id) => document.getElementById(id);

export function isDark() {
  return getComputedStyle(document.body).getPropertyValue('--is-dark').trim() === '1';
}

export function applyTheme({ theme }) {
  if (theme === 'dark' || theme === 'light') document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

/**
 * Resident memory: the kernel's count where it is known, and the samples, between which a program may have more. They are cairn's too, as
 * far as its part is not known.
 */
function residentCard(recording, samples, card) {
  const { peak_resident_bytes: peak, most_resident_bytes: most, cairn_resident_bytes: own } = recording;
  if (most === null && peak === null) return [];
  const whole = 'of the whole process, cairn included';
  const isMissed = peak !== null && (most + (own || 0)) < peak * 0.95;
  if (isMissed) return [card('Most resident', bytesText(peak), most === null ? whole : `${whole}; ${bytesText(most)} in ${samples === 1 ? 'the one sample' : `${countText(samples)} samples`}`)];
  const sampled = peak === null ? `, in ${samples === 1 ? 'one sample' : `${countText(samples)} samples`}` : '';
  return [card('Most resident', bytesText(most), own === null ? `${whole}${sampled}` : `of the process${sampled}; ${bytesText(own)} more are cairn's`)];
}

export class Page {
  /** `host` is the served page: it shows sources (`onSource`) and parts of the recording (`onPart`), and has the `state`. */
  constructor(content, host = {}) {
    this.content = content;
    this.host = host;
    this.model = new Model(content);
    this.state = host.state || readState();
    this.range = this.rangeOf(this.state.range);
    applyTheme(this.state);
    this.flame = new Flame({
      scroller: byId('scroller'), spacer: byId('spacer'), canvas: byId('flame'),
      onSelect: (branch) => this.showDetails(branch),
      onZoom: (branch) => this.set({ zoom: this.flame.path(branch).join('.') }, true),
      onMenu: (branch, x, y) => this.transforms.open(branch, x, y),
      onRow: (branch) => this.transforms.turnRow(branch),
    });
    this.transforms = new Transforms({ page: this, box: byId('transforms'), menu: byId('menu') });
    this.timeline = new Timeline({ canvas: byId('timeline'), content, onBrush: (range) => this.brushed(range) });
    this.table = new FunctionTable({
      table: byId('functions'), more: byId('more-functions'), model: this.model,
      onSort: (sort) => this.set({ sort: `${sort.by}${sort.isUp ? '+' : '-'}` }),
      onPick: (f) => this.searchFor(this.model.names[f]),
      onSource: host.onSource,
    });
    this.summarise();
    this.sizeViews();
    this.restore();
    this.listen();
  }

  /** Shows the same recording later, or another one. The chosen state stays, as far as the new content has it. */
  replace(content) {
    this.content = content;
    this.model = new Model(content);
    this.timeline.load(content);
    Object.assign(this.table, { model: this.model, order: null, sums: null });
    this.summarise();
    this.restore(true);
  }

  // --- state

  set(changes, isStep = false) {
    Object.assign(this.state, changes);
    writeState(this.state, isStep);
  }

  /** The slices of a range. The address has it in nanoseconds, because slices of a recording that grows become wider. */
  rangeOf(text) {
    if (!/^\d+-\d+$/.test(text)) return null;
    const { count, nanos } = this.content.slices;
    const [from, to] = text.split('-').map((time) => Math.round(Number(time) / nanos));
    const last = Math.min(Math.max(to, from + 1), count);
    const isRange = Number(text.split('-')[0]) < Number(text.split('-')[1]) && from < last;
    return isRange ? [from, last] : null;
  }

  rangeText(range) {
    return range ? range.map((slice) => slice * this.content.slices.nanos).join('-') : '';
  }

  /** Shows everything as the state says. The selection and the scroll position are no part of it, and stay with `isSame`. */
  restore(isSame = false) {
    const { state } = this;
    const isKnown = [...byId('metric').options].some((option) => option.value === state.metric && !option.disabled);
    this.metric = metricOf(isKnown ? state.metric : this.usualMetric());
    byId('metric').value = this.metric.id;
    byId('search').value = state.search;
    this.range = this.rangeOf(state.range);
    this.timeline.range = this.range;
    const sort = /^(self|total|name|source|module)([+-])$/.exec(state.sort);
    if (sort) Object.assign(this.table, { sort: { by: sort[1], isUp: sort[2] === '+' }, order: null });
    if (state.limit !== this.limit) {
      this.limit = state.limit;
      this.flame.leastShare = limitOf(state.limit, 0).share;
      this.table.limitTo(limitOf(state.limit, ROWS));
    }
    this.flame.isFlame = state.view === 'flame';
    this.shapeCalls();
    this.found = this.model.search(state.search);
    this.flame.found = this.found;
    this.showTab(TABS.includes(state.tab) ? state.tab : 'functions');
    this.showButtons();
    this.timeline.draw();
    this.showTree(() => {
      const path = state.zoom ? state.zoom.split('.') : [];
      this.flame.zoomed = this.flame.find(path, true);
    }, isSame);
    this.restSoon();
  }

  /** Makes the tree of calls as the state says, where that is another one. */
  shapeCalls() {
    const { model, state } = this;
    const wanted = [state.transforms, state.opened, state.unfolded].join(' ');
    if (model.wanted !== wanted) {
      model.wanted = wanted;
      if (wanted.trim() || model.isShaped) model.setShape(transformsOf(state.transforms), openedOf(state.opened), state.unfolded !== '1');
      model.isShaped = wanted.trim() !== '';
      this.table.order = null;
    }
    this.transforms.show();
    byId('unfold').hidden = !model.hasFolded;
    const folded = model.foldedCalls;
    byId('folded').textContent = folded ? `${countText(folded)} frame${folded === 1 ? ' is' : 's are'} folded: Unfold shows them.` : '';
    this.showOwners();
  }

  /** The colours of owners, in words. */
  showOwners() {
    byId('owners').replaceChildren(...ownerKeys(this.model.owners));
  }

  /** The first metric: the most wanted one of those that the file has. */
  usualMetric() {
    const { totals } = this.content;
    if (totals.peak_bytes || !totals.allocations) return 'peak';
    return totals.allocated_bytes ? 'allocated' : 'count';
  }

  showTree(beforeLayout, isSame = false) {
    const { model, metric, range, flame } = this;
    const height = flame.scrollerHeight;
    const own = model.listedOwn(metric, range);
    const totals = model.totals(metric, range);
    const layout = flame.layout;
    // One layout, after the zoom is known.
    if (beforeLayout) flame.layout = () => {};
    flame.show(model, own, totals, metric, this.state.inverted === '1');
    if (beforeLayout) {
      flame.layout = layout;
      beforeLayout();
      // A call that comes or goes moves nothing below.
      if (isSame) flame.scrollerHeight = height;
      flame.layout();
    }
    this.showDetails(flame.selected || flame.zoomed);
  }

  /** Fills everything but the canvases, after they are painted. */
  showRest() {
    const { model, metric, range } = this;
    this.showSearch();
    const sums = model.byFunction(metric, range);
    const whole = model.totals(metric, range)[0];
    byId('unfold').setAttribute('aria-pressed', String(!model.hasFolds));
    const { tab } = this.state;
    if (tab === 'functions') this.table.show(sums, metric, whole, this.found, this.state.search);
    else if (tab === 'modules') showModules(byId('modules'), model, metric, range, sums, limitOf(this.state.limit, Infinity));
    else if (tab === 'sizes') showSizes(byId('sizes'), model, metric, range, this.host.onPart);
    else if (tab === 'lifetimes') showLifetimes(byId('lifetimes'), model, range);
    else if (tab === 'threads') showThreads(byId('threads'), model, metric, range, byId('more-threads'), this.host.onPart, limitOf(this.state.limit, THREADS));
    this.showRange();
  }

  restSoon() {
    if (this.isRestDue) return;
    this.isRestDue = true;
    requestAnimationFrame(() => setTimeout(() => {
      this.isRestDue = false;
      this.showRest();
    }));
  }

  brushed(range) {
    this.range = range;
    this.state.range = this.rangeText(range);
    // Many moves of the mouse come between two frames.
    if (this.isBrushDue) return;
    this.isBrushDue = true;
    requestAnimationFrame(async () => {
      try {
        if (this.state.range) await this.content.needSlices();
      } finally {
        this.isBrushDue = false;
      }
      this.range = this.rangeOf(this.state.range);
      this.set({});
      this.showTree();
      this.restSoon();
    });
  }

  searchFor(text) {
    byId('search').value = text;
    this.searched();
  }

  searched() {
    const text = byId('search').value;
    this.found = this.model.search(text);
    this.flame.mark(this.found);
    this.set({ search: text });
    this.restSoon();
  }

  choose(changes) {
    this.set(changes, true);
    this.restore();
  }

  // --- views

  showSearch() {
    const { found, model, metric, range } = this;
    const reported = byId('found');
    if (!found) {
      reported.textContent = '';
      return;
    }
    let functions = 0;
    for (const is of found) functions += is;
    const sum = model.matchedTotal(found, metric, range);
    const text = metric.isBytes ? bytesText : countText;
    const share = shareText(sum, model.totals(metric, range)[0]);
    reported.textContent = `${countText(functions)} function${functions === 1 ? '' : 's'}: ${text(sum)}${share ? `, ${share}` : ''}`;
  }

  showRange() {
    const { range, content, metric } = this;
    const width = content.slices.nanos;
    const end = content.recording.duration_nanos;
    byId('whole').hidden = !range;
    const fields = [byId('from'), byId('to')];
    const times = range ? [range[0] * width, Math.min(end, range[1] * width)] : [0, end];
    this.shownTimes = times.map(timeText);
    fields.forEach((field, i) => {
      if (document.activeElement !== field) field.value = this.shownTimes[i];
    });
    byId('meaning').textContent = this.meaning(metric.id, range, end);
  }

  meaning(id, range, end) {
    const { model } = this;
    const { unfreed, unfreed_note: note } = this.content.recording;
    const isLeaked = unfreed !== 'alive';
    const never = isLeaked ? 'never freed' : 'not freed';
    const unfreedMeans = isLeaked ? '' : ` ${note}.`;
    const [from, to] = range ? range.map((slice) => timeText(Math.min(end, slice * this.content.slices.nanos))) : ['0', timeText(end)];
    const between = range ? `between ${from} and ${to}` : 'in all';
    const peak = model.peakOf(range);
    if (this.content.recording.times === 'none') {
      return {
        peak: 'Held at the peak.', held: 'Held at the end.', leaked: `Blocks that were ${never}.${unfreedMeans}`,
        allocated: 'Allocated, freed or not.', count: 'Number of blocks that were allocated.',
        temporary: `Number of blocks that were freed before their thread allocated again. ${TEMPORARY_NOTE}`,
      }[id];
    }
    return {
      peak: peak.isExact
        ? `Held at the peak, after ${timeText(peak.nanos)}.`
        : `Held after ${timeText(peak.nanos)}: most among the ends of the slices in the range.`,
      held: `Held after ${to}.`,
      leaked: `Blocks that were ${range ? `allocated ${between} and ` : ''}${never}.${unfreedMeans}`,
      allocated: `Allocated ${between}, freed or not.`,
      count: `Number of blocks that were allocated ${between}.`,
      temporary: `Number of blocks that were freed ${between} before their thread allocated again. ${TEMPORARY_NOTE}`,
    }[id];
  }

  showButtons() {
    const { state } = this;
    byId('icicle').setAttribute('aria-pressed', String(state.view !== 'flame'));
    byId('flame-up').setAttribute('aria-pressed', String(state.view === 'flame'));
    byId('invert').setAttribute('aria-pressed', String(state.inverted === '1'));
    byId('unfold').setAttribute('aria-pressed', String(state.unfolded === '1'));
  }

  showTab(tab) {
    this.state.tab = tab;
    for (const name of TABS) {
      const isShown = name === tab;
      byId(`tab-${name}`).setAttribute('aria-selected', String(isShown));
      byId(`tab-${name}`).tabIndex = isShown ? 0 : -1;
      byId(`panel-${name}`).hidden = !isShown;
    }
  }

  /** The chosen call in words: everything that the canvas shows, for screen readers. */
  showDetails(branch) {
    const { flame, model } = this;
    const box = byId('details');
    const recorded = branch.parent ? model.recordedCall(branch.call) : -1;
    const source = recorded > 0 ? model.sourceOf(recorded) : '';
    const nameOf = (at) => (at.parent && !model.isRow(at.call) ? model.names[at.functionNumber] : flame.label(at));
    const title = element('p', { class: 'chosen' }, nameElement(nameOf(branch)));
    const facts = element('p', {}, flame.describe(branch));
    const owner = branch.parent ? model.owner(branch.call) : 0;
    if (model.owners.classOf(owner)) facts.append(' · ', nameElement(model.owners.text(owner)), model.shape.isFolded[branch.call] ? ', folded' : '');
    if (branch.parent && model.modulePaths[branch.functionNumber]) {
      facts.append(' · ', nameElement(model.modulePaths[branch.functionNumber]));
    }
    if (source) facts.append(' · ', sourceElement(source, model.placeOf(recorded), this.host.onSource), ' ', copyButton(source, 'file and line'));
    const stack = [];
    for (let at = branch; at.parent && stack.length < 200; at = at.parent) stack.push(at);
    const names = stack.map(nameOf);
    const places = stack.map((at) => model.recordedCall(at.call)).map((call) => (call > 0 && model.sourceOf(call) ? ` ${model.sourceOf(call)}` : ''));
    const list = element('ol', {}, ...stack.map((at, i) => element('li', {}, nameElement(names[i]), element('small', {}, places[i]))));
    const way = element('details', {}, element('summary', {}, `The way here: ${countText(branch.level)} call${branch.level === 1 ? '' : 's'}`), list);
    way.open = this.isWayOpen || false;
    way.addEventListener('toggle', () => (this.isWayOpen = way.open));
    if (branch.parent) {
      const actions = element('button', { type: 'button', class: 'copy', id: 'actions', 'aria-haspopup': 'menu', title: 'Focus, merge, collapse, drop (a right click in the graph)' }, 'actions ▾');
      actions.addEventListener('click', () => {
        const place = actions.getBoundingClientRect();
        this.transforms.open(branch, place.left, place.bottom);
      });
      if (this.transforms.actionsOf(branch).length) facts.append(' · ', actions);
      facts.append(' · ', copyButton(names.map((name, i) => name + places[i]).join('\n'), 'the stack'));
      const part = this.host.onPart && !this.state.inverted && this.partOf(branch);
      if (part) facts.append(' · ', element('button', { type: 'button', class: 'copy', id: 'only-below', title: 'Ask for this part of the recording alone, with all that is in it', on: { click: () => this.host.onPart({ below: part, zoom: flame.path(branch).join('.') }) } }, 'only this part'));
    }
    box.replaceChildren(title, facts, ...(stack.length ? [way] : []));
  }

  /** The path of a branch, to request that part alone; for merged calls, the path of their caller. */
  partOf(branch) {
    const { kinds } = this.model;
    const inner = kinds[branch.functionNumber] < 2 ? branch : branch.parent;
    for (let at = inner; at.parent; at = at.parent) if (kinds[at.functionNumber] === 2) return '';
    return inner.parent ? this.model.recordedPath(inner.call) : '';
  }

  // --- parts that do not depend on the state

  summarise() {
    const { content } = this;
    const { recording, totals, left_out: leftOut, slices } = content;
    const command = recording.command.join(' ') || `process ${recording.process}`;
    byId('command').replaceChildren(nameElement(command));
    document.title = `${command.slice(0, 80)} · cairn`;
    const started = new Date(Number(BigInt(recording.started_wall_nanos) / 1000000n));
    const when = Number.isNaN(started.getTime()) || recording.started_wall_nanos === '0' ? '' : ` · ${started.toISOString().replace('T', ' ').slice(0, 19)} UTC`;
    const process = recording.process ? `process ${recording.process}` : 'process not known';
    const lasted = recording.times === 'none' ? '' : ` · ${timeText(recording.duration_nanos)}`;
    // The sums are of a part of the run: the reader has to know.
    const early = content.findings.find((finding) => finding.startsWith('recording ended early:'));
    byId('process').textContent = process + when + lasted + (early ? ` · ${early}` : '');
    const hasTimes = recording.times !== 'none';
    const hasFrees = recording.times !== 'allocations';
    const isLeaked = recording.unfreed !== 'alive';
    nameUnfreed(isLeaked);
    const unfreedOption = [...byId('metric').options].find((option) => option.value === 'leaked');
    unfreedOption.textContent = metricOf('leaked').name.toLowerCase();
    const after = hasTimes ? `, after ${timeText(totals.peak_nanos)}` : '';
    const rate = hasTimes && recording.duration_nanos > 0 ? totals.allocations / (recording.duration_nanos / 1e9) : 0;
    const card = (name, value, note) => element('div', { class: 'card' }, element('dt', {}, name), element('dd', {}, value), element('dd', { class: 'note' }, note));
    byId('summary').replaceChildren(
      ...(hasFrees ? [
        card('Peak', bytesText(totals.peak_bytes), `${countText(totals.peak_blocks)} blocks${after}`),
        card(isLeaked ? 'Leaked' : 'Alive', bytesText(totals.leaked_bytes), `${countText(totals.leaked_blocks)} blocks${isLeaked ? ' were not freed' : `. ${recording.unfreed_note}`}`),
      ] : [card('Held', 'not known', 'this file does not say what was freed')]),
      card('Allocations', countText(totals.allocations), `${bytesText(totals.allocated_bytes)} in all${hasTimes ? `, ${countText(Math.round(rate))} a second` : ''}`),
      ...(hasFrees ? [card('Temporary', countText(totals.temporary), recording.sample_bytes ? 'not known of a sampled recording' : `${shareText(totals.temporary, totals.allocations) || '0 %'} of all allocations`)] : []),
      ...residentCard(recording, this.timeline.resident.length, card),
    );
    const about = byId('about');
    about.replaceChildren();
    const say = (text) => about.append(element('li', {}, text));
    if (hasFrees && !recording.sample_bytes) say(`Temporary: freed before the thread that allocated it allocated another block. ${TEMPORARY_NOTE}`);
    if (!hasTimes) say('This file has sums and no times.');
    else say(`Time is cut into ${countText(slices.count)} slices of ${timeText(slices.nanos)}: a range of time begins and ends with one, and its sums are as exact as the times of the recording.`);
    if (leftOut.stacks_put_together) {
      say(`${countText(leftOut.stacks_put_together)} of ${countText(leftOut.stacks)} stacks end in branches that are less than ${shareOf(leftOut.least_share)} of every cost. They are put together as “smaller calls”, where they leave the larger ones; nothing of them is missing in the sums.`);
    } else say(`All ${countText(leftOut.stacks)} stacks are here.`);
    if (leftOut.stacks_too_deep) say(`${countText(leftOut.stacks_too_deep)} stacks are too deep; calls in their middle are left out.`);
    for (const [what, count] of [['marks', leftOut.marks], ['modules', leftOut.modules], ['threads', leftOut.threads], ['findings', leftOut.findings]]) {
      if (count) say(`${countText(count)} more ${what} are not on this page.`);
    }
    if (recording.sample_bytes) say(`Sampled: on average one byte of ${bytesText(recording.sample_bytes)} was picked; all sums are estimates.`);
    if (recording.filters.length) say(`Only what matches: ${recording.filters.join(', ')}.`);
    if (recording.from_nanos || recording.to_nanos !== null) {
      say(`Only what was allocated from ${timeText(recording.from_nanos)} to ${recording.to_nanos === null ? 'the end' : timeText(recording.to_nanos)}.`);
    }
    if (recording.unmatched_frees) say(`${countText(recording.unmatched_frees)} frees were of blocks that are older than the recording.`);
    if (recording.page_faults !== null) say(`${countText(recording.page_faults)} page faults.`);
    if (recording.end) say(`It ended because ${recording.end}.`);
    for (const finding of content.findings) say(finding);
    say(`Made by cairn ${recording.cairn}.`);
    const marks = byId('marks');
    marks.replaceChildren(...content.marks.slice(0, 500).map((mark) => element('li', {}, `${timeText(mark.nanos)} `, nameElement(mark.text))));
    for (const option of byId('metric').options) option.disabled = !hasFrees && !['allocated', 'count'].includes(option.value);
    if (!hasTimes) for (const id of ['from', 'to']) byId(id).parentElement.hidden = true;
    if (ABSENT[recording.times]) byId('timeline').setAttribute('aria-label', `${ABSENT[recording.times]}.`);
    byId('legend-held').hidden = recording.times !== 'all';
    byId('legend-resident').hidden = this.timeline.resident.length === 0;
    byId('legend-marks').hidden = content.marks.length === 0;
    byId('marks-box').hidden = content.marks.length === 0;
    byId('marks-title').textContent = `${countText(content.marks.length)} mark${content.marks.length === 1 ? '' : 's'}${content.marks.length > 500 ? ', the first 500' : ''}`;
    byId('left-out').textContent = leftOut.stacks_put_together ? `Branches below ${shareOf(leftOut.least_share)} are put together.` : '';
  }

  listen() {
    byId('metric').addEventListener('change', (event) => this.choose({ metric: event.target.value }));
    byId('icicle').addEventListener('click', () => this.choose({ view: 'icicle' }));
    byId('flame-up').addEventListener('click', () => this.choose({ view: 'flame' }));
    byId('invert').addEventListener('click', () => this.choose({ inverted: this.state.inverted ? '' : '1', zoom: '' }));
    byId('unfold').addEventListener('click', () => this.choose({ unfolded: this.state.unfolded ? '' : '1', zoom: '' }));
    byId('reset').addEventListener('click', () => this.flame.zoom(this.flame.tree.root));
    byId('whole').addEventListener('click', () => this.timeline.brush(null));
    byId('search').addEventListener('input', () => this.searched());
    byId('theme').addEventListener('click', () => {
      this.set({ theme: isDark() ? 'light' : 'dark' });
      applyTheme(this.state);
      this.repaint();
    });
    for (const field of [byId('from'), byId('to')]) field.addEventListener('change', () => this.typedRange());
    for (const name of TABS) {
      byId(`tab-${name}`).addEventListener('click', () => this.openTab(name));
      byId(`tab-${name}`).addEventListener('keydown', (event) => {
        const step = { ArrowLeft: TABS.length - 1, ArrowRight: 1 }[event.key];
        if (!step) return;
        const next = TABS[(TABS.indexOf(name) + step) % TABS.length];
        this.openTab(next);
        byId(`tab-${next}`).focus();
      });
    }
    if (!this.host.state) {
      window.addEventListener('popstate', () => this.goTo());
      window.addEventListener('hashchange', () => this.goTo());
    }
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.repaint());
    window.addEventListener('resize', () => this.sizeViews(true));
    // The page's own scroll bar comes and goes without a change of the window.
    new ResizeObserver(() => {
      if (byId('scroller').clientWidth !== this.flame.width) this.sizeViews(true);
    }).observe(byId('scroller'));
    document.addEventListener('keydown', (event) => this.key(event));
  }

  async goTo() {
    const state = readState();
    if (state.range) await this.content.needSlices();
    Object.assign(this.state, state);
    applyTheme(this.state);
    this.restore();
  }

  openTab(name) {
    this.showTab(name);
    this.set({ tab: name });
    this.showRest();
  }

  /** Times that were typed: from and to, as 1.5 s or 200 ms. */
  typedRange() {
    const { count, nanos } = this.content.slices;
    const [from, to] = [nanosOf(byId('from').value), nanosOf(byId('to').value)];
    const isBad = [from, to].map((time) => Number.isNaN(time));
    ['from', 'to'].forEach((id, i) => byId(id).setAttribute('aria-invalid', String(isBad[i])));
    if (isBad[0] || isBad[1]) return;
    // A time that was not typed stays the slice that it is of: its text is rounded.
    const [shownFirst, shownLast] = this.range || [0, count];
    const isTyped = ['from', 'to'].map((id, i) => byId(id).value !== this.shownTimes[i]);
    const first = isTyped[0] ? Math.max(0, Math.min(count - 1, Math.floor(from / nanos))) : shownFirst;
    const last = isTyped[1] ? Math.max(first + 1, Math.min(count, Math.ceil(to / nanos))) : Math.max(first + 1, shownLast);
    this.timeline.brush(first === 0 && last >= count ? null : [first, last]);
  }

  key(event) {
    const isTyping = event.target instanceof HTMLInputElement;
    // A dialog or the comparison, which cover the page, get the keys.
    if (this.host.isCovered?.()) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === 'Escape' && event.target.id === 'search') {
      this.searchFor('');
      return;
    }
    if (isTyping) return;
    const number = Number(event.key);
    if (event.key === '/') byId('search').focus();
    else if (event.key === 'i') byId('invert').click();
    else if (event.key === 'f') byId(this.state.view === 'flame' ? 'icicle' : 'flame-up').click();
    else if (event.key === 'u' && this.model.hasFolded) byId('unfold').click();
    else if (event.key === 't') byId('theme').click();
    else if (event.key === 'g') this.flame.canvas.focus();
    else if (event.key === '?') this.openTab('about');
    else if (event.key === 'Escape') this.flame.zoom(this.flame.tree.root);
    else if (number >= 1 && number <= METRICS.length) this.choose({ metric: METRICS[number - 1].id });
    else if (this.transforms.press(event.key)) event.stopPropagation();
    else return;
    event.preventDefault();
  }

  repaint() {
    this.flame.paint = null;
    this.timeline.paint = null;
    this.flame.draw();
    this.timeline.draw();
  }

  sizeViews(isAgain = false) {
    this.timeline.resize();
    this.flame.measure();
    if (isAgain) this.flame.layout();
  }
}

function shareOf(share) {
  return `${(share * 100).toPrecision(1).replace(/^(\d)e([+-]\d+)$/, '$1·10^$2')} %`;
}

/** A time that was typed, in nanoseconds; a number alone is seconds. */
function nanosOf(text) {
  const found = /^\s*([\d.]+)\s*(ns|us|µs|ms|s|min|h)?\s*$/.exec(text);
  if (!found) return /^\s*(\d+) min (\d+) s\s*$/.test(text) ? minutesOf(text) : NaN;
  const unit = { ns: 1, us: 1e3, 'µs': 1e3, ms: 1e6, s: 1e9, min: 60e9, h: 3600e9 }[found[2] || 's'];
  return Number(found[1]) * unit;
}

function minutesOf(text) {
  const [minutes, seconds] = text.match(/\d+/g).map(Number);
  return (minutes * 60 + seconds) * 1e9;
}

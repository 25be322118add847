// Two recordings side by side: both curves over time, a tree with the growth of each call, and a table of functions.

import { parse } from './content.js';
import { bytesText, countText, element, nameElement } from './text.js';
import { METRICS, metricOf, nameUnfreed } from './model.js';
import { Timeline } from './timeline.js';
import { DiffModel, DiffFlame, growthText } from './diff.js';
import { ownerKey, ownerKeys } from './owners.js';
import { byId } from './main.js';
import { limitOf } from './state.js';

const GROWTH_ROWS = 100;
const SIDES = ['before', 'after'];
/** The parts of the state that hold for both recordings. */
export const COMPARED_PARTS = ['thread', 'size', 'function', 'module'];
/** Metrics without `held`: for whole recordings it equals `leaked`. */
const COMPARED = METRICS.filter((metric) => metric.id !== 'held');

export class Comparison {
  /** `onChoose` takes changes of the state; the state is the page's. */
  constructor({ api, state, onChoose, onFail }) {
    Object.assign(this, { api, state, onChoose, onFail });
    this.sort = { by: 'growth', isUp: false };
    this.shownRows = limitOf(state.limit, GROWTH_ROWS).rows;
    byId('compare-metric').replaceChildren(...COMPARED.map((metric) => element('option', { value: metric.id }, metric.name.toLowerCase())));
    this.flame = new DiffFlame({
      scroller: byId('compare-scroller'), spacer: byId('compare-spacer'), canvas: byId('compare-flame'),
      onSelect: (branch) => this.showDetails(branch),
      onZoom: (branch) => this.onChoose({ zoom: this.flame.path(branch).join('.') }, true),
    });
    this.listen();
  }

  listen() {
    const again = (changes) => {
      this.onChoose(changes, true);
      this.show();
    };
    byId('compare-metric').addEventListener('change', (event) => again({ metric: event.target.value }));
    byId('compare-width').addEventListener('change', (event) => again({ width: event.target.value }));
    byId('compare-invert').addEventListener('click', () => again({ inverted: this.state.inverted ? '' : '1', zoom: '' }));
    byId('compare-turn').addEventListener('click', () => again({ view: this.state.view === 'flame' ? 'icicle' : 'flame' }));
    byId('compare-reset').addEventListener('click', () => this.flame.zoom(this.flame.tree.root));
    byId('compare-search').addEventListener('input', (event) => {
      this.onChoose({ search: event.target.value });
      this.found = this.model.search(event.target.value);
      this.flame.mark(this.found);
      this.fillTable();
    });
    byId('more-growth').addEventListener('click', () => {
      this.shownRows += 5 * GROWTH_ROWS;
      this.fillTable();
    });
    for (const cell of byId('growth-table').tHead.rows[0].cells) {
      const { by } = cell.dataset;
      cell.replaceChildren(element('button', { type: 'button', on: { click: () => this.sortBy(by) } }, cell.textContent));
    }
    for (const side of SIDES) {
      byId(`${side}-whole`).addEventListener('click', () => this.timelines?.[side].brush(null));
    }
    new ResizeObserver(() => this.resize()).observe(byId('compare-scroller'));
  }

  /** Requests both recordings and their comparison. */
  async load(before, after) {
    const started = (this.loading = {});
    byId('comparison-note').textContent = 'Comparing …';
    const words = { before, after };
    for (const side of SIDES) {
      for (const part of COMPARED_PARTS) words[`${side}_${part}`] = this.state[part];
      const times = /^(\d+)-(\d+)$/.exec(this.state[side]);
      // An event at the end of a stretch belongs to the next one.
      if (times) Object.assign(words, { [`${side}_from`]: times[1], [`${side}_to`]: String(Math.max(Number(times[1]), Number(times[2]) - 1)) });
    }
    const contentOf = async (id) => {
      const { bytes } = await this.api.content(id, {});
      return parse(bytes, () => Promise.resolve());
    };
    const isOther = this.ids !== `${before}\n${after}`;
    const [compared, ...contents] = await Promise.all([this.api.comparison(words), ...(isOther ? [contentOf(before), contentOf(after)] : [])]);
    // The user has chosen something else meanwhile.
    if (this.loading !== started) return;
    this.ids = `${before}\n${after}`;
    const content = parse(compared, () => Promise.resolve(), 'cairn.comparison/1');
    this.content = content;
    nameUnfreed(SIDES.every((side) => content[side].unfreed === 'leaked'));
    for (const option of byId('compare-metric').options) option.textContent = metricOf(option.value).name.toLowerCase();
    this.model = new DiffModel(content);
    byId('comparison').hidden = false;
    if (isOther) this.makeTimelines({ before: contents[0], after: contents[1] });
    SIDES.forEach((side, i) => {
      const reported = content[side];
      const name = [before, after][i];
      byId(`${side}-name`).replaceChildren(element('b', {}, side === 'before' ? 'Before: ' : 'After: '), nameElement(name), ` · ${reported.command.join(' ').slice(0, 200)}`);
    });
    byId('comparison-note').textContent = [
      ...(content.put_together ? [`${countText(content.put_together)} smaller calls are put together.`] : []),
      ...(content.folded_frames ? [`${countText(content.folded_frames)} ${content.folded_frames === 1 ? 'frame is' : 'frames are'} folded: cairn view --internals shows them.`] : []),
      ...(content.before.is_estimate || content.after.is_estimate ? ['Sampled: the sums are estimates.'] : []),
    ].join(' ');
    byId('fold-key').hidden = !content.folded_frames;
    byId('compare-owners').replaceChildren(...ownerKeys(this.model.owners));
    this.resize();
    this.show();
  }

  makeTimelines(contents) {
    this.timelines = {};
    for (const side of SIDES) {
      // The old canvas has listeners of the old timeline.
      const old = byId(`timeline-${side}`);
      const canvas = old.cloneNode();
      old.replaceWith(canvas);
      this.timelines[side] = new Timeline({ canvas, content: contents[side], onBrush: (range) => this.brushed(side, range) });
      this.timelines[side].range = rangeIn(this.state[side], contents[side]);
    }
    // Both curves have the same scale.
    const top = Math.max(...SIDES.map((side) => this.timelines[side].top));
    for (const side of SIDES) this.timelines[side].top = top;
  }

  brushed(side, range) {
    const { nanos } = this.timelines[side].content.slices;
    this.onChoose({ [side]: range ? range.map((slice) => slice * nanos).join('-') : '' });
    byId(`${side}-whole`).hidden = !range;
    clearTimeout(this.brushing);
    this.brushing = setTimeout(() => this.load(...this.ids.split('\n')).catch((error) => this.onFail(error)), 200);
  }

  resize() {
    if (byId('comparison').hidden || !this.timelines) return;
    for (const side of SIDES) this.timelines[side].resize();
    this.flame.measure();
    if (this.flame.tree) this.flame.layout();
  }

  repaint() {
    for (const view of [this.flame, ...Object.values(this.timelines || {})]) {
      view.paint = null;
      view.draw();
    }
  }

  show() {
    const { state, model, flame } = this;
    this.metric = COMPARED.find((metric) => metric.id === metricOf(state.metric).id) || COMPARED[0];
    const width = ['both', ...SIDES].includes(state.width) ? state.width : 'both';
    byId('compare-metric').value = this.metric.id;
    byId('compare-width').value = width;
    byId('compare-invert').setAttribute('aria-pressed', String(state.inverted === '1'));
    byId('compare-turn').setAttribute('aria-pressed', String(state.view === 'flame'));
    if (byId('compare-search').value !== state.search) byId('compare-search').value = state.search;
    for (const side of SIDES) byId(`${side}-whole`).hidden = !state[side];
    this.found = model.search(state.search);
    flame.found = this.found;
    flame.isFlame = state.view === 'flame';
    flame.leastShare = limitOf(state.limit, 0).share;
    flame.zoomed = null;
    flame.show(model, model.own(width, this.metric), model.totals(width, this.metric), this.metric, state.inverted === '1');
    if (state.zoom) {
      flame.zoomed = flame.find(state.zoom.split('.'), true);
      flame.layout();
    }
    this.showDetails(flame.selected || flame.zoomed);
    this.showSums();
    this.order = null;
    this.fillTable();
  }

  showSums() {
    const { model } = this;
    byId('growth').replaceChildren(...COMPARED.map((metric) => {
      const text = metric.isBytes ? bytesText : countText;
      const [before, after] = SIDES.map((side) => model.totals(side, metric)[0]);
      const kind = after > before ? 'grown' : after < before ? 'shrunk' : '';
      return element('div', { class: 'card' }, element('dt', {}, metric.name), element('dd', {}, `${text(before)} → ${text(after)}`), element('dd', { class: `note ${kind}` }, ...growthText(before, after, metric).split(/ (?=\()/).flatMap((part) => [element('span', { class: 'nowrap' }, part), ' '])));
    }));
  }

  showDetails(branch) {
    const { flame, model } = this;
    const owner = branch.parent ? model.owner(branch.call) : 0;
    const owned = model.owners.classOf(owner) ? model.owners.text(owner) : '';
    const place = [owned, model.moduleNames[branch.functionNumber], model.files[branch.functionNumber]].filter(Boolean).join(' · ');
    const nameOf = (at) => (at.parent ? model.names[at.functionNumber] : flame.label(at));
    const stack = [];
    for (let at = branch; at.parent && stack.length < 200; at = at.parent) stack.push(at);
    const list = element('ol', {}, ...stack.map((at) => element('li', {}, nameElement(nameOf(at)), element('small', {}, ` ${flame.describe(at)}`))));
    const way = element('details', {}, element('summary', {}, `The way here: ${countText(branch.level)} call${branch.level === 1 ? '' : 's'}`), list);
    way.open = this.isWayOpen || false;
    way.addEventListener('toggle', () => (this.isWayOpen = way.open));
    byId('compare-details').replaceChildren(
      element('p', { class: 'chosen' }, nameElement(nameOf(branch))),
      element('p', {}, flame.describe(branch), place ? ' · ' : '', nameElement(place)),
      ...(stack.length ? [way] : []),
    );
  }

  sortBy(by) {
    this.sort = { by, isUp: this.sort.by === by ? !this.sort.isUp : by === 'name' || by === 'module' };
    this.order = null;
    this.fillTable();
  }

  sorted() {
    if (this.order) return this.order;
    const { before, after } = this.model.byFunction(this.metric);
    const order = [];
    for (let f = 1; f < before.total.length; f++) if (before.total[f] > 0 || after.total[f] > 0) order.push(f);
    const { by, isUp } = this.sort;
    const value = {
      before: (f) => before.self[f], after: (f) => after.self[f],
      growth: (f) => after.self[f] - before.self[f], total: (f) => after.total[f] - before.total[f],
    }[by];
    if (value) {
      // The largest change comes first, in either direction; with the button again, the largest shrinking.
      const size = by === 'before' || by === 'after' || isUp ? value : (f) => Math.abs(value(f));
      order.sort((a, b) => (isUp ? size(a) - size(b) : size(b) - size(a)) || a - b);
    } else {
      const text = by === 'name' ? this.model.names : this.model.moduleNames;
      order.sort((a, b) => (text[a] < text[b] ? -1 : text[a] > text[b] ? 1 : a - b) * (isUp ? 1 : -1));
    }
    this.order = order;
    return order;
  }

  fillTable() {
    const { model, metric, found } = this;
    const { before, after } = model.byFunction(metric);
    const text = metric.isBytes ? bytesText : countText;
    for (const cell of byId('growth-table').tHead.rows[0].cells) {
      cell.setAttribute('aria-sort', cell.dataset.by === this.sort.by ? (this.sort.isUp ? 'ascending' : 'descending') : 'none');
    }
    let most = 1;
    for (let f = 1; f < before.self.length; f++) most = Math.max(most, Math.abs(after.self[f] - before.self[f]));
    const growth = (was, is) => {
      const bar = element('span', { class: `bar ${is > was ? 'grown' : 'shrunk'}`, 'aria-hidden': 'true' });
      bar.style.width = `${Math.min(100, (100 * Math.abs(is - was)) / most)}%`;
      return element('td', { class: 'number barred' }, bar, element('span', {}, growthText(was, is, metric)));
    };
    const number = (value) => element('td', { class: 'number' }, text(value));
    const list = this.sorted().filter((f) => !found || found[f]);
    const rows = list.slice(0, this.shownRows).map((f) => element('tr', {}, element('td', { class: 'name', title: model.names[f] }, ownerKey(model.owners.classOf(model.functionOwners[f])), nameElement(model.shortNames[f])),
      number(before.self[f]), number(after.self[f]), growth(before.self[f], after.self[f]),
      element('td', { class: 'number' }, growthText(before.total[f], after.total[f], metric)), element('td', {}, nameElement(model.moduleNames[f]))));
    if (!rows.length) rows.push(element('tr', {}, element('td', { colspan: 6 }, 'Nothing of this here.')));
    byId('growth-table').tBodies[0].replaceChildren(...rows);
    const rest = list.length - this.shownRows;
    byId('more-growth').hidden = rest <= 0;
    byId('more-growth').textContent = `Show more (${countText(rest)} left)`;
  }
}

/** The slices of a stretch of the address. */
function rangeIn(text, content) {
  if (!/^\d+-\d+$/.test(text)) return null;
  const { count, nanos } = content.slices;
  const [from, to] = text.split('-').map((time) => Math.round(Number(time) / nanos));
  return from < to && to <= count ? [from, to] : null;
}

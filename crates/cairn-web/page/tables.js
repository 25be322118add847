// The table of functions: sorted by any column, filtered by the search, a hundred rows at first.

import { bytesText, countText, shareText, element, nameElement, copyText } from './text.js';

/** Rows that a table has at first, unless the state says more or fewer. */
export const ROWS = 100;

/** A button that copies a text. */
export function copyButton(text, what) {
  const button = element('button', { type: 'button', class: 'copy', 'aria-label': `Copy ${what}`, title: `Copy ${what}` }, 'copy');
  button.addEventListener('click', (event) => {
    event.stopPropagation();
    copyText(text).then(() => {
      button.textContent = 'copied';
      setTimeout(() => (button.textContent = 'copy'), 1200);
    });
  });
  return button;
}

/** A place in a source file; a button that shows it, if the page has a server. */
export function sourceElement(text, place, onSource) {
  if (!onSource) return nameElement(text);
  return element('button', { type: 'button', class: 'link', title: 'Show the source', on: { click: () => onSource(place) } }, nameElement(text));
}

/** A cell with a bar as long as its share. */
export function barCell(text, share) {
  const bar = element('span', { class: 'bar', 'aria-hidden': 'true' });
  bar.style.width = `${Math.min(100, Math.max(0, 100 * share))}%`;
  return element('td', { class: 'number barred' }, bar, element('span', {}, text));
}

export class FunctionTable {
  constructor({ table, more, model, onSort, onPick, onSource }) {
    Object.assign(this, { table, more, model, onSort, onPick, onSource });
    this.sort = { by: 'self', isUp: false };
    this.limitTo({ rows: ROWS, share: 0 });
    this.head = table.tHead.rows[0];
    for (const cell of this.head.cells) {
      const by = cell.dataset.by;
      const button = element('button', { type: 'button', on: { click: () => this.sortBy(by) } }, cell.textContent);
      cell.replaceChildren(button);
    }
    more.addEventListener('click', () => {
      this.least = 0;
      this.shown = this.table.tBodies[0].rows.length + 5 * ROWS;
      this.fill();
    });
  }

  /** Sets how much is shown before *Show more*. */
  limitTo(limit) {
    this.limit = limit;
    this.shown = limit.rows;
    this.least = limit.share;
  }

  sortBy(by) {
    const isText = by === 'name' || by === 'module' || by === 'source';
    this.sort = { by, isUp: this.sort.by === by ? !this.sort.isUp : isText };
    this.limitTo(this.limit);
    this.order = null;
    this.fill();
    this.onSort(this.sort);
  }

  show(sums, metric, whole, found, search) {
    if (sums !== this.sums) this.order = null;
    if (search !== this.search) this.limitTo(this.limit);
    Object.assign(this, { sums, metric, whole, found, search });
    this.fill();
  }

  /** All functions with a cost, sorted; searching does not sort again. */
  sorted() {
    if (this.order) return this.order;
    const { sums, model } = this;
    const order = [];
    for (let f = 0; f < sums.total.length; f++) if (sums.call[f] >= 0 && sums.total[f] > 0) order.push(f);
    const text = { name: (f) => model.names[f], module: (f) => model.moduleNames[f], source: (f) => model.source(sums.call[f]) };
    const { by, isUp } = this.sort;
    if (text[by]) {
      const key = new Map(order.map((f) => [f, text[by](f)]));
      order.sort((a, b) => (key.get(a) < key.get(b) ? -1 : key.get(a) > key.get(b) ? 1 : a - b));
    } else {
      const values = sums[by] || sums.self;
      order.sort((a, b) => values[a] - values[b] || sums.total[a] - sums.total[b] || b - a);
    }
    if (!isUp) order.reverse();
    this.order = order;
    return order;
  }

  fill() {
    for (const cell of this.head.cells) {
      const isBy = cell.dataset.by === this.sort.by;
      cell.setAttribute('aria-sort', isBy ? (this.sort.isUp ? 'ascending' : 'descending') : 'none');
    }
    const rows = [];
    let count = 0;
    const costs = this.sort.by === 'total' ? this.sums.total : this.sums.self;
    const least = this.least * this.whole;
    for (const f of this.sorted()) {
      if (this.found && !this.found[f]) continue;
      count += 1;
      if (rows.length < this.shown && costs[f] >= least) rows.push(this.row(f));
    }
    const isNone = count === 0;
    if (isNone) rows.push(element('tr', {}, element('td', { colspan: 5 }, 'Nothing of this here.')));
    const body = this.table.tBodies[0];
    // The focus survives an update of a recording that grows.
    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    const at = focused && { key: focused.closest('tr').dataset.key, name: focused.className };
    body.replaceChildren(...rows);
    if (at) rows.find((row) => row.dataset.key === at.key)?.getElementsByClassName(at.name)[0]?.focus({ preventScroll: true });
    const rest = count - rows.length;
    this.more.hidden = isNone || rest <= 0;
    this.more.textContent = `Show more (${countText(rest)} left)`;
  }

  row(f) {
    const { sums, model, metric, whole } = this;
    const text = metric.isBytes ? bytesText : countText;
    const name = element('button', { type: 'button', class: 'link', on: { click: () => this.onPick(f) } });
    name.append(nameElement(model.names[f]));
    const source = model.source(sums.call[f]);
    const place = element('td', { class: 'source' });
    if (source) place.append(sourceElement(source, model.place(sums.call[f]), this.onSource), ' ', copyButton(source, 'file and line'));
    const module = element('td', { title: model.modulePaths[f] }, nameElement(model.moduleNames[f]));
    const cell = (value) => {
      const made = barCell(text(value), whole ? value / whole : 0);
      made.title = shareText(value, whole);
      return made;
    };
    return element('tr', { 'data-key': model.key(f) }, cell(sums.self[f]), cell(sums.total[f]), element('td', { class: 'name' }, name), place, module);
  }
}

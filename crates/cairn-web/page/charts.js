// Histograms, threads and modules: tables whose cells are bars, readable by eye, by a screen reader, and when copied.

import { bytesText, countText, timeText, element, nameElement } from './text.js';
import { barCell, copyButton } from './tables.js';

/** Threads that are shown, unless the state says more or fewer. */
export const THREADS = 500;

/** The rows of a list that a limit lets in. */
function limited(order, limit, value, whole) {
  return order.filter((row) => value(row) >= limit.share * whole).slice(0, limit.rows);
}

/** A button that leaves out all but this part, if the page has a server. */
function onlyButton(onOnly, what, part) {
  if (!onOnly) return [];
  return [' ', element('button', { type: 'button', class: 'copy', 'aria-label': `Only ${what}`, title: `Show only ${what}`, on: { click: () => onOnly(part) } }, 'only')];
}

/** The range from the first to the last class that is not empty; empty classes between stay, so that the shape is true. */
function used(values) {
  let from = values.findIndex((value) => value > 0);
  if (from < 0) return [0, 0];
  let to = values.length;
  while (to > 0 && !(values[to - 1] > 0)) to -= 1;
  return [from, to];
}

function fillBars(table, label, values, text, describe, only = () => []) {
  let most = 0;
  for (const value of values) most = Math.max(most, value);
  const [from, to] = used(Array.from(values));
  const rows = [];
  for (let i = from; i < to; i++) {
    rows.push(element('tr', {}, element('th', { scope: 'row' }, label(i), ...only(i)), barCell(text(values[i]), most ? values[i] / most : 0), ...describe(i)));
  }
  if (!rows.length) rows.push(element('tr', {}, element('td', { colspan: 3 }, 'Nothing of this here.')));
  table.tBodies[0].replaceChildren(...rows);
}

export function showSizes(table, model, metric, range, onOnly) {
  const values = model.own('size', metric, range);
  const label = (i) => {
    const [from, to] = model.content.sizes[i];
    return from === to ? bytesText(from) : `${bytesText(from)} – ${bytesText(to)}`;
  };
  const only = (i) => onlyButton(onOnly, label(i), { size: model.content.sizes[i].join('-') });
  fillBars(table, label, values, metric.isBytes ? bytesText : countText, () => [], only);
}

export function showLifetimes(table, model, range) {
  const blocks = range ? model.sumOfSlices('lifetime', 'slice_allocations', ...range) : model.column('lifetime_blocks');
  const bytes = range ? model.sumOfSlices('lifetime', 'slice_allocated_bytes', ...range) : model.column('lifetime_bytes');
  const label = (i) => {
    const [from, to] = model.content.lifetimes[i];
    return `${timeText(from)} – ${timeText(to + 1)}`;
  };
  fillBars(table, label, blocks, countText, (i) => [element('td', { class: 'number' }, bytesText(bytes[i]))]);
}

export function showThreads(table, model, metric, range, more, onOnly, limit) {
  const values = model.own('thread', metric, range);
  const { threads } = model.content;
  const order = Array.from(threads.keys()).filter((i) => values[i] > 0).sort((a, b) => values[b] - values[a]);
  const most = order.length ? values[order[0]] : 0;
  const text = metric.isBytes ? bytesText : countText;
  const whole = model.totals(metric, range)[0];
  const rows = limited(order, limit, (i) => values[i], whole).map((i) => {
    const { name, kernel_thread: number, began_nanos: began, ended_nanos: ended } = threads[i];
    const life = `${timeText(began)} – ${ended === null ? 'end' : timeText(ended)}`;
    return element('tr', {}, element('th', { scope: 'row' }, nameElement(name || 'no name'), ` ${number}`, ...onlyButton(onOnly, `thread ${number}`, { thread: String(number) })),
      barCell(text(values[i]), most ? values[i] / most : 0), element('td', {}, life));
  });
  const left = order.length - rows.length;
  more.textContent = left > 0 ? `${countText(left)} more threads are not shown.` : '';
  if (!order.length) rows.push(element('tr', {}, element('td', { colspan: 3 }, 'Nothing of this here.')));
  table.tBodies[0].replaceChildren(...rows);
}

/** When each module was loaded, and how much its functions allocated. */
export function showModules(table, model, metric, range, sums, limit) {
  const { content } = model;
  const end = Math.max(1, content.recording.duration_nanos);
  const byPath = new Map();
  for (let f = 0; f < sums.self.length; f++) {
    byPath.set(model.modulePaths[f], (byPath.get(model.modulePaths[f]) || 0) + sums.self[f]);
  }
  const text = metric.isBytes ? bytesText : countText;
  const value = (module) => byPath.get(module.path) || 0;
  const order = [...content.modules].sort((a, b) => value(b) - value(a) || a.loaded_nanos - b.loaded_nanos);
  const most = order.length ? value(order[0]) : 0;
  const shown = limited(order, limit, value, model.totals(metric, range)[0]);
  const rows = shown.map((module) => {
    const from = Math.min(1, module.loaded_nanos / end);
    const to = module.unloaded_nanos === null ? 1 : Math.min(1, module.unloaded_nanos / end);
    const life = element('span', { class: 'life', 'aria-hidden': 'true' });
    life.style.left = `${100 * from}%`;
    life.style.width = `max(2px, ${100 * Math.max(0, to - from)}%)`;
    const reported = `${timeText(module.loaded_nanos)} – ${module.unloaded_nanos === null ? 'end' : timeText(module.unloaded_nanos)}`;
    const name = element('th', { scope: 'row', title: module.build_id ? `build id ${module.build_id}` : 'no build id' }, nameElement(module.path));
    if (module.path) name.append(' ', copyButton(module.path, 'path'));
    return element('tr', {}, name, barCell(text(value(module)), most ? value(module) / most : 0),
      element('td', { class: 'lifeline' }, life, element('span', { class: 'reported' }, reported)));
  });
  const left = order.length - shown.length;
  if (left > 0) rows.push(element('tr', {}, element('td', { colspan: 3 }, `${countText(left)} more modules are not shown.`)));
  table.tBodies[0].replaceChildren(...rows);
}

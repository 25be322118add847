// The recording as the views need it: the cost of each call, size and thread, in all or in a stretch of time.
//
// The calls are those of a shape: the recorded tree after folding and transforms.

import { foldedShape, recordedShape, rowNumber, transformed } from './shape.js';
import { Owners } from './owners.js';

/** The metrics. `column` names the sums of the recording, `slice` the column of slices. */
export const METRICS = [
  { id: 'peak', name: 'Held at the peak', isBytes: true, column: 'peak_bytes', slice: null },
  { id: 'held', name: 'Held at the end', isBytes: true, column: 'leaked_bytes', slice: null },
  { id: 'leaked', name: 'Leaked', isBytes: true, column: 'leaked_bytes', slice: 'slice_leaked_bytes' },
  { id: 'allocated', name: 'Allocated', isBytes: true, column: 'allocated_bytes', slice: 'slice_allocated_bytes' },
  { id: 'count', name: 'Allocations', isBytes: false, column: 'allocations', slice: 'slice_allocations' },
  { id: 'temporary', name: 'Temporary', isBytes: false, column: 'temporary', slice: 'slice_temporary' },
];

/** Blocks are leaked only if their program exited without freeing them; else they are alive. */
export function nameUnfreed(isLeaked) {
  METRICS.find((metric) => metric.id === 'leaked').name = isLeaked ? 'Leaked' : 'Alive, not freed';
}

export function metricOf(id) {
  return METRICS.find((metric) => metric.id === id) || METRICS[0];
}

export function hashOf(text) {
  let hash = 2166136261;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 16777619);
  return (hash ^ (hash >>> 13)) >>> 0;
}

/** How many calls of a shape are folded ones for which `isCounted` holds. */
function countOf({ isFolded }, isCounted) {
  return isFolded.reduce((count, is, call) => (is && isCounted(call) ? count + 1 : count), 0);
}

export class Model {
  constructor(content) {
    this.content = content;
    this.columns = new Map();
    const strings = content.strings;
    const names = content.column('function_name', Uint32Array);
    const modules = content.column('function_module', Uint32Array);
    /** 0 for a name, 1 for a substitute, 2 for no function, 3 for a module as one function, 4 for a row of folded calls. */
    this.kinds = Array.from(content.column('function_kind', Uint32Array));
    this.names = Array.from(names, (name) => strings[name]);
    this.modulePaths = Array.from(modules, (path) => (path ? strings[path - 1] : ''));
    this.moduleNames = this.modulePaths.map((path) => path.slice(path.lastIndexOf('/') + 1));
    this.shortNames = content.columns.function_short_name ? Array.from(content.column('function_short_name', Uint32Array), (name) => strings[name]) : [...this.names];
    this.owners = new Owners(content.owners);
    this.values = new Map();
    this.keys = new Map();
    this.moduleKeys = new Map();
    this.made = new Map();
    this.readCalls();
    this.setShape([], new Set(), true);
  }

  /** The recorded calls: their tree, whose they are, and which call names the row of each. */
  readCalls() {
    const { content } = this;
    const functions = content.column('call_function', Uint32Array);
    const depths = content.column('call_depth', Uint32Array);
    const isFolded = Uint8Array.from(content.column('call_is_folded', Uint32Array));
    const callOwners = content.column('call_owner', Uint32Array);
    const calls = functions.length;
    const isQuiet = new Uint8Array(calls);
    const isEnd = new Uint8Array(calls);
    const allocations = this.column('call_allocations');
    const blocks = this.column('call_leaked_blocks');
    const peaks = this.column('call_peak_blocks');
    const bytes = this.column('call_allocated_bytes');
    for (let call = 0; call < calls; call++) {
      isQuiet[call] = isFolded[call] && this.owners.isQuiet[callOwners[call]] ? 1 : 0;
      isEnd[call] = allocations[call] || blocks[call] || peaks[call] || bytes[call] ? 1 : 0;
    }
    this.recorded = recordedShape({ functions, depths, isFolded, isQuiet, isEnd });
    this.callOwners = callOwners;
    const rows = content.column('call_levels_to_row', Uint32Array);
    const { parents } = this.recorded;
    // The call that names the row.
    this.rowCalls = Int32Array.from(rows, (levels, call) => {
      let at = call;
      for (let level = levels; level > 0; level--) at = parents[at];
      return at;
    });
    // A function is of the owner of its costliest call, as its source is.
    this.functionOwners = new Array(this.names.length).fill(0);
    const weights = new Float64Array(this.names.length).fill(-1);
    const totals = Float64Array.from(allocations);
    for (let call = calls - 1; call > 0; call--) totals[parents[call]] += totals[call];
    for (let call = 1; call < calls; call++) {
      const f = functions[call];
      if (totals[call] > weights[f]) {
        weights[f] = totals[call];
        this.functionOwners[f] = callOwners[call];
      }
    }
    this.owners.rank(this.recorded, callOwners, totals);
  }

  /** Shows the calls after these transforms; folded ones as rows, except those that are open, or as they are. */
  setShape(transforms, opened, hasFolds) {
    const known = {
      keyOf: (f) => this.key(f),
      moduleKeyOf: (f) => this.moduleKey(f),
      functionOf: (key) => this.functionOf(key),
      wholeModule: (f) => this.wholeModule(f),
      foldOf: (f, call) => this.foldedRow(this.callOwners[call]),
      rowOf: (call) => this.rowCalls[call],
    };
    let shape = this.recorded;
    for (const transform of transforms) shape = transformed(shape, transform, known);
    /** Before anything is folded: lists are of this. */
    this.whole = shape;
    this.hasFolds = hasFolds;
    this.hasFolded = shape.isFolded.some((is) => is);
    if (hasFolds && this.hasFolded) shape = foldedShape(shape, opened, known);
    /** Folded calls of the recording that have no row of their own. */
    this.foldedCalls = countOf(this.whole, () => true) - countOf(shape, (call) => !shape.frames[call]);
    Object.assign(this, {
      shape, calls: shape.calls, functions: shape.functions, depths: shape.depths, parents: shape.parents,
      firstChild: shape.firstChild, nextSibling: shape.nextSibling,
    });
    /** By recorded call: the call of the shape, and of the whole one, that its own cost is listed at. */
    [this.listed, this.listedInWhole] = [shape, this.whole].map(({ places }) => this.rowCalls.map((row, call) => (places[row] > 0 ? places[row] : places[call])));
    this.values.clear();
  }

  /** A function that was not recorded: a folded row, or a module as one. */
  makeFunction(key, { name, modulePath, moduleName, kind, owner }) {
    if (!this.made.has(key)) {
      const f = this.names.push(name) - 1;
      this.shortNames.push(name);
      this.modulePaths.push(modulePath);
      this.moduleNames.push(moduleName);
      this.kinds[f] = kind;
      this.functionOwners[f] = owner;
      this.made.set(key, f);
      if (this.lowerNames) {
        this.lowerNames.push('');
        this.lowerModules.push('');
      }
    }
    return this.made.get(key);
  }

  wholeModule(f) {
    const [path, name] = [this.modulePaths[f], this.moduleNames[f] || 'no module'];
    return this.makeFunction(`module ${path}`, { name: `[${name}]`, modulePath: path, moduleName: name, kind: 3, owner: this.functionOwners[f] });
  }

  foldedRow(owner) {
    return this.makeFunction(`folded ${owner}`, { name: this.owners.text(owner), modulePath: '', moduleName: '', kind: 4, owner });
  }

  /** True for a row of folded calls. */
  isRow(call) {
    return this.shape.frames[call] > 0;
  }

  /** The label of a call. */
  callName(call) {
    const f = this.functions[call];
    const frames = this.shape.frames[call];
    return frames ? `… ${frames} frame${frames === 1 ? '' : 's'} of ${this.names[f]}` : this.shortNames[f];
  }

  /** The owner of a call. */
  owner(call) {
    const f = this.functions[call];
    return this.kinds[f] > 2 ? this.functionOwners[f] : this.callOwners[this.shape.sources[call]];
  }

  /** The number by which an address opens a row; of a call that is in an open one, the number of that. */
  rowNumberOf(call) {
    const { shape, parents, functions } = this;
    if (call <= 0 || !shape.isFolded[call]) return null;
    let outermost = call;
    while (parents[outermost] > 0 && shape.isFolded[parents[outermost]]) outermost = parents[outermost];
    const keys = [this.key(this.isRow(outermost) ? functions[outermost] : this.foldedRow(this.callOwners[shape.sources[outermost]]))];
    for (let at = parents[outermost]; at > 0; at = parents[at]) keys.push(this.key(functions[at]));
    return rowNumber(keys.reverse());
  }

  /** The keys of a call and of those it is in, as a focus has them: without folded calls. */
  focusPath(call) {
    const { shape, parents, functions } = this;
    if (call <= 0 || this.kinds[functions[call]] > 1) return '';
    const keys = [this.key(functions[call])];
    for (let at = parents[call]; at > 0; at = parents[at]) if (!shape.isFolded[at]) keys.push(this.key(functions[at]));
    return keys.reverse().join('.');
  }

  /** The keys of the recorded calls from everything to one that is exactly this call; empty where several became one. */
  recordedPath(call) {
    const { shape, recorded } = this;
    if (call <= 0 || shape.merged[call] !== 1) return '';
    const keys = [];
    for (let at = shape.sources[call]; at > 0; at = recorded.parents[at]) keys.push(this.key(recorded.functions[at]));
    return keys.reverse().join('.');
  }

  column(name, Kind) {
    if (!this.columns.has(name)) this.columns.set(name, this.content.column(name, Kind));
    return this.columns.get(name);
  }

  /** `file:line` of a recorded call; empty when it is not known. */
  sourceOf(recorded) {
    const { file, line } = this.placeOf(recorded);
    return file && line ? `${file}:${line}` : file;
  }

  /** The file and the line of a recorded call. */
  placeOf(recorded) {
    const file = this.column('call_file', Uint32Array)[recorded];
    return { file: file ? this.content.strings[file - 1] : '', line: this.column('call_line', Uint32Array)[recorded] };
  }

  /** The recorded call that a call shows: the first one of those that it became; none of those that were not recorded. */
  recordedCall(call) {
    return this.kinds[this.functions[call]] > 2 ? -1 : this.shape.sources[call];
  }

  /** The key of a function in an address: the same in each version of a recording, whatever the number of the function. */
  key(f) {
    if (!this.keys.has(f)) this.keys.set(f, hashOf(`${this.names[f]}\0${this.modulePaths[f]}`).toString(36));
    return this.keys.get(f);
  }

  /** The function of a key. */
  functionOf(key) {
    if (!this.byKey) {
      this.byKey = new Map();
      for (let f = 1; f < this.names.length; f++) if (this.kinds[f] < 2) this.byKey.set(this.key(f), f);
    }
    return this.byKey.get(key);
  }

  /** The key of a module in an address. */
  moduleKey(f) {
    const path = this.kinds[f] < 2 ? this.modulePaths[f] : null;
    if (!this.moduleKeys.has(path)) this.moduleKeys.set(path, path === null ? '' : hashOf(path).toString(36));
    return this.moduleKeys.get(path);
  }

  moduleOfKey(key) {
    const f = this.names.findIndex((_, f) => this.moduleKey(f) === key);
    return f < 0 ? '' : this.moduleNames[f] || 'no module';
  }

  /** The row and the slice of each entry. */
  slices() {
    if (!this.sliceRows) {
      const rows = this.content.column('slice_row_step', Uint32Array);
      for (let i = 1; i < rows.length; i++) rows[i] += rows[i - 1];
      this.sliceRows = rows;
      this.sliceNumbers = this.content.column('slice', Uint32Array);
    }
    return { rows: this.sliceRows, numbers: this.sliceNumbers };
  }

  /** Where the rows of calls, sizes, threads and lifetimes begin. */
  rows(kind) {
    const calls = this.content.slices.rows;
    const sizes = this.content.sizes.length;
    const threads = this.content.columns.thread_allocations.count;
    const starts = { call: 0, size: calls, thread: calls + sizes, lifetime: calls + sizes + threads };
    const counts = { call: calls, size: sizes, thread: threads, lifetime: this.content.lifetimes.length };
    return { start: starts[kind], count: counts[kind] };
  }

  /** Bytes that were held at the end of each slice. */
  heldAtEnds() {
    if (!this.held) {
      const { rows, numbers } = this.slices();
      const grown = this.column('slice_grown_bytes');
      const { start, count } = this.rows('size');
      const held = new Float64Array(this.content.slices.count);
      for (let i = 0; i < rows.length; i++) {
        if (rows[i] >= start && rows[i] < start + count) held[numbers[i]] += grown[i];
      }
      for (let i = 1; i < held.length; i++) held[i] += held[i - 1];
      this.held = held;
    }
    return this.held;
  }

  /** The moment of `peak` in a range: that of the recording if it is inside, else the end of the fullest slice. */
  peakOf(range) {
    const { totals, slices } = this.content;
    if (!range) return { isExact: true, nanos: totals.peak_nanos };
    const peakSlice = Math.floor(totals.peak_nanos / slices.nanos);
    if (peakSlice >= range[0] && peakSlice < range[1]) return { isExact: true, nanos: totals.peak_nanos };
    const held = this.heldAtEnds();
    let best = range[0];
    for (let slice = range[0]; slice < range[1]; slice++) if (held[slice] > held[best]) best = slice;
    return { isExact: false, slice: best + 1, nanos: (best + 1) * slices.nanos };
  }

  /** The own cost of each row of a kind. */
  own(kind, metric, range) {
    const key = `${kind} ${metric.id} ${range || ''}`;
    if (!this.values.has(key)) {
      // A brush that is dragged passes many ranges.
      if (this.values.size > 40) this.values.clear();
      this.values.set(key, this.ownOf(kind, metric, range));
    }
    return this.values.get(key);
  }

  ownOf(kind, metric, range) {
    if (!range) return this.column(`${kind}_${metric.column}`);
    if (metric.id === 'peak') {
      const peak = this.peakOf(range);
      if (peak.isExact) return this.column(`${kind}_${metric.column}`);
      return this.sumOfSlices(kind, 'slice_grown_bytes', 0, peak.slice);
    }
    if (metric.id === 'held') return this.sumOfSlices(kind, 'slice_grown_bytes', 0, range[1]);
    return this.sumOfSlices(kind, metric.slice, range[0], range[1]);
  }

  sumOfSlices(kind, name, from, to) {
    const { rows, numbers } = this.slices();
    const values = this.column(name);
    const { start, count } = this.rows(kind);
    const sums = new Float64Array(count);
    for (let i = 0; i < rows.length; i++) {
      const row = rows[i] - start;
      if (row >= 0 && row < count && numbers[i] >= from && numbers[i] < to) sums[row] += values[i];
    }
    return sums;
  }

  /** Computes a value from the costs of a metric in a range, once. */
  retained(name, metric, range, make) {
    const key = `${name} ${metric.id} ${range || ''}`;
    const own = this.own('call', metric, range);
    if (!this.values.has(key)) this.values.set(key, make(own));
    return this.values.get(key);
  }

  /** The cost that is listed at each call: its own, and that of folded calls on its behalf. */
  listedOwn(metric, range) {
    return this.retained('listed', metric, range, (own) => moved(own, this.listed, this.calls));
  }

  /** The cost of each call with its callees. */
  totals(metric, range) {
    return this.retained('totals', metric, range, (own) => summed(moved(own, this.shape.places, this.calls), this.parents));
  }

  /** The same of the calls before they were folded. */
  wholeTotals(metric, range) {
    if (this.whole === this.shape) return this.totals(metric, range);
    return this.retained('whole', metric, range, (own) => summed(moved(own, this.whole.places, this.whole.calls), this.whole.parents));
  }

  /** Costs by function: own, with callees, and its costliest recorded call. Recursion counts once, and folded calls not. */
  byFunction(metric, range) {
    return this.retained('functions', metric, range, (ownOfRecorded) => {
      const { calls, depths, functions, isFolded, sources } = this.whole;
      const own = moved(ownOfRecorded, this.listedInWhole, calls);
      const totals = this.wholeTotals(metric, range);
      const count = this.names.length;
      const result = { self: new Float64Array(count), total: new Float64Array(count), call: new Int32Array(count).fill(-1) };
      const most = new Float64Array(count);
      const open = new Uint32Array(count);
      const path = [];
      for (let call = 1; call < calls; call++) {
        while (path.length >= depths[call]) open[path.pop()] -= 1;
        const f = functions[call];
        result.self[f] += own[call];
        if (!open[f]) result.total[f] += totals[call];
        const isShown = !this.hasFolds || !isFolded[call] || own[call] > 0;
        if (isShown && (result.call[f] < 0 || totals[call] > most[f])) {
          result.call[f] = sources[call];
          most[f] = totals[call];
        }
        open[f] += 1;
        path.push(f);
      }
      return result;
    });
  }

  /** Computes tables for the first search and the first range of time, after the first picture. */
  prepare() {
    if (!this.lowerNames) {
      // Rows and collapsed modules are found by the functions in them.
      this.lowerNames = this.names.map((name, f) => (this.kinds[f] > 2 ? '' : name.toLowerCase()));
      this.lowerModules = this.moduleNames.map((name, f) => (this.kinds[f] > 2 ? '' : name.toLowerCase()));
    }
  }

  /** Finds functions by a part of their name or of their module's name, in small or capital letters. */
  search(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return null;
    this.prepare();
    const found = new Uint8Array(this.names.length);
    for (let f = 1; f < found.length; f++) {
      if (this.lowerNames[f].includes(wanted) || this.lowerModules[f].includes(wanted)) found[f] = 1;
    }
    return found;
  }

  /** The cost of all stacks through functions that match, each stack once. */
  matchedTotal(found, metric, range) {
    const totals = this.wholeTotals(metric, range);
    const { calls, depths, functions } = this.whole;
    let sum = 0;
    let inside = 0;
    for (let call = 1; call < calls; call++) {
      if (inside && depths[call] > inside) continue;
      inside = 0;
      if (found[functions[call]]) {
        sum += totals[call];
        inside = depths[call];
      }
    }
    return sum;
  }

  /** Which calls show functions that match, also inside of a row or a collapsed module. */
  foundCalls(found) {
    const { shape, recorded } = this;
    const calls = new Uint8Array(this.calls);
    for (let call = 1; call < this.calls; call++) calls[call] = found[this.functions[call]] || 0;
    for (let call = 1; call < recorded.calls; call++) {
      const place = shape.places[call];
      if (place > 0 && found[recorded.functions[call]] && this.kinds[this.functions[place]] > 2) calls[place] = 1;
    }
    return calls;
  }
}

/** Numbers of recorded calls, at the calls that these became. */
function moved(own, places, calls) {
  const sums = new Float64Array(calls);
  for (let call = 0; call < own.length; call++) if (places[call] >= 0) sums[places[call]] += own[call];
  return sums;
}

/** Each call with all that it calls. */
function summed(totals, parents) {
  for (let call = totals.length - 1; call > 0; call--) totals[parents[call]] += totals[call];
  return totals;
}

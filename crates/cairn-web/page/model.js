// The recording as the views need it: the cost of each call, size and thread, in all or in a stretch of time.

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

/** Finds parents and children from the order and the depths of the calls. */
export function linked(depths) {
  const calls = depths.length;
  const parents = new Int32Array(calls);
  const firstChild = new Int32Array(calls).fill(-1);
  const nextSibling = new Int32Array(calls).fill(-1);
  const path = [0];
  const last = new Int32Array(calls).fill(-1);
  for (let call = 1; call < calls; call++) {
    const depth = depths[call];
    const parent = path[depth - 1];
    parents[call] = parent;
    if (last[parent] < 0) firstChild[parent] = call;
    else nextSibling[last[parent]] = call;
    last[parent] = call;
    path[depth] = call;
  }
  return { parents, firstChild, nextSibling };
}

export class Model {
  constructor(content) {
    this.content = content;
    this.columns = new Map();
    const strings = content.strings;
    const names = content.column('function_name', Uint32Array);
    const modules = content.column('function_module', Uint32Array);
    this.kinds = content.column('function_kind', Uint32Array);
    this.names = Array.from(names, (name) => strings[name]);
    this.modulePaths = Array.from(modules, (path) => (path ? strings[path - 1] : ''));
    this.moduleNames = this.modulePaths.map((path) => path.slice(path.lastIndexOf('/') + 1));
    this.functions = content.column('call_function', Uint32Array);
    this.depths = content.column('call_depth', Uint32Array);
    this.calls = this.functions.length;
    Object.assign(this, linked(this.depths));
    this.values = new Map();
    this.keys = new Map();
  }

  column(name, Kind) {
    if (!this.columns.has(name)) this.columns.set(name, this.content.column(name, Kind));
    return this.columns.get(name);
  }

  /** `file:line` of a call; empty when it is not known. */
  source(call) {
    const { file, line } = this.place(call);
    return file && line ? `${file}:${line}` : file;
  }

  /** The file and the line of a call. */
  place(call) {
    const file = this.column('call_file', Uint32Array)[call];
    return { file: file ? this.content.strings[file - 1] : '', line: this.column('call_line', Uint32Array)[call] };
  }

  /** The key of a function in an address: the same in each version of a recording, whatever the number of the function. */
  key(f) {
    if (!this.keys.has(f)) this.keys.set(f, hashOf(`${this.names[f]}\0${this.modulePaths[f]}`).toString(36));
    return this.keys.get(f);
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

  /** The cost of each call with its callees. */
  totals(metric, range) {
    const key = `totals ${metric.id} ${range || ''}`;
    if (!this.values.has(key)) {
      const totals = Float64Array.from(this.own('call', metric, range));
      for (let call = this.calls - 1; call > 0; call--) totals[this.parents[call]] += totals[call];
      this.values.set(key, totals);
    }
    return this.values.get(key);
  }

  /** Costs by function: own, with callees, and its costliest call. Recursion counts once. */
  byFunction(metric, range) {
    const key = `functions ${metric.id} ${range || ''}`;
    if (this.values.has(key)) return this.values.get(key);
    const { calls, depths, functions } = this;
    const own = this.own('call', metric, range);
    const totals = this.totals(metric, range);
    const count = this.names.length;
    const result = { self: new Float64Array(count), total: new Float64Array(count), call: new Int32Array(count).fill(-1) };
    const open = new Uint32Array(count);
    const path = [];
    for (let call = 1; call < calls; call++) {
      while (path.length >= depths[call]) open[path.pop()] -= 1;
      const f = functions[call];
      result.self[f] += own[call];
      if (!open[f]) result.total[f] += totals[call];
      const best = result.call[f];
      if (best < 0 || totals[call] > totals[best]) result.call[f] = call;
      open[f] += 1;
      path.push(f);
    }
    this.values.set(key, result);
    return result;
  }

  /** Computes tables for the first search and the first range of time, after the first picture. */
  prepare() {
    if (!this.lowerNames) {
      this.lowerNames = this.names.map((name) => name.toLowerCase());
      this.lowerModules = this.moduleNames.map((name) => name.toLowerCase());
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
    const totals = this.totals(metric, range);
    const { calls, depths, functions } = this;
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
}

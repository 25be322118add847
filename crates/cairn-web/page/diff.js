// Two recordings as one tree: the sums of each at every call, and a flame graph that colours growth.

import { bytesText, countText, shareText } from './text.js';
import { linked } from './shape.js';
import { hashOf } from './model.js';
import { Owners } from './owners.js';
import { Flame } from './flame.js';

export class DiffModel {
  constructor(content) {
    this.content = content;
    const { strings } = content;
    const text = (number) => (number ? strings[number - 1] : '');
    this.names = Array.from(content.column('function_name', Uint32Array), (name) => strings[name]);
    this.shortNames = Array.from(content.column('function_short_name', Uint32Array), (name) => strings[name]);
    this.moduleNames = Array.from(content.column('function_module', Uint32Array), text);
    this.files = Array.from(content.column('function_file', Uint32Array), text);
    this.kinds = content.column('function_kind', Uint32Array);
    this.functions = content.column('call_function', Uint32Array);
    this.depths = content.column('call_depth', Uint32Array);
    this.calls = this.functions.length;
    Object.assign(this, linked(this.depths));
    this.foldedFrames = content.column('call_folded_frames', Uint32Array);
    this.functionOwners = content.column('function_owner', Uint32Array);
    this.owners = new Owners(content.owners);
    this.values = new Map();
    this.keys = new Map();
    const allocated = { column: 'allocated_bytes' };
    this.owners.rank(this, this.functions.map((f) => this.functionOwners[f]), this.totals('both', allocated));
  }

  owner(call) {
    return this.functionOwners[this.functions[call]];
  }

  key(f) {
    if (!this.keys.has(f)) this.keys.set(f, hashOf(`${this.names[f]}\0${this.moduleNames[f]}\0${this.files[f]}`).toString(36));
    return this.keys.get(f);
  }

  callName(call) {
    return this.shortNames[this.functions[call]];
  }

  foundCalls(found) {
    return Uint8Array.from(this.functions, (f) => found[f]);
  }

  retained(key, make) {
    if (!this.values.has(key)) this.values.set(key, make());
    return this.values.get(key);
  }

  /** The own sum of each call: `before` or `after`, or the larger of both, so that calls that are gone have a width too. */
  own(side, metric) {
    return this.retained(`own ${side} ${metric.column}`, () => {
      if (side !== 'both') return this.content.column(`${side}_${metric.column}`);
      const [before, after] = [this.own('before', metric), this.own('after', metric)];
      return before.map((value, call) => Math.max(value, after[call]));
    });
  }

  totals(side, metric) {
    return this.retained(`totals ${side} ${metric.column}`, () => {
      const totals = Float64Array.from(this.own(side, metric));
      for (let call = this.calls - 1; call > 0; call--) totals[this.parents[call]] += totals[call];
      return totals;
    });
  }

  /** Sums by function, own and with callees, before and after; recursion counts once. */
  byFunction(metric) {
    return this.retained(`functions ${metric.column}`, () => {
      const count = this.names.length;
      const sums = {};
      for (const side of ['before', 'after']) {
        const own = this.own(side, metric);
        const totals = this.totals(side, metric);
        const of = { self: new Float64Array(count), total: new Float64Array(count) };
        const open = new Uint32Array(count);
        const path = [];
        for (let call = 1; call < this.calls; call++) {
          while (path.length >= this.depths[call]) open[path.pop()] -= 1;
          const f = this.functions[call];
          of.self[f] += own[call];
          if (!open[f]) of.total[f] += totals[call];
          open[f] += 1;
          path.push(f);
        }
        sums[side] = of;
      }
      return sums;
    });
  }

  search(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return null;
    const found = new Uint8Array(this.names.length);
    for (let f = 2; f < found.length; f++) {
      if (this.names[f].toLowerCase().includes(wanted) || this.moduleNames[f].toLowerCase().includes(wanted)) found[f] = 1;
    }
    return found;
  }
}

/** Growth in words. */
export function growthText(before, after, metric) {
  const text = metric.isBytes ? bytesText : countText;
  const grown = after - before;
  if (!grown) return 'the same';
  const sign = grown > 0 ? '+' : '−';
  // Large growth is shown as a factor, because a share above 100 % means nothing to a reader.
  const part = grown >= before ? `${(after / before).toPrecision(3)} times` : `${sign}${shareText(Math.abs(grown), before)}`;
  return `${sign}${text(Math.abs(grown))} (${before && after ? part : after ? 'new' : 'gone'})`;
}

export class DiffFlame extends Flame {
  constructor(views) {
    super(views);
    this.textVariable = '--frame-text';
    this.hasStripes = true;
  }

  /** The fill says how a call grew; a stripe at its start, whose it is. */
  stripe(branch) {
    const name = branch.parent ? this.model.owners.classOf(this.model.owner(branch.call)) : '';
    return name && this.paint.owners[name];
  }

  /** The number of folded frames between a call and its caller; of several calls, that of the costliest. */
  folded(branch) {
    return branch.parent ? this.model.foldedFrames[branch.call] : 0;
  }

  /** Before and after of a branch. */
  numbers(branch) {
    if (!branch.numbers) {
      const { model, metric } = this;
      const sum = (side) => {
        if (!branch.places || !branch.parent) return model.totals(side, metric)[branch.call];
        const own = model.own(side, metric);
        let sum = 0;
        for (let i = 1; i < branch.places.length; i += 2) sum += own[branch.places[i]];
        return sum;
      };
      branch.numbers = { before: sum('before'), after: sum('after') };
    }
    return branch.numbers;
  }

  /** Red for growth, blue for shrinking, stronger for a larger part of the call; grey without a change. */
  colour(branch, isDim) {
    const { before, after } = this.numbers(branch);
    const part = (after - before) / (Math.max(before, after) || 1);
    const strength = Math.abs(part) ** 0.7;
    const hue = part > 0 ? 6 : 214;
    const saturation = (isDim ? 25 : 78) * strength;
    const light = this.isDark ? (isDim ? 24 : 30 + 12 * strength) : isDim ? 90 : 86 - 16 * strength;
    return `hsl(${hue} ${saturation.toFixed(0)}% ${light.toFixed(0)}%)`;
  }

  describe(branch) {
    const text = this.metric.isBytes ? bytesText : countText;
    const { before, after } = this.numbers(branch);
    const folded = this.folded(branch);
    const between = folded ? ` · ${countText(folded)} frame${folded === 1 ? '' : 's'} between it and its caller: folded` : '';
    return `before ${text(before)}, after ${text(after)}: ${growthText(before, after, this.metric)}${between}`;
  }
}

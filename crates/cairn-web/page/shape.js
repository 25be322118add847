// The tree of calls as it is shown: folded, focused, collapsed. A shape says where each recorded call is shown, and every sum follows from
// that: a transform moves calls, and never a number. Nothing here knows names, colours or the document.
//
// A tree is `functions` and `depths` of its calls, each call before those in it, call 0 being everything.

/** The changes that a reader makes to the tree. An address has the id of a transform, `-`, and the key of its function, path or module. */
export const TRANSFORMS = {
  ff: { name: 'focus on function', short: 'focus', of: 'function' },
  fs: { name: 'focus on this call and what it calls', short: 'only', of: 'path' },
  mf: { name: 'merge function into its callers', short: 'merged', of: 'function' },
  cm: { name: 'collapse module', short: 'collapsed', of: 'module' },
  cr: { name: 'collapse recursion', short: 'recursion', of: 'function' },
  df: { name: 'drop stacks with this function', short: 'dropped', of: 'function' },
};

const MOST_TRANSFORMS = 50;

/** Parses the transforms of an address; other words are left out. */
export function transformsOf(text) {
  const transforms = [];
  for (const word of text.split('~').slice(0, MOST_TRANSFORMS)) {
    const found = /^([a-z]{2})-([0-9a-z]+(?:\.[0-9a-z]+)*)$/.exec(word);
    if (found && Object.hasOwn(TRANSFORMS, found[1])) transforms.push({ id: found[1], key: found[2] });
  }
  return transforms;
}

export function transformsText(transforms) {
  return transforms.slice(0, MOST_TRANSFORMS).map(({ id, key }) => `${id}-${key}`).join('~');
}

/** Parents and children, from the order and the depths alone. */
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

/**
 * The tree as it was recorded. `isFolded` says of each call whether it is folded, `isQuiet` whether it is an allocator's, `isEnd` whether
 * it asked for memory itself.
 */
export function recordedShape({ functions, depths, isFolded, isQuiet, isEnd }) {
  const calls = functions.length;
  const places = new Int32Array(calls);
  for (let call = 0; call < calls; call++) places[call] = call;
  return {
    calls, functions, depths, ...linked(depths), isFolded, isQuiet, isEnd, places,
    sources: places, merged: new Uint32Array(calls).fill(1), frames: new Uint32Array(calls),
  };
}

/** Builds the next shape from one: calls of the same function in the same call become one. */
class ShapeBuilder {
  constructor(shape) {
    this.shape = shape;
    this.functions = [shape.functions[0]];
    this.parents = [0];
    this.from = [0];
    this.frames = [0];
    /** Calls that a transform chose: they are shown. */
    this.chosen = new Set();
    this.children = new Map();
    /** By call of the shape before: the call it became, and the one that its callees are put in; -1 for a call that is left out. */
    this.to = new Int32Array(shape.calls).fill(-1);
    this.at = new Int32Array(shape.calls).fill(-1);
    this.at[0] = 0;
    this.to[0] = 0;
  }

  child(parent, f, call) {
    const key = parent * 0x4000000 + f;
    let made = this.children.get(key);
    if (made === undefined) {
      made = this.functions.length;
      this.children.set(key, made);
      this.functions.push(f);
      this.parents.push(parent);
      this.from.push(call);
      this.frames.push(0);
    }
    return made;
  }

  keep(call, parent, f = this.shape.functions[call]) {
    this.at[call] = this.to[call] = this.child(parent, f, call);
  }

  keepChosen(call, parent, f) {
    this.keep(call, parent, f);
    this.chosen.add(this.at[call]);
  }

  mergeInto(call, place) {
    this.at[call] = this.to[call] = place;
  }

  /** Each call before those in it, in the order in which they came. */
  finish() {
    const { shape, functions, parents, from } = this;
    const calls = functions.length;
    const first = new Int32Array(calls).fill(-1);
    const next = new Int32Array(calls).fill(-1);
    for (let made = calls - 1; made > 0; made--) {
      next[made] = first[parents[made]];
      first[parents[made]] = made;
    }
    const order = new Int32Array(calls);
    const result = {
      calls, functions: new Uint32Array(calls), depths: new Uint32Array(calls), parents: null, firstChild: null, nextSibling: null,
      isFolded: new Uint8Array(calls), isQuiet: new Uint8Array(calls), isEnd: new Uint8Array(calls), places: new Int32Array(shape.places.length),
      sources: new Int32Array(calls), merged: new Uint32Array(calls), frames: new Uint32Array(calls),
    };
    let number = 0;
    let depth = 0;
    for (let made = 0; made >= 0;) {
      order[made] = number;
      result.functions[number] = functions[made];
      result.depths[number] = depth;
      const isChosen = this.chosen.has(made);
      result.isFolded[number] = isChosen ? 0 : shape.isFolded[from[made]];
      result.isQuiet[number] = isChosen ? 0 : shape.isQuiet[from[made]];
      result.sources[number] = shape.sources[from[made]];
      result.frames[number] = this.frames[made] || shape.frames[from[made]];
      number += 1;
      if (first[made] >= 0) {
        made = first[made];
        depth += 1;
      } else {
        while (made > 0 && next[made] < 0) {
          made = parents[made];
          depth -= 1;
        }
        made = made > 0 ? next[made] : -1;
      }
    }
    Object.assign(result, linked(result.depths));
    for (let call = 0; call < shape.calls; call++) {
      if (this.to[call] < 0) continue;
      const place = order[this.to[call]];
      this.to[call] = place;
      result.merged[place] += shape.merged[call];
      if (shape.isEnd[call]) result.isEnd[place] = 1;
    }
    for (let call = 0; call < shape.places.length; call++) {
      const before = shape.places[call];
      result.places[call] = before < 0 ? -1 : this.to[before];
    }
    return result;
  }
}

/** Stacks through a function, each from its outermost call of it. */
function focusFunction(shape, f) {
  const builder = new ShapeBuilder(shape);
  builder.to[0] = -1;
  for (let call = 1; call < shape.calls; call++) {
    const outer = shape.parents[call];
    const place = outer > 0 ? builder.at[outer] : -1;
    if (place >= 0) builder.keep(call, place);
    else if (shape.functions[call] === f) builder.keepChosen(call, 0);
  }
  return builder.finish();
}

/** The calls below one path. Folded calls may be missing in the path. */
function focusSubtree(shape, path, keyOf) {
  const builder = new ShapeBuilder(shape);
  builder.to[0] = -1;
  const matched = new Int32Array(shape.calls).fill(-1);
  matched[0] = 0;
  for (let call = 1; call < shape.calls; call++) {
    const outer = shape.parents[call];
    const place = outer > 0 ? builder.at[outer] : -1;
    if (place >= 0) {
      builder.keep(call, place);
      continue;
    }
    const before = matched[outer];
    if (before < 0) continue;
    if (keyOf(shape.functions[call]) === path[before]) {
      matched[call] = before + 1;
      if (before + 1 === path.length) builder.keepChosen(call, 0);
    } else if (shape.isFolded[call]) matched[call] = before;
  }
  return builder.finish();
}

/** A function's calls become part of those that called it. */
function mergeFunction(shape, f) {
  const builder = new ShapeBuilder(shape);
  for (let call = 1; call < shape.calls; call++) {
    const place = builder.at[shape.parents[call]];
    if (shape.functions[call] === f) builder.mergeInto(call, place);
    else builder.keep(call, place);
  }
  return builder.finish();
}

/** Calls of a module that call each other become one call of `whole`. */
function collapseModule(shape, isInModule, whole) {
  const builder = new ShapeBuilder(shape);
  for (let call = 1; call < shape.calls; call++) {
    const place = builder.at[shape.parents[call]];
    if (!isInModule(shape.functions[call])) builder.keep(call, place);
    else if (place > 0 && builder.functions[place] === whole) builder.mergeInto(call, place);
    else builder.keepChosen(call, place, whole);
  }
  return builder.finish();
}

/** A call of a function inside of a call of it, directly or not, becomes part of the outer one. */
function collapseRecursion(shape, f) {
  const builder = new ShapeBuilder(shape);
  const open = new Int32Array(shape.calls).fill(-1);
  for (let call = 1; call < shape.calls; call++) {
    const outer = shape.parents[call];
    const isOf = shape.functions[call] === f;
    open[call] = open[outer];
    if (isOf && open[outer] >= 0) builder.mergeInto(call, open[outer]);
    else builder.keep(call, builder.at[outer]);
    if (isOf) open[call] = builder.at[call];
  }
  return builder.finish();
}

/** Without the stacks that go through a function. */
function dropFunction(shape, f) {
  const builder = new ShapeBuilder(shape);
  for (let call = 1; call < shape.calls; call++) {
    const place = builder.at[shape.parents[call]];
    if (place >= 0 && shape.functions[call] !== f) builder.keep(call, place);
  }
  return builder.finish();
}

/**
 * One transform. `known` has the meaning of numbers: `keyOf(f)`, `moduleKeyOf(f)`, `functionOf(key)`, and `wholeModule(f)`, a function that
 * represents the module of `f`. A transform changes nothing if the recording does not have its function or module.
 */
export function transformed(shape, { id, key }, known) {
  if (id === 'fs') return focusSubtree(shape, key.split('.'), known.keyOf);
  if (id === 'cm') {
    const isInModule = (f) => known.moduleKeyOf(f) === key;
    const member = shape.functions.find(isInModule);
    return member === undefined ? shape : collapseModule(shape, isInModule, known.wholeModule(member));
  }
  const f = known.functionOf(key);
  if (f === undefined) return shape;
  return { ff: focusFunction, mf: mergeFunction, cr: collapseRecursion, df: dropFunction }[id](shape, f);
}

/** Computes the number of a folded row from the keys of the calls outside of it that are not folded, and its own key. */
export function rowNumber(keys) {
  let number = 0;
  for (const key of keys) number = pathNumber(number, key);
  return number;
}

function pathNumber(outer, key) {
  let hash = outer ^ 2166136261;
  for (let i = 0; i < key.length; i++) hash = Math.imul(hash ^ key.charCodeAt(i), 16777619);
  return Math.imul(hash ^ (hash >>> 15), 2246822519) >>> 0;
}

/** Kinds of runs of folded calls. */
const OUTERMOST = 1;
const CLOSED = 2;
const OPEN = 3;

/**
 * Each run of folded calls becomes one row. `foldOf(f, call)` is the function that such a row gets, by the call of the recording that it
 * begins with; `rowOf(call)` is the call of the recording that names the cost of another one in lists; `opened` holds the numbers of
 * the rows that are open.
 *
 * Two runs have no row: the calls that lead to the outermost one that is not folded, and an allocator's calls at the end of a stack. Their
 * memory is shown at the call that is left.
 */
export function foldedShape(shape, opened, { keyOf, foldOf, rowOf }) {
  const { calls, functions, parents, isFolded, isEnd } = shape;
  const isQuiet = Uint8Array.from(shape.isQuiet);
  for (let call = calls - 1; call > 0; call--) if (!isQuiet[call]) isQuiet[parents[call]] = 0;
  const builder = new ShapeBuilder(shape);
  /** By call: the kind of run that it is in, how far in, and the number of the path without folded calls. */
  const run = new Uint8Array(calls);
  const length = new Uint32Array(calls);
  const numbers = new Uint32Array(calls);
  const members = new Map();
  run[0] = OUTERMOST;
  const grow = (row, call) => {
    builder.frames[row] = Math.max(builder.frames[row], length[call]);
    members.set(row, (members.get(row) || 0) + 1);
  };
  for (let call = 1; call < calls; call++) {
    const outer = parents[call];
    const place = builder.at[outer];
    const f = functions[call];
    if (!isFolded[call]) {
      numbers[call] = opened.size ? pathNumber(numbers[outer], keyOf(f)) : 0;
      builder.keep(call, place);
      continue;
    }
    run[call] = run[outer];
    numbers[call] = numbers[outer];
    length[call] = length[outer] + 1;
    if (run[call] === OUTERMOST) {
      builder.mergeInto(call, 0);
      if (!isEnd[call]) continue;
      // Of a stack without any other call, the one that lists name is shown.
      const named = Math.max(1, shape.places[rowOf(shape.sources[call])]);
      builder.to[call] = builder.child(0, functions[named], named);
    } else if (run[call] === CLOSED) {
      builder.mergeInto(call, place);
      grow(place, call);
    } else if (run[call] === OPEN) {
      builder.keep(call, place);
    } else if (isQuiet[call]) {
      // All that is in it is quiet as well.
      builder.mergeInto(call, place);
      length[call] = 0;
    } else {
      const row = foldOf(f, shape.sources[call]);
      run[call] = opened.size && opened.has(pathNumber(numbers[outer], keyOf(row))) ? OPEN : CLOSED;
      length[call] = 1;
      builder.keep(call, place, run[call] === OPEN ? f : row);
      if (run[call] === CLOSED) grow(builder.at[call], call);
    }
  }
  // A row of one call is that call.
  for (const [row, count] of members) {
    if (count > 1) continue;
    builder.functions[row] = functions[builder.from[row]];
    builder.frames[row] = 0;
  }
  return builder.finish();
}

// Tests what a reader can do to the tree of calls, without a browser: node shape.mjs
//
// The seed of the made-up trees is printed with a failure.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

// Modules of the page are scripts of a browser: without a package that says so, node reads them by their text.
const load = (name) => import(`data:text/javascript;base64,${readFileSync(new URL(`../../page/${name}`, import.meta.url)).toString('base64')}`);
const { TRANSFORMS, transformsOf, transformsText, recordedShape, transformed, foldedShape, rowNumber } = await load('shape.js');
const { roundTicks, byteTicks, timeTicks } = await load('ticks.js');

/** A tree as text: two blanks a level, `name own`; a name in brackets is folded, in braces folded and an allocator's. */
function tree(text) {
  const names = ['everything'];
  const functions = [0];
  const depths = [0];
  const own = [0];
  const flags = [''];
  for (const line of text.split('\n').filter((line) => line.trim())) {
    const [, blanks, word, amount] = /^( *)(\S+) ?(\d*)$/.exec(line);
    const name = word.replace(/[[\]{}]/g, '');
    if (!names.includes(name)) names.push(name);
    functions.push(names.indexOf(name));
    depths.push(blanks.length / 2 + 1);
    own.push(Number(amount || 0));
    flags.push(word[0]);
  }
  return made(names, functions, depths, own, flags);
}

function made(names, functions, depths, own, flags) {
  const shape = recordedShape({
    functions: Uint32Array.from(functions), depths: Uint32Array.from(depths),
    isFolded: Uint8Array.from(flags, (flag) => (flag === '[' || flag === '{' ? 1 : 0)),
    isQuiet: Uint8Array.from(flags, (flag) => (flag === '{' ? 1 : 0)),
    isEnd: Uint8Array.from(own, (amount) => (amount > 0 ? 1 : 0)),
  });
  const all = [...names];
  const add = (name) => (all.includes(name) ? all.indexOf(name) : all.push(name) - 1);
  const known = {
    keyOf: (f) => all[f].replace(/[^a-z0-9]/g, ''),
    // The module of a function is its first letter.
    moduleKeyOf: (f) => (f ? all[f][0] : ''),
    functionOf: (key) => { const f = names.indexOf(key); return f < 0 ? undefined : f; },
    wholeModule: (f) => add(`module${all[f][0]}`),
    foldOf: () => add('folded'),
    rowOf: (call) => call,
  };
  return { shape, own, known, all };
}

/** What is in each call of a shape by itself, what goes through it, and what is left out. */
function sums({ own }, shape) {
  const self = new Array(shape.calls).fill(0);
  let leftOut = 0;
  own.forEach((amount, call) => {
    if (shape.places[call] < 0) leftOut += amount;
    else self[shape.places[call]] += amount;
  });
  const total = [...self];
  for (let call = shape.calls - 1; call > 0; call--) total[shape.parents[call]] += total[call];
  return { self, total, leftOut };
}

/** The tree as text again, with what goes through each call. */
function drawn(of, shape) {
  const { total } = sums(of, shape);
  const rows = [];
  for (let call = 1; call < shape.calls; call++) {
    const frames = shape.frames[call] ? `*${shape.frames[call]}` : '';
    rows.push(`${'  '.repeat(shape.depths[call] - 1)}${of.all[shape.functions[call]]}${frames} ${total[call]}`);
  }
  return rows.join('\n');
}

const text = (lines) => lines.map((line) => line.replace(/^\| ?/, '')).join('\n');
const changed = (of, id, key) => transformed(of.shape, { id, key }, of.known);

const PROGRAM = tree(`
main 1
  load 2
    parse 4
      node 8
        parse 16
          node 32
      lex 64
  pop
    parse 128
other 256
  load 512
`);

const TRANSFORM_CASES = [
  ['ff', 'load', 'load 638\n  parse 124\n    node 56\n      parse 48\n        node 32\n    lex 64', 385],
  // The outermost call of it is where stacks begin: the inner one stays inside.
  ['ff', 'parse', 'parse 252\n  node 56\n    parse 48\n      node 32\n  lex 64', 771],
  ['fs', 'main.load', 'load 126\n  parse 124\n    node 56\n      parse 48\n        node 32\n    lex 64', 897],
  ['mf', 'parse', 'main 255\n  load 126\n    node 56\n      node 32\n    lex 64\n  pop 128\nother 768\n  load 512', 0],
  ['mf', 'main', 'load 126\n  parse 124\n    node 56\n      parse 48\n        node 32\n    lex 64\npop 128\n  parse 128\nother 768\n  load 512', 0],
  ['cr', 'parse', 'main 255\n  load 126\n    parse 124\n      node 40\n      lex 64\n  pop 128\n    parse 128\nother 768\n  load 512', 0],
  // pop and parse are of one module, and so are load and lex, which do not call each other.
  ['cm', 'p', 'main 255\n  load 126\n    modulep 124\n      node 56\n        modulep 48\n          node 32\n      lex 64\n  modulep 128\nother 768\n  load 512', 0],
  ['df', 'parse', 'main 3\n  load 2\n  pop 0\nother 768\n  load 512', 252],
  ['df', 'nothing', drawn(PROGRAM, PROGRAM.shape), 0],
  ['cm', 'z', drawn(PROGRAM, PROGRAM.shape), 0],
  ['fs', 'main.other', '', 1023],
];

const tests = {
  'each transform makes the tree that its name says'() {
    for (const [id, key, expected, leftOut] of TRANSFORM_CASES) {
      const shape = changed(PROGRAM, id, key);
      assert.equal(drawn(PROGRAM, shape), expected, `${id} ${key}`);
      assert.equal(sums(PROGRAM, shape).leftOut, leftOut, `${id} ${key}`);
    }
  },

  'folded runs are rows, start-up and the ends of allocators are not'() {
    const of = tree(`
[start]
  main
    [vector] 5
      [grow]
        {malloc} 10
    [sort]
      [introsort]
        less
          {malloc} 20
        [swap] 40
    {malloc} 80
    [single] 1
  [init] 2
`);
    assert.equal(drawn(of, foldedShape(of.shape, new Set(), of.known)), text([
      '| main 156', '|   folded*3 76', '|     less 20', '| init 2',
    ]));
    // By key: the row in main. What is in it are its own calls again, and nothing is left out.
    const opened = new Set([rowNumber(['main', 'folded'])]);
    assert.equal(drawn(of, foldedShape(of.shape, opened, of.known)), text([
      '| main 156', '|   vector 15', '|     grow 10', '|       malloc 10', '|   sort 60', '|     introsort 60', '|       less 20', '|       swap 40', '|   single 1',
      '| init 2',
    ]));
  },

  'a path of a focus may leave out folded calls'() {
    const of = tree('main\n  [sort]\n    [introsort]\n      less 7\n      swap 3');
    assert.equal(drawn(of, changed(of, 'fs', 'main.less')), 'less 7');
    assert.equal(drawn(of, changed(of, 'fs', 'main.sort.introsort.less')), 'less 7');
    assert.equal(drawn(of, changed(of, 'fs', 'less')), '');
    // A folded call that was chosen is shown.
    const focused = changed(of, 'ff', 'introsort');
    assert.equal(drawn(of, foldedShape(focused, new Set(), of.known)), 'introsort 10\n  less 7\n  swap 3');
  },

  'transforms survive an address, and nonsense in one is no transform'() {
    const transforms = [{ id: 'ff', key: 'a1' }, { id: 'fs', key: 'a1.zz.0' }, { id: 'cm', key: 'q' }];
    assert.deepEqual(transformsOf(transformsText(transforms)), transforms);
    for (const text of ['', '~', 'ff', 'ff-', 'xx-a', 'ff-A', 'fs-a..b', '__proto__-a', 'constructor-a', 'ff-<img>']) assert.deepEqual(transformsOf(text), [], text);
    assert.equal(transformsOf('ff-a~'.repeat(500)).length, 50);
  },

  'no transform and no fold loses or invents memory, in any order'() {
    for (let seed = 1; seed <= 400; seed++) {
      const random = randomOf(seed);
      const of = madeUp(random);
      let shape = of.shape;
      const done = [];
      for (let count = random(4); count >= 0; count--) {
        const id = Object.keys(TRANSFORMS)[random(6)];
        const some = 1 + random(shape.calls - 1 || 1);
        if (some >= shape.calls) break;
        const path = [];
        for (let at = some; at > 0; at = shape.parents[at]) path.unshift(of.known.keyOf(shape.functions[at]));
        const key = { path: path.join('.'), module: of.known.moduleKeyOf(shape.functions[some]), function: path.at(-1) }[TRANSFORMS[id].of];
        const before = sums(of, shape);
        const next = transformed(shape, { id, key }, of.known);
        const after = sums(of, next);
        done.push(`${id}-${key}`);
        const note = `seed ${seed}: ${done.join('~')}`;
        assert.equal(after.total[0] + after.leftOut, before.total[0] + before.leftOut, note);
        // What is left is what the transform is about.
        const f = of.known.functionOf(key);
        if (id === 'ff' && f !== undefined) assert.equal(after.total[0], through(of, shape, f), note);
        if (id === 'df' && f !== undefined) assert.equal(after.total[0], before.total[0] - through(of, shape, f), note);
        if (id === 'fs') assert.ok(after.total[0] >= before.total[some], note);
        if (['mf', 'cm', 'cr'].includes(id)) assert.equal(after.total[0], before.total[0], note);
        checkTree(next, note);
        shape = next;
      }
      const opened = new Set([rowNumber(['aa', 'folded']), rowNumber(['folded'])]);
      for (const open of [new Set(), opened]) {
        const last = foldedShape(shape, open, of.known);
        checkTree(last, `seed ${seed}`);
        assert.equal(sums(of, last).total[0], sums(of, shape).total[0], `seed ${seed}: ${done.join('~')}, folded`);
      }
    }
  },

  'ticks are round numbers that cover the range, and few'() {
    assert.deepEqual(roundTicks(10, 5), [0, 2, 4, 6, 8, 10]);
    assert.deepEqual(roundTicks(0.9, 5), [0, 0.2, 0.4, 0.6, 0.8]);
    const MIB = 1024 ** 2;
    assert.deepEqual(byteTicks(5.3 * MIB, 3), [0, 2 * MIB, 4 * MIB]);
    assert.deepEqual(byteTicks(900, 5), [0, 200, 400, 600, 800]);
    assert.deepEqual(byteTicks(1.2 * 1024 ** 3, 3), [0, 0.5 * 1024 ** 3, 1024 ** 3]);
    assert.deepEqual(byteTicks(1, 4), [0, 1]);
    assert.deepEqual(timeTicks(4.1e9, 5), [0, 1e9, 2e9, 3e9, 4e9]);
    assert.deepEqual(timeTicks(200e9, 4), [0, 60e9, 120e9, 180e9]);
    assert.deepEqual(timeTicks(5 * 3600e9, 3), [0, 2 * 3600e9, 4 * 3600e9]);
    for (const most of [1, 7, 999, 1000, 123456, 8.8e9, 1e15]) {
      for (const count of [1, 2, 5, 10]) {
        for (const ticks of [roundTicks(most, count), byteTicks(most, count), timeTicks(most, count)]) {
          assert.ok(ticks.length >= 1 && ticks.length <= count + 2 && ticks.at(-1) <= most, `${most} ${count}: ${ticks}`);
        }
      }
    }
  },
};

/** What goes through a function, recursion once. */
function through(of, shape, f) {
  const { total } = sums(of, shape);
  const inside = new Uint8Array(shape.calls);
  let sum = 0;
  for (let call = 1; call < shape.calls; call++) {
    const isOf = shape.functions[call] === f;
    if (isOf && !inside[shape.parents[call]]) sum += total[call];
    inside[call] = isOf || inside[shape.parents[call]] ? 1 : 0;
  }
  return sum;
}

/** Every call comes behind the one it is in, no call has two calls of one function, and the depths are right. */
function checkTree(shape, note) {
  const seen = new Set();
  for (let call = 1; call < shape.calls; call++) {
    assert.ok(shape.parents[call] < call, note);
    assert.equal(shape.depths[call], shape.depths[shape.parents[call]] + 1, note);
    const key = `${shape.parents[call]} ${shape.functions[call]} ${shape.frames[call]}`;
    assert.ok(!seen.has(key), `${note}: ${key} twice`);
    seen.add(key);
  }
}

function randomOf(seed) {
  let state = seed * 2654435761;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

function madeUp(random) {
  const names = ['everything', 'aa', 'ab', 'ba', 'bb', 'ca', 'cb'];
  const flag = ['', '', '', '', '[', '[', '{'];
  const [functions, depths, own, flags] = [[0], [0], [0], ['']];
  const grow = (depth) => {
    const used = new Set();
    for (let count = random(4); count > 0; count--) {
      const f = 1 + random(6);
      if (used.has(f) || depth > 7) continue;
      used.add(f);
      functions.push(f);
      depths.push(depth);
      own.push(random(3) ? 0 : 1 + random(100));
      flags.push(flag[f]);
      grow(depth + 1);
    }
  };
  grow(1);
  return made(names, functions, depths, own, flags);
}

let failures = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    test();
    console.log(`ok      ${name}`);
  } catch (error) {
    failures += 1;
    console.log(`FAILED  ${name}\n${error.stack}`);
  }
}
process.exitCode = failures ? 1 : 0;

// Opens the pages that `examples/pages.rs` writes in a real browser, and uses them as a reader does.
//
//   node page.mjs DIRECTORY [--times]
//
// `DIRECTORY` holds the pages; screenshots are written beside them. `--times` prints how long the large page takes and checks
// nothing about it: times are for a record, not for a test. puppeteer-core is looked for from PUPPETEER_FROM, the browser is CHROMIUM.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const [directory, ...switches] = process.argv.slice(2);
const from = process.env.PUPPETEER_FROM ? pathToFileURL(resolve(process.env.PUPPETEER_FROM, 'x')) : import.meta.url;
const loaded = await import(pathToFileURL(createRequire(from).resolve('puppeteer-core')));
const puppeteer = loaded.default ?? loaded;

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
  args: ['--no-sandbox', '--allow-file-access-from-files'],
  protocolTimeout: 300_000,
});

/** Opens a page; whatever it says on the console or asks of a network fails the test. */
async function open(name, { hash = '', width = 1280, height = 900, scheme = 'light' } = {}) {
  const page = await browser.newPage();
  page.complaints = [];
  page.on('pageerror', (error) => page.complaints.push(`error: ${error.message}`));
  page.on('console', (message) => page.complaints.push(`console: ${message.text()}`));
  page.on('dialog', (dialog) => {
    page.complaints.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on('request', (request) => {
    if (!/^(file|blob):/.test(request.url())) page.complaints.push(`request: ${request.url()}`);
  });
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
  await page.setViewport({ width, height });
  await page.goto(pathToFileURL(resolve(directory, `${name}.html`)) + hash);
  await page.waitForSelector('html[data-ready]', { timeout: 120_000 });
  await settle(page);
  return page;
}

/** Waits until what a change leads to is drawn. */
async function settle(page) {
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => setTimeout(() => requestAnimationFrame(() => setTimeout(done, 30)), 30))));
}

const text = (page, selector) => page.$eval(selector, (element) => element.textContent);

/** The table of functions: name to [self, total]. */
const functions = (page) => page.$$eval('#functions tbody tr', (rows) => rows.map((row) => Array.from(row.cells, (cell) => cell.textContent)));

async function rowOf(page, name) {
  const rows = await functions(page);
  return rows.find((row) => row[2] === name) || null;
}

/** Drags over a part of the timeline, from and to as parts of its width. */
async function brush(page, from, to) {
  const canvas = await page.$('#timeline');
  await canvas.scrollIntoView();
  const box = await canvas.boundingBox();
  const y = box.y + box.height / 2;
  await page.mouse.move(box.x + box.width * from, y);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * ((from + to) / 2), y, { steps: 4 });
  await page.mouse.move(box.x + box.width * to, y, { steps: 4 });
  await page.mouse.up();
  await settle(page);
}

/** What is drawn: the functions of each level from left to right, with their widths. */
const drawn = (page) => page.evaluate(() => {
  const { flame, model } = globalThis.cairnPage;
  return Array.from(flame.rows, (row) => row.branches.map((branch, i) => [branch.parent ? model.names[branch.functionNumber] : '', Math.round(row.width[i])]));
});

async function choose(page, metric) {
  await page.select('#metric', metric);
  await settle(page);
}

const tests = {
  async 'the summary and the table tell what the recording holds'(page) {
    const summary = await text(page, '#summary');
    // 400 texts, and 50 of them stay; 400 each of 200, 48 and 16 bytes that stay, and one of 10,000 at the peak.
    const stays = 50 * 4096 + 400 * (200 + 48 + 16);
    assert.match(summary, new RegExp(`Peak${((stays + 10_000) / 1024).toFixed(0)} KiB1,251 blocks`));
    assert.match(summary, new RegExp(`Leaked${(stays / 1024).toFixed(0)} KiB1,250 blocks`));
    assert.match(summary, /Allocations2,000/);
    assert.deepEqual((await rowOf(page, 'load')).slice(0, 2), ['200 KiB', '303 KiB']);
    // make_node is on the stack twice; what it holds counts once: 400 times 48 and 16.
    assert.deepEqual((await rowOf(page, 'make_node')).slice(0, 2), ['25.0 KiB', '25.0 KiB']);
  },

  async 'a metric that is chosen changes graph and table'(page) {
    await choose(page, 'allocated');
    assert.equal((await rowOf(page, 'work'))[0], '3.81 MiB');
    const levels = await drawn(page);
    assert.deepEqual(levels[1].map(([name]) => name), ['worker', 'main']);
    await page.keyboard.press('5');
    await settle(page);
    assert.equal(await page.$eval('#metric', (select) => select.value), 'count');
    assert.equal((await rowOf(page, 'load'))[1], '1,600');
  },

  async 'a stretch of time that is brushed is what every view shows'(page) {
    await choose(page, 'allocated');
    await brush(page, 0.6, 0.9);
    assert.equal(await rowOf(page, 'load'), null, 'load allocates in the first half only');
    const levels = await drawn(page);
    assert.deepEqual(levels[1].map(([name]) => name), ['worker']);
    const share = await page.evaluate(() => {
      const { range, content, model } = globalThis.cairnPage;
      return { width: range[1] - range[0], of: content.slices.count, bytes: model.totals({ id: 'allocated', column: 'allocated_bytes', slice: 'slice_allocated_bytes' }, range)[0] };
    });
    assert.ok(Math.abs(share.width / share.of - 0.3) < 0.02, JSON.stringify(share));
    // One block of 10,000 bytes each five milliseconds.
    const expected = ((share.width / share.of) * 4000) / 5 * 10_000;
    assert.ok(Math.abs(share.bytes - expected) <= 20_000, `${share.bytes}, not ${expected}`);
    await page.click('#tab-sizes');
    await settle(page);
    assert.match(await text(page, '#sizes tbody'), /^8\.00 KiB – 16\.0 KiB[\d.]+ MiB$/);
    await page.click('#tab-threads');
    await settle(page);
    assert.match(await text(page, '#threads tbody'), /^worker/);
    await page.click('#tab-lifetimes');
    await settle(page);
    // Freed after two milliseconds each.
    assert.match(await text(page, '#lifetimes tbody'), /^1\.05 ms – 2\.10 ms/);
    await page.click('#whole');
    await settle(page);
    assert.equal(await page.$eval('#whole', (button) => button.hidden), true);
    await page.click('#tab-functions');
    await settle(page);
    assert.ok(await rowOf(page, 'load'));
  },

  async 'leaks of a range are those of what was allocated in it'(page) {
    await choose(page, 'leaked');
    await brush(page, 0.55, 0.95);
    assert.match(await text(page, '#functions tbody'), /Nothing of this here/);
    await brush(page, 0.1, 0.3);
    const bytes = await page.evaluate(() => {
      const { range, content, model, metric } = globalThis.cairnPage;
      return { leaked: model.totals(metric, range)[0], part: (range[1] - range[0]) / content.slices.count };
    });
    const documents = bytes.part * 800;
    assert.ok(Math.abs(bytes.leaked - documents * (4096 / 8 + 264)) < 9000, JSON.stringify(bytes));
  },

  async 'times that are typed are a range too, and nonsense is refused'(page) {
    await page.click('#from', { count: 3 });
    await page.type('#from', '1s');
    await page.click('#to', { count: 3 });
    await page.type('#to', '2500ms');
    await page.keyboard.press('Enter');
    await settle(page);
    const range = await page.evaluate(() => globalThis.cairnPage.range.map((slice) => slice * globalThis.cairnPage.content.slices.nanos / 1e9));
    assert.ok(Math.abs(range[0] - 1) < 0.02 && Math.abs(range[1] - 2.5) < 0.02, String(range));
    await page.click('#to', { count: 3 });
    await page.type('#to', 'soon');
    await page.keyboard.press('Enter');
    assert.equal(await page.$eval('#to', (field) => field.getAttribute('aria-invalid')), 'true');
  },

  async 'a range that is shown does not creep when one of its ends is typed again'(page) {
    await brush(page, 0.3, 0.7);
    const range = () => page.evaluate(() => String(globalThis.cairnPage.range));
    const before = await range();
    for (const field of ['#to', '#from', '#to']) {
      await page.$eval(field, (input) => input.dispatchEvent(new Event('change')));
      await settle(page);
    }
    assert.equal(await range(), before);
  },

  async 'inverted, the allocations are on top, and each leads to its callers'(page) {
    await page.keyboard.press('i');
    await settle(page);
    const levels = await drawn(page);
    assert.equal(levels[1][0][0], 'load');
    assert.equal(levels[2][0][0], 'main');
    const sum = levels[1].reduce((all, [, width]) => all + width, 0);
    assert.ok(Math.abs(sum - levels[0][0][1]) < 8, 'the allocations add up to everything');
  },

  async 'a click zooms, keys walk, Escape shows everything'(page) {
    const box = await (await page.$('#flame')).boundingBox();
    await page.mouse.click(box.x + 30, box.y + 3 * 20 + 10);
    await settle(page);
    let levels = await drawn(page);
    assert.deepEqual(levels[3].map(([name]) => name), ['parse_document(char const*)']);
    assert.ok(levels[3][0][1] > 1000, 'it is as wide as the graph');
    assert.match(await text(page, '#details'), /parse_document\(char const\*\).*\/usr\/lib\/libparse\.so\.1 · \/src\/parse\/document\.cpp:7/s);
    await page.focus('#flame');
    await page.keyboard.press('ArrowDown');
    assert.match(await text(page, '.chosen'), /^make_node$/);
    await page.keyboard.press('ArrowUp');
    await page.keyboard.press('ArrowUp');
    assert.match(await text(page, '.chosen'), /^load$/);
    await page.keyboard.press('Escape');
    await settle(page);
    levels = await drawn(page);
    assert.equal(levels[1].length, 2);
  },

  async 'what is typed is searched, and its share is shown'(page) {
    await page.keyboard.press('/');
    await page.keyboard.type('PARSE');
    await settle(page);
    // parse_document, and make_node by its module's name.
    assert.match(await text(page, '#found'), /^2 functions: 103 KiB, 33\.0 %$/);
    assert.deepEqual((await functions(page)).map((row) => row[2]).sort(), ['make_node', 'parse_document(char const*)']);
    await page.keyboard.press('Escape');
    await settle(page);
    assert.equal(await text(page, '#found'), '');
  },

  async 'columns sort, up and down'(page) {
    await page.click('#functions th[data-by="name"] button');
    await settle(page);
    const names = (await functions(page)).map((row) => row[2]);
    assert.deepEqual(names, [...names].sort());
    assert.equal(await page.$eval('#functions th[data-by="name"]', (cell) => cell.getAttribute('aria-sort')), 'ascending');
    await page.click('#functions th[data-by="name"] button');
    await settle(page);
    assert.deepEqual((await functions(page)).map((row) => row[2]), names.reverse());
  },

  async 'a source line is copied'(page) {
    await page.evaluate(() => {
      Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (text) => { globalThis.copied = text; } }, configurable: true });
    });
    await page.click('#functions tbody tr .copy');
    assert.equal(await page.evaluate(() => globalThis.copied), '/src/program/load.c:42');
  },

  async 'the address restores what was chosen'(page) {
    await choose(page, 'allocated');
    await page.click('#invert');
    await page.type('#search', 'work');
    await brush(page, 0.5, 0.75);
    await page.click('#tab-modules');
    await settle(page);
    const hash = await page.evaluate(() => location.hash);
    const again = await open('ordinary', { hash });
    assert.equal(await again.$eval('#metric', (select) => select.value), 'allocated');
    assert.equal(await again.$eval('#search', (field) => field.value), 'work');
    assert.equal(await again.$eval('#invert', (button) => button.getAttribute('aria-pressed')), 'true');
    assert.equal(await again.$eval('#tab-modules', (tab) => tab.getAttribute('aria-selected')), 'true');
    assert.deepEqual(await drawn(again), await drawn(page));
    assert.deepEqual(again.complaints, []);
    await again.close();
    await page.evaluate(() => history.back());
    await settle(page);
    assert.equal(await page.$eval('#invert', (button) => button.getAttribute('aria-pressed')), 'false');
  },

  async 'dark and light: as the system has it, and as the switch says'(page) {
    const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const pixel = () => page.evaluate(() => {
      const { flame } = globalThis.cairnPage;
      return flame.paint.page;
    });
    const [light, lightPixel] = [await background(), await pixel()];
    await page.click('#theme');
    assert.notEqual(await background(), light);
    assert.notEqual(await pixel(), lightPixel);
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'dark' }]);
    await page.click('#theme');
    assert.equal(await background(), light);
  },

  async 'everything that can be used has a name, and tabs are walked with arrows'(page) {
    const nameless = await page.evaluate(() =>
      Array.from(document.querySelectorAll('button, input, select, canvas, [role="tab"], summary'))
        .filter((element) => element.checkVisibility())
        .filter((element) => !(element.getAttribute('aria-label') || element.labels?.[0]?.textContent.trim() || element.textContent.trim()))
        .map((element) => element.outerHTML));
    assert.deepEqual(nameless, []);
    await page.focus('#tab-functions');
    await page.keyboard.press('ArrowRight');
    assert.equal(await page.evaluate(() => document.activeElement.id), 'tab-modules');
    assert.match(await text(page, '#modules tbody'), /libwork\.so/);
  },
};

async function hostile() {
  const page = await open('hostile');
  const check = async (where) => {
    assert.equal(await page.evaluate(() => globalThis.broken), undefined, where);
    const strange = await page.evaluate(() => Array.from(document.querySelectorAll('img, iframe, b, object, embed, link, base, form, svg'), (element) => element.outerHTML));
    assert.deepEqual(strange, [], where);
    assert.equal(await page.$$eval('script', (scripts) => scripts.length), 1, where);
    assert.deepEqual(page.complaints, [], where);
    const disturbing = await page.evaluate(() => /[\u0000-\u0008\u000b-\u001f\u200e\u200f\u202a-\u202e\u2066-\u2069]/.exec(document.body.innerText)?.index ?? -1);
    assert.equal(disturbing, -1, `${where}: a character that moves others is on the page`);
  };
  await check('as opened');
  for (const tab of ['modules', 'sizes', 'lifetimes', 'threads', 'about', 'functions']) {
    await page.click(`#tab-${tab}`);
    await settle(page);
    await check(tab);
  }
  await choose(page, 'count');
  const names = (await functions(page)).map((row) => row[2]);
  for (const name of ['<img src=x onerror="globalThis.broken=1">', '</script><script>globalThis.broken=1</script>', 'two\\nlines\\r\\nand\\ttabs', '__proto__']) {
    assert.ok(names.includes(name), `${name} is there as text; there are ${names.join(' | ')}`);
  }
  await page.click('#marks-box summary');
  assert.match(await text(page, '#marks'), /<img src=x onerror/);
  await page.type('#search', '<img src=x onerror="globalThis.broken=1">');
  await settle(page);
  await check('searched');
  const box = await (await page.$('#flame')).boundingBox();
  await page.mouse.click(box.x + 20, box.y + 30);
  await settle(page);
  await page.click('#invert');
  await settle(page);
  await check('clicked');
  // Content that is marked up anyway would not run either.
  await page.evaluate(() => {
    const made = document.createElement('div');
    made.innerHTML = '<img src="x:" onerror="globalThis.broken=2">';
    document.body.append(made);
  });
  await settle(page);
  assert.equal(await page.evaluate(() => globalThis.broken), undefined, 'the policy blocks it as well');
  await page.close();
  // An address from a stranger.
  for (const hash of ['#zoom=1.2.3.999999&range=5-2&tab=constructor&metric=__proto__', '#range=0-99999999&sort=<img>&theme=<b>', `#zoom=${'1.'.repeat(20000)}`, '#search=%']) {
    const bad = await open('hostile', { hash });
    assert.deepEqual(bad.complaints, [], hash.slice(0, 60));
    await bad.close();
  }
}

/** The labels of what is drawn, by level. */
const labels = (page) => page.evaluate(() => {
  const { flame } = globalThis.cairnPage;
  return Array.from(flame.rows, (row) => row.branches.map((branch) => flame.label(branch)));
});

/** What is drawn in all, in KiB. */
const drawnKib = (page) => page.evaluate(() => globalThis.cairnPage.flame.tree.root.value / 1024);

/** The place of the first frame with this label, on the screen. */
async function placeOf(page, label) {
  await page.$eval('#scroller', (element) => element.scrollIntoView());
  const place = await page.evaluate((wanted) => {
    const { flame } = globalThis.cairnPage;
    const branch = flame.rows.flatMap((row) => row.branches).find((one) => flame.label(one) === wanted);
    const { x, y, width } = branch && flame.placeOf(branch);
    return { x: x + Math.min(10, width / 2), y: y + 8 };
  }, label);
  const box = await (await page.$('#flame')).boundingBox();
  return [box.x + place.x, box.y + place.y];
}

async function folds() {
  const page = await open('owned');
  const sort = '… 3 frames of C++\'s standard library';
  const start = [['everything'], ['main', '__libc_start_main'], ['json_load', 'shop::report(Month)'], ['parse_value', sort], ['parse_value', 'shop::Less::operator()(Order const&)']];
  // Runs of folded frames are rows; start-up and the allocator's ends are none.
  const sorted = (levels) => levels.map((level) => [...level].sort());
  assert.deepEqual(sorted(await labels(page)).slice(0, 3), sorted(start).slice(0, 3));
  const rows = (await labels(page)).flat();
  assert.ok(rows.includes(sort), rows.join(' | '));
  assert.ok(!rows.some((label) => /malloc|_start$/.test(label) && label !== '__libc_start_main'), rows.join(' | '));
  assert.equal(await drawnKib(page), 63);
  // What folded frames asked for is listed at the function that called them.
  assert.deepEqual((await rowOf(page, 'shop::report(Month)')).slice(0, 2), ['3.00 KiB', '7.00 KiB']);
  assert.equal(await rowOf(page, 'malloc'), null);
  assert.match(await text(page, '#owners'), /your code.*standard library/);
  // A click opens a row, and it is in the address; Back closes it.
  await page.mouse.click(...await placeOf(page, sort));
  await settle(page);
  assert.match(await page.evaluate(() => location.hash), /opened=/);
  assert.ok((await labels(page)).flat().some((label) => label.startsWith('std::')));
  const again = await open('owned', { hash: await page.evaluate(() => location.hash) });
  assert.deepEqual(await labels(again), await labels(page));
  await again.close();
  await page.evaluate(() => history.back());
  await settle(page);
  assert.ok(!(await labels(page)).flat().some((label) => label.startsWith('std::')));
  // All frames, and back.
  await page.keyboard.press('u');
  await settle(page);
  const all = (await labels(page)).flat();
  for (const name of ['_start', 'malloc', 'std::__introsort_loop<Order*, Less>(Order*, Order*, Less)']) assert.ok(all.includes(name), name);
  assert.equal(await drawnKib(page), 63);
  await page.keyboard.press('u');
  await settle(page);
  // A search finds what is inside of a row.
  await page.type('#search', 'introsort');
  await settle(page);
  const found = await page.evaluate(() => {
    const { flame } = globalThis.cairnPage;
    return flame.rows.flatMap((row) => row.branches).filter((branch) => flame.foundCalls[branch.call]).map((branch) => flame.label(branch));
  });
  assert.deepEqual(found, [sort]);
  assert.match(await text(page, '#found'), /^1 function: 4\.00 KiB/);
  assert.deepEqual(page.complaints, []);
  await page.close();
}

async function transforms() {
  const page = await open('owned');
  const select = (label) => page.evaluate((wanted) => {
    const { flame } = globalThis.cairnPage;
    flame.select(flame.rows.flatMap((row) => row.branches).find((one) => flame.label(one) === wanted));
  }, label);
  const press = async (key) => {
    await page.keyboard.press(key);
    await settle(page);
  };
  const crumbs = () => page.$$eval('#transforms button:not(#undo-transform)', (buttons) => buttons.map((button) => button.textContent));
  // A right click offers what can be done, arrows walk, and Enter does it.
  await page.mouse.click(...await placeOf(page, 'shop::report(Month)'), { button: 'right' });
  assert.equal(await page.$eval('#menu', (menu) => menu.hidden), false);
  const offered = await page.$$eval('#menu button span', (items) => items.map((item) => item.textContent));
  assert.deepEqual(offered, ['Focus on function', 'Focus on this call and what it calls', 'Merge function into its callers', 'Collapse module', 'Collapse recursion', 'Drop stacks with this function']);
  await press('Escape');
  assert.equal(await page.$eval('#menu', (menu) => menu.hidden), true);
  await page.mouse.click(...await placeOf(page, 'shop::report(Month)'), { button: 'right' });
  await press('ArrowDown');
  await press('ArrowUp');
  await press('Enter');
  assert.equal((await labels(page))[1][0], 'shop::report(Month)');
  assert.equal(await drawnKib(page), 7);
  assert.deepEqual(await crumbs(), ['everything', 'focus: shop::report(Month)']);
  // Steps follow each other, and the address has them all.
  await select('shop::Less::operator()(Order const&)');
  await press('D');
  assert.equal(await drawnKib(page), 3);
  assert.deepEqual((await rowOf(page, 'shop::report(Month)')).slice(0, 2), ['3.00 KiB', '3.00 KiB']);
  const hash = await page.evaluate(() => location.hash);
  const again = await open('owned', { hash });
  assert.deepEqual(await labels(again), await labels(page));
  assert.equal(await drawnKib(again), 3);
  assert.deepEqual(again.complaints, []);
  await again.close();
  // Undo by key, by the breadcrumb, and by going back.
  await press('z');
  assert.equal(await drawnKib(page), 7);
  await page.click('#transforms button');
  await settle(page);
  assert.equal(await drawnKib(page), 63);
  assert.equal(await page.$eval('#transforms', (box) => box.hidden), true);
  // The other transforms keep everything.
  for (const [label, key, gone] of [['parse_value', 'R', 2], ['parse_value', 'M', 0], ['json_load', 'C', 0], ['json_load', 'S', -1]]) {
    await select(label);
    await press(key);
    const left = (await labels(page)).flat();
    if (key === 'S') assert.equal(await drawnKib(page), 24);
    else assert.equal(await drawnKib(page), 63, key);
    if (key === 'C') assert.ok(left.includes('[libjansson.so.4]') && !left.includes('parse_value'), left.join(' | '));
    if (gone >= 0 && key !== 'C') assert.equal(left.filter((one) => one === label).length, key === 'R' ? 1 : 0, key);
    await press('z');
  }
  assert.deepEqual(page.complaints, []);
  await page.close();
  // Steps of a stranger.
  for (const bad of ['#transforms=ff-zzzz~cm-1~fs-a.b', `#transforms=${'ff-a~'.repeat(3000)}`, '#transforms=__proto__-a&opened=zzzzzzz.<img>.-1&unfolded=<b>']) {
    const strange = await open('owned', { hash: bad });
    assert.deepEqual(strange.complaints, [], bad.slice(0, 60));
    await strange.close();
  }
}

async function pruned() {
  const page = await open('pruned', { hash: '#tab=about' });
  const about = await text(page, '#about');
  assert.match(about, /[\d,]+ of [\d,]+ stacks end in branches that are less than .* of every cost/);
  assert.match(await text(page, '#left-out'), /are put together\./);
  assert.match(about, /Time is cut into \d+ slices/);
  const sums = await page.evaluate(() => {
    const { model, content } = globalThis.cairnPage;
    const sum = (metric) => model.totals(metric, null)[0];
    return [sum({ id: 'allocated', column: 'allocated_bytes' }), content.totals.allocated_bytes, sum({ id: 'peak', column: 'peak_bytes' }), content.totals.peak_bytes];
  });
  assert.equal(sums[0], sums[1]);
  assert.equal(sums[2], sums[3]);
  await page.close();
}

/** Files of other tools do not tell everything: what they do not is said, and nothing is drawn in its place. */
async function imported() {
  const sums = await open('sums');
  assert.match(await sums.$eval('#timeline', (canvas) => canvas.getAttribute('aria-label')), /sums and no times/);
  assert.equal(await sums.$eval('#from', (field) => field.parentElement.hidden), true);
  assert.equal(await sums.$eval('#metric', (select) => select.value), 'peak');
  assert.equal(await text(sums, '#meaning'), 'Held at the peak.');
  assert.doesNotMatch(await text(sums, '#summary'), /after|a second/);
  assert.match(await text(sums, '#about'), /This file has sums and no times\./);
  assert.ok((await functions(sums)).length > 3);
  await brush(sums, 0.2, 0.6);
  assert.equal(await sums.evaluate(() => globalThis.cairnPage.range), null, 'there is nothing to brush');
  assert.deepEqual(sums.complaints, []);
  await sums.screenshot({ path: join(directory, 'sums.png') });
  await sums.close();

  const allocations = await open('allocations');
  assert.match(await allocations.$eval('#timeline', (canvas) => canvas.getAttribute('aria-label')), /does not say what was freed/);
  assert.equal(await allocations.$eval('#metric', (select) => select.value), 'allocated');
  const whole = () => allocations.evaluate(() => {
    const { model, metric, range } = globalThis.cairnPage;
    return model.totals(metric, range)[0];
  });
  const all = await whole();
  await brush(allocations, 0.2, 0.6);
  const part = await whole();
  assert.ok(part > 0 && part < all, `${part} of ${all}`);
  // What is not known cannot be chosen, neither by a key nor by an address.
  await allocations.keyboard.press('1');
  await settle(allocations);
  assert.equal(await allocations.$eval('#metric', (select) => select.value), 'allocated');
  assert.match(await text(allocations, '#summary'), /Heldnot known/);
  await choose(allocations, 'count');
  assert.equal(await allocations.evaluate(() => globalThis.cairnPage.metric.id), 'count');
  assert.deepEqual(allocations.complaints, []);
  await allocations.screenshot({ path: join(directory, 'allocations.png') });
  await allocations.close();
}

/** At these widths nothing may stick out; the pictures are for eyes. */
async function screens() {
  for (const width of [360, 1280, 3840]) {
    for (const scheme of ['light', 'dark']) {
      for (const name of ['ordinary', 'owned', 'hostile', 'large']) {
        if (name === 'large' && scheme === 'light') continue;
        const page = await open(name, { width, height: width === 3840 ? 2160 : 900, scheme });
        const wider = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.ok(wider <= 0, `${name} at ${width}: ${wider} pixels stick out`);
        await page.screenshot({ path: join(directory, `${name}-${width}-${scheme}.png`), fullPage: width < 3840 });
        await page.close();
      }
    }
  }
}

const median = (list) => [...list].sort((a, b) => a - b)[list.length >> 1];

/** How long the page of 200,000 calls takes: from its bytes to the first picture, and from a key or click to the next one. */
async function times() {
  const opened = [];
  for (let run = 0; run < 5; run++) {
    const page = await open('large');
    opened.push(await page.evaluate(() => [Number(document.documentElement.dataset.parsedMillis), Number(document.documentElement.dataset.drawnMillis), Number(document.documentElement.dataset.pictureMillis)]));
    await page.close();
  }
  const page = await open('large');
  const steps = await page.evaluate(async () => {
    const { cairnPage: it } = globalThis;
    const next = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 60)));
    const measure = async (act) => {
      const times = [];
      for (let i = 0; i < 15; i++) {
        const began = performance.now();
        act(i);
        times.push(performance.now() - began);
        await next();
      }
      return times;
    };
    const field = document.getElementById('search');
    const word = 'widget6 step_12';
    const top = it.flame.tree.children(it.flame.tree.root);
    const deep = (i) => { let at = top[i % top.length]; for (let level = 0; level < i % 5; level++) at = it.flame.tree.children(at)[0] || at; return at; };
    const result = { calls: it.model.calls, places: it.flame.rows.reduce((sum, row) => sum + row.x.length, 0) };
    result.zoom = await measure((i) => it.flame.zoom(i % 2 ? it.flame.tree.root : deep(i)));
    it.flame.zoom(it.flame.tree.root);
    result.keystroke = await measure((i) => { field.value = word.slice(0, 1 + (i % 7)); it.searched(); });
    result.keystrokeRest = await measure((i) => { field.value = word.slice(0, 1 + (i % 7)); it.found = it.model.search(field.value); it.showRest(); });
    field.value = '';
    it.searched();
    result.brush = await measure((i) => { it.range = [i, i + 60]; it.showTree(); });
    result.brushRest = await measure((i) => { it.range = [i, i + 60]; it.showRest(); });
    it.range = null;
    result.invert = await measure((i) => { it.state.inverted = i % 2 ? '' : '1'; it.showTree(); });
    return result;
  });
  await page.close();
  const column = (i) => opened.map((run) => run[i]);
  console.log(JSON.stringify({
    calls: steps.calls, places: steps.places,
    unpackedMillis: median(column(0)), drawnMillis: median(column(1)), sinceNavigationMillis: median(column(2)),
    ...Object.fromEntries(Object.entries(steps).filter(([, list]) => Array.isArray(list)).map(([name, list]) => [name, { median: median(list), worst: Math.max(...list) }])),
  }, null, 1));
}

let failures = 0;
async function run(name, test) {
  try {
    await test();
    console.log(`ok      ${name}`);
  } catch (error) {
    failures += 1;
    console.log(`FAILED  ${name}\n${error.stack}`);
  }
}

if (switches.includes('--times')) {
  await times();
} else {
  for (const [name, test] of Object.entries(tests)) {
    await run(name, async () => {
      const page = await open('ordinary');
      await test(page);
      assert.deepEqual(page.complaints, []);
      await page.close();
    });
  }
  await run('names of a hostile author are text everywhere', hostile);
  await run('folded frames are rows that open', folds);
  await run('the tree is focused, merged, collapsed and undone', transforms);
  await run('what was left out is shown, and no sum misses it', pruned);
  await run('facts that an imported file lacks are named', imported);
  if (!switches.includes('--no-screens')) await run('nothing sticks out at 360, 1280 and 3840 pixels', screens);
}
await browser.close();
process.exitCode = failures ? 1 : 0;

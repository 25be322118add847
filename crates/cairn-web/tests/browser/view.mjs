// Uses `cairn view` in a real browser as a reader does: recordings of programs that really ran, and of one that runs.
//
//   node view.mjs DIRECTORY [--no-screens]
//
// The directory takes the programs, recordings and screenshots. CAIRN is the command, PUPPETEER_FROM where puppeteer-core is, CHROMIUM
// the browser.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync, symlinkSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const [given, ...switches] = process.argv.slice(2);
const directory = resolve(given);
const here = dirname(fileURLToPath(import.meta.url));
const { CAIRN: cairn } = process.env;
const from = process.env.PUPPETEER_FROM ? pathToFileURL(resolve(process.env.PUPPETEER_FROM, 'x')) : import.meta.url;
const loaded = await import(pathToFileURL(createRequire(from).resolve('puppeteer-core')));
const puppeteer = loaded.default ?? loaded;

const EVIL = '<img src=x onerror=globalThis.broken=1>';
const sources = join(directory, 'sources');
const recordings = join(directory, 'recordings');
const screens = join(directory, 'screens');
for (const made of [sources, recordings]) rmSync(made, { recursive: true, force: true });
for (const made of [sources, recordings, screens]) mkdirSync(made, { recursive: true });

/** Processes that this test started, to be ended by it. */
const started = new Set();
function start(program, words, options = {}) {
  const child = spawn(program, words, { stdio: ['ignore', 'pipe', 'inherit'], ...options });
  started.add(child);
  child.on('exit', () => started.delete(child));
  return child;
}

function stop(child) {
  child.kill('SIGINT');
  return new Promise((done) => (child.exitCode === null && child.signalCode === null ? child.on('exit', done) : done()));
}

const wait = (millis) => new Promise((done) => setTimeout(done, millis));
async function until(what, check, millis = 20_000) {
  const end = Date.now() + millis;
  for (;;) {
    if (await check()) return;
    assert.ok(Date.now() < end, `${what}: not within ${millis} ms`);
    await wait(100);
  }
}

function compile(name, as) {
  const text = readFileSync(join(here, '../../../../fixtures/programs/heap', `${name}.c`), 'utf8');
  writeFileSync(join(sources, `${name}.c`), text);
  execFileSync('cc', ['-g', '-O1', '-o', join(directory, as), join(sources, `${name}.c`)], { stdio: 'inherit' });
  return join(directory, as);
}

function record(name, program, ...words) {
  execFileSync(cairn, ['heap', '-q', '-o', join(recordings, name), program, ...words], { stdio: 'ignore' });
}

/** Serves, and says where. */
async function serve(...words) {
  const server = start(cairn, ['view', '--no-open', '--no-cache', ...words], { stdio: ['ignore', 'pipe', 'ignore'] });
  let text = '';
  server.stdout.on('data', (data) => (text += data));
  await until('the address', () => text.includes('\n'));
  return { server, url: text.trim() };
}

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
  args: ['--no-sandbox'],
  protocolTimeout: 120_000,
});

async function open(url, { width = 1280, height = 900, scheme = 'light' } = {}) {
  const page = await browser.newPage();
  page.complaints = [];
  page.on('pageerror', (error) => page.complaints.push(`error: ${error.message}`));
  page.on('console', (message) => {
    // The browser reports each answer that is no success; the tests state which of them are expected.
    if (!page.expected?.test(message.text())) page.complaints.push(`console: ${message.text()}`);
  });
  const { origin } = new URL(url);
  page.on('request', (request) => {
    if (!request.url().startsWith(`${origin}/`)) page.complaints.push(`request: ${request.url()}`);
  });
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
  await page.setViewport({ width, height });
  await page.goto(url);
  await page.waitForSelector('html[data-ready]', { timeout: 60_000 });
  await settle(page);
  return page;
}

async function settle(page) {
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => setTimeout(() => requestAnimationFrame(() => setTimeout(done, 30)), 30))));
}

/** Waits until what was asked of the server is shown. */
async function answered(page) {
  await settle(page);
  await page.waitForFunction(() => !['Reading …', 'Comparing …'].some((text) => document.body.innerText.includes(text)), { timeout: 60_000 });
  await settle(page);
}

const text = (page, selector) => page.$eval(selector, (element) => element.textContent);
const names = (page, table = '#functions') => page.$$eval(`${table} tbody tr`, (rows) => rows.map((row) => row.querySelector('td.name')?.textContent));

async function brush(page, canvas, from, to) {
  const element = await page.$(canvas);
  await element.scrollIntoView();
  const box = await element.boundingBox();
  const y = box.y + box.height / 2;
  await page.mouse.move(box.x + box.width * from, y);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * to, y, { steps: 6 });
  await page.mouse.up();
  await settle(page);
}

const sticksOut = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

async function picture(page, name) {
  if (!switches.includes('--no-screens')) await page.screenshot({ path: join(screens, `${name}.png`) });
}

const steady = compile('steady', 'steady');
const evil = compile('markup', EVIL);
record('before.cairn', steady, '60', '4', '2000');
record('after.cairn', steady, '120', '4', '2000', 'extra');
record(`${EVIL}.cairn`, evil);
writeFileSync(join(directory, 'secret.txt'), 'secret');
symlinkSync(join(directory, 'secret.txt'), join(sources, 'link.txt'));

const { server, url } = await serve(recordings, '--source', sources);
const linkTo = (words) => `${url}#${new URLSearchParams(words)}`;

const tests = {
  async 'one of the recordings of a directory is shown, and another one is chosen'() {
    const page = await open(linkTo({ recording: 'after.cairn' }));
    assert.match(await text(page, '#command'), /steady 120 4 2000 extra/);
    assert.ok((await names(page)).includes('only_sometimes'));
    await page.select('#recording', 'before.cairn');
    await answered(page);
    assert.match(await text(page, '#command'), /steady 60 4 2000$/);
    assert.ok(!(await names(page)).includes('only_sometimes'));
    await page.evaluate(() => history.back());
    await answered(page);
    await until('going back', async () => (await names(page)).includes('only_sometimes'));
    return page;
  },

  async 'the token is not in the address that is copied, and a copy opens in this browser alone'() {
    const page = await open(linkTo({ recording: 'after.cairn', metric: 'count', search: 'load' }));
    const token = new URL(url).pathname.split('/')[1];
    const address = await page.evaluate(() => location.href);
    assert.ok(!address.includes(token), address);
    await page.evaluate(() => Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (text) => { globalThis.copied = text; } }, configurable: true }));
    await page.click('#copy-link');
    const copied = await page.evaluate(() => globalThis.copied);
    assert.equal(copied, address);
    page.expected = /401/;
    await page.reload();
    await page.waitForSelector('html[data-ready]');
    assert.equal(await page.$eval('#search', (field) => field.value), 'load');
    assert.equal(await page.$eval('#metric', (select) => select.value), 'count');
    const other = await browser.createBrowserContext();
    const stranger = await other.newPage();
    const answer = await stranger.goto(copied);
    assert.equal(answer.status(), 401);
    assert.match(await stranger.evaluate(() => document.body.innerText), /holds a token/);
    await other.close();
    return page;
  },

  async 'a range, a zoom, a search and a theme are restored by the address'() {
    const page = await open(linkTo({ recording: 'after.cairn', metric: 'allocated' }));
    await brush(page, '#timeline', 0.2, 0.6);
    await page.click('#theme');
    const box = await (await page.$('#flame')).boundingBox();
    await page.mouse.click(box.x + 30, box.y + 2 * 20 + 10);
    await answered(page);
    const state = () => page.evaluate(() => ({ chosen: document.querySelector('.chosen').textContent, range: String(globalThis.cairnPage.range), zoom: globalThis.cairnPage.flame.path(globalThis.cairnPage.flame.zoomed).join('.'), dark: document.documentElement.dataset.theme, rows: document.querySelector('#functions tbody').textContent }));
    const before = await state();
    assert.ok(before.zoom && before.range !== 'null', JSON.stringify(before));
    page.expected = /401/;
    await page.reload();
    await page.waitForSelector('html[data-ready]');
    await answered(page);
    const after = await state();
    assert.deepEqual(after, before);
    return page;
  },

  async 'a part of the calls, a thread, and a class of sizes are asked for alone'() {
    const page = await open(linkTo({ recording: 'after.cairn', metric: 'allocated' }));
    const whole = await page.evaluate(() => globalThis.cairnPage.content.totals.allocated_bytes);
    await page.type('#search', 'only_sometimes');
    await settle(page);
    await page.evaluate(() => {
      const { flame, model } = globalThis.cairnPage;
      const find = (branch) => (model.names[branch.functionNumber] === 'only_sometimes' ? branch : flame.tree.children(branch).map(find).find(Boolean));
      flame.select(find(flame.tree.root));
    });
    await page.click('#only-below');
    await answered(page);
    const part = await page.evaluate(() => globalThis.cairnPage.content.totals.allocated_bytes);
    assert.equal(part, 120 * 6000);
    assert.ok(part < whole);
    assert.match(await text(page, '#parts'), /only a part of the calls/);
    await page.click('#parts button');
    await answered(page);
    assert.equal(await page.evaluate(() => globalThis.cairnPage.content.totals.allocated_bytes), whole);
    await page.click('#tab-sizes');
    await settle(page);
    const rows = await page.$$('#sizes tbody tr');
    let chosen = null;
    for (const row of rows) if (/^3\.91 KiB|^2\.00 KiB|^4\.00 KiB/.test(await row.evaluate((r) => r.textContent))) chosen = row;
    await (await chosen.$('button')).click();
    await answered(page);
    assert.match(await text(page, '#parts'), /only sizes/);
    const sized = await page.evaluate(() => globalThis.cairnPage.content.totals);
    assert.ok(sized.allocations >= 120 && sized.allocated_bytes < whole, JSON.stringify(sized));
    return page;
  },

  async 'the parts and the limit of an address are shown, and taken back'() {
    const whole = await open(linkTo({ recording: 'after.cairn', metric: 'allocated' }));
    const totals = (page) => page.evaluate(() => globalThis.cairnPage.content.totals.allocated_bytes);
    const rowsOf = async (page) => (await names(page)).length;
    const [all, rows] = [await totals(whole), await rowsOf(whole)];
    await whole.close();
    const page = await open(linkTo({ recording: 'after.cairn', metric: 'allocated', function: 'only_*', module: 'steady', to: '900000000000', limit: '1' }));
    assert.equal(await totals(page), 120 * 6000);
    assert.equal(await rowsOf(page), 1);
    assert.match(await text(page, '#parts'), /only function only_\*.*only module steady.*only up to 15 min/);
    await page.click('#more-functions');
    await settle(page);
    assert.ok((await rowsOf(page)) > 1 && (await page.$eval('#more-functions', (button) => button.hidden)));
    for (let parts = 3; parts > 0; parts--) {
      assert.equal((await page.$$('#parts button')).length, parts);
      await page.click('#parts button');
      await answered(page);
    }
    assert.equal(await totals(page), all);
    // A share leaves narrow frames out of the graph, too.
    const branches = () => page.evaluate(() => globalThis.cairnPage.flame.rows.reduce((sum, row) => sum + row.branches.length, 0));
    const usual = await branches();
    await page.evaluate(() => globalThis.cairnView.page.choose({ limit: '40%' }));
    await settle(page);
    assert.ok((await branches()) < usual && (await rowsOf(page)) < rows, `${await branches()} of ${usual}`);
    await page.evaluate(() => globalThis.cairnView.page.choose({ limit: 'all' }));
    await settle(page);
    assert.equal(await rowsOf(page), rows);
    return page;
  },

  async 'a source line is shown where its file is at hand'() {
    const page = await open(linkTo({ recording: 'after.cairn' }));
    const button = await page.evaluateHandle(() => Array.from(document.querySelectorAll('#functions td.source .link')).find((it) => /steady\.c:\d+/.test(it.textContent)));
    await button.click();
    await page.waitForSelector('#source-text .here');
    assert.match(await text(page, '#source-text .here'), /malloc|load_document|parse_document|only_sometimes/);
    assert.match(await text(page, '#source-note'), /sources\/steady\.c/);
    await picture(page, 'source');
    await page.keyboard.press('Escape');
    assert.equal(await page.$eval('#source-box', (box) => box.open), false);
    page.expected = /404/;
    for (const [file, why] of [['/etc/passwd', /no such file/], [join(sources, 'link.txt'), /no such file/], [join(sources, '../secret.txt'), /no such file/]]) {
      await page.evaluate((file) => globalThis.cairnView.source.show({ file, line: 1 }), file);
      assert.match(await text(page, '#source-note'), why, file);
      assert.equal(await text(page, '#source-text'), '');
    }
    return page;
  },

  async 'two recordings are compared: what is new, what grew, and by how much'() {
    const page = await open(linkTo({ recording: 'before.cairn' }));
    await page.select('#against', 'after.cairn');
    await answered(page);
    await page.waitForSelector('#growth-table tbody tr');
    await page.select('#compare-metric', 'leaked');
    await settle(page);
    const rows = await page.$$eval('#growth-table tbody tr', (rows) => rows.map((row) => Array.from(row.cells, (cell) => cell.textContent)));
    const row = (name) => rows.find((cells) => cells[0] === name);
    assert.equal(row('only_sometimes')[1], '0 B');
    assert.match(row('only_sometimes')[3], /^\+703 KiB \(new\)$/);
    assert.match(row('load_document')[3], /^\+117 KiB \(2\.00 times\)$/);
    assert.equal(rows[0][0], 'only_sometimes');
    assert.match(await text(page, '#compare-owners'), /your code/);
    assert.match(await text(page, '#comparison-note'), /\d+ frames? (is|are) folded: cairn view --internals shows/);
    assert.match(await text(page, '#growth'), /Leaked121 KiB → 942 KiB/);
    assert.match(await text(page, '#growth'), /Temporary60 → 120\+60 \(2\.00 times\)/);
    // Red, and blue the other way round.
    const colour = () => page.evaluate(() => {
      const { flame, model } = globalThis.cairnComparison;
      const find = (branch) => (model.names[branch.functionNumber] === 'only_sometimes' ? branch : flame.tree.children(branch).map(find).find(Boolean));
      return flame.colour(find(flame.tree.root), false);
    });
    assert.match(await colour(), /^hsl\(6 78% /);
    await page.type('#compare-search', 'sometimes');
    await settle(page);
    assert.deepEqual(await names(page, '#growth-table'), ['only_sometimes']);
    const box = await (await page.$('#compare-flame')).boundingBox();
    await page.mouse.click(box.x + 60, box.y + 30);
    await settle(page);
    assert.match(await text(page, '#compare-details'), /before .* after /);
    page.expected = /401/;
    await page.reload();
    await page.waitForSelector('html[data-ready]');
    await answered(page);
    assert.equal(await page.$eval('#compare-search', (field) => field.value), 'sometimes');
    assert.deepEqual(await names(page, '#growth-table'), ['only_sometimes']);
    await picture(page, 'compared');
    await page.select('#recording', 'after.cairn');
    await answered(page);
    await page.select('#against', 'before.cairn');
    await answered(page);
    assert.match(await colour(), /^hsl\(214 78% /);
    return page;
  },

  async 'a stretch of either recording is compared alone'() {
    const page = await open(linkTo({ recording: 'before.cairn', against: 'before.cairn', metric: 'allocated' }));
    assert.match(await text(page, '#growth'), /the same/);
    await brush(page, '#timeline-before', 0.05, 0.5);
    await wait(400);
    await answered(page);
    const sums = await page.evaluate(() => ['before', 'after'].map((side) => globalThis.cairnComparison.model.totals(side, { column: 'allocated_bytes' })[0]));
    assert.ok(sums[0] > 0 && sums[0] < sums[1] * 0.7, String(sums));
    assert.match(await page.evaluate(() => location.hash), /before=\d+-\d+/);
    await page.click('#before-whole');
    await wait(400);
    await answered(page);
    assert.match(await text(page, '#growth'), /the same/);
    return page;
  },

  async 'names of a hostile program are text everywhere'() {
    const check = async (page, where) => {
      assert.equal(await page.evaluate(() => globalThis.broken), undefined, where);
      const strange = await page.evaluate(() => Array.from(document.querySelectorAll('img, iframe, object, embed, link, base, svg, bdi b'), (element) => element.outerHTML));
      assert.deepEqual(strange, [], where);
    };
    const page = await open(linkTo({ recording: `${EVIL}.cairn` }));
    await check(page, 'opened');
    const shown = await names(page);
    assert.ok(shown.includes(EVIL), shown.join(' | '));
    assert.equal(await page.$eval('#recording', (select) => select.selectedOptions[0].textContent), `${EVIL}.cairn`);
    for (const tab of ['modules', 'sizes', 'lifetimes', 'threads', 'about', 'functions']) {
      await page.click(`#tab-${tab}`);
      await settle(page);
      await check(page, tab);
    }
    assert.match(await text(page, '#threads'), /<b>bold<\/b>/);
    await page.type('#search', EVIL);
    await settle(page);
    await page.evaluate(() => {
      const { flame, model } = globalThis.cairnPage;
      const find = (branch) => (model.names[branch.functionNumber].startsWith('<img') ? branch : flame.tree.children(branch).map(find).find(Boolean));
      flame.select(find(flame.tree.root));
    });
    await page.click('#only-below');
    await answered(page);
    assert.match(await text(page, '#parts'), /only a part/);
    await check(page, 'a part');
    page.expected = /404/;
    await page.evaluate(() => globalThis.cairnView.source.show({ file: '/src/<img src=x onerror=globalThis.broken=1>.c', line: 77 }));
    await check(page, 'source');
    await page.evaluate(() => globalThis.cairnView.source.box.close());
    await page.select('#against', 'before.cairn');
    await answered(page);
    await check(page, 'compared');
    assert.ok((await names(page, '#growth-table')).includes(EVIL));
    // The policy blocks it as well.
    await page.evaluate(() => {
      const made = document.createElement('div');
      made.innerHTML = '<img src="x:" onerror="globalThis.broken=2">';
      document.body.append(made);
    });
    await settle(page);
    assert.equal(await page.evaluate(() => globalThis.broken), undefined);
    page.complaints = page.complaints.filter((complaint) => !/Content Security Policy|violates|request: x:/.test(complaint));
    return page;
  },

  async 'an address of a stranger does no harm'() {
    for (const words of [{ recording: '../../etc/passwd' }, { recording: 'nowhere', against: '__proto__' }, { below: 'zzzz' }, { below: '%%%', size: '9-1' }, { thread: EVIL }, { range: '5-1', zoom: 'x.y', width: '<b>' }]) {
      const page = await browser.newPage();
      page.errors = [];
      page.on('pageerror', (error) => page.errors.push(error.message));
      await page.goto(linkTo(words));
      await page.waitForSelector('html[data-ready]');
      assert.deepEqual(page.errors, [], JSON.stringify(words));
      assert.equal(await page.evaluate(() => globalThis.broken), undefined);
      await page.close();
    }
  },

  async 'what another page asks for with the token is not given to it'() {
    const { origin } = new URL(url);
    const token = new URL(url).pathname.split('/')[1];
    const page = await browser.newPage();
    const other = await serve(recordings);
    page.on('pageerror', () => {});
    await page.goto(other.url);
    await page.waitForSelector('html[data-ready]');
    // Its own policy would refuse it; what comes from it is refused as well.
    await page.setBypassCSP(true);
    await page.reload();
    await page.waitForSelector('html[data-ready]');
    const seen = await page.evaluate(async (origin, token) => {
      try {
        const answer = await fetch(`${origin}/api/1/recordings`, { headers: { 'X-Cairn-Token': token } });
        return answer.status;
      } catch (error) {
        return String(error);
      }
    }, origin, token);
    assert.match(String(seen), /TypeError/);
    await page.close();
    await stop(other.server);
  },
};

async function live() {
  const path = join(recordings, 'live.cairn');
  const recorder = start(cairn, ['heap', '-q', '-o', path, steady, '30000', '4', '1000'], { stdio: 'ignore' });
  await until('the recording', () => existsSync(path));
  await wait(800);
  const watched = execFileSync('pgrep', ['-P', String(recorder.pid)], { encoding: 'utf8' }).trim().split('\n')[0];
  const watching = await serve(watched);
  const page = await open(watching.url);
  const allocations = () => page.evaluate(() => globalThis.cairnPage.content.totals.allocations);
  assert.match(await text(page, '#live-state'), /it records/);
  const first = await allocations();
  await until('news', async () => (await allocations()) > first + 100);
  // What was chosen stays while it grows.
  await page.type('#search', 'load');
  await page.select('#metric', 'allocated');
  await brush(page, '#timeline', 0.1, 0.5);
  await page.evaluate(() => {
    const { flame, model } = globalThis.cairnPage;
    const find = (branch) => (model.names[branch.functionNumber] === 'parse_document' ? branch : flame.tree.children(branch).map(find).find(Boolean));
    flame.zoom(find(flame.tree.root));
    flame.select(flame.zoomed);
    window.scrollTo(0, 200);
  });
  await page.focus('#search');
  const state = () => page.evaluate(() => {
    const { flame, model, state } = globalThis.cairnPage;
    return { zoomed: model.names[flame.zoomed.functionNumber], chosen: document.querySelector('.chosen').textContent, search: document.querySelector('#search').value, range: state.range, focus: document.activeElement.id, scroll: window.scrollY, metric: document.querySelector('#metric').value, found: document.querySelector('#functions tbody').rows.length };
  });
  const before = await state();
  assert.equal(before.zoomed, 'parse_document');
  assert.ok(before.range);
  const updates = () => page.evaluate(() => Number(document.documentElement.dataset.updates));
  const seen = await updates();
  await until('two updates', async () => (await updates()) > seen + 1);
  assert.deepEqual(await state(), before);
  await picture(page, 'live');
  // Paused, nothing moves.
  await page.click('#live');
  await settle(page);
  const stood = await allocations();
  await wait(2500);
  assert.equal(await allocations(), stood);
  await page.click('#live');
  await until('it goes on', async () => (await allocations()) > stood);
  // The page stops the program, and continues it.
  await page.click('#record-stop');
  await until('it stopped', async () => /stopped/.test(await text(page, '#live-state')));
  await wait(1500);
  const stopped = await allocations();
  await wait(2500);
  assert.ok((await allocations()) - stopped < 50, 'nothing is recorded');
  await page.click('#record-start');
  await until('it started', async () => /it records/.test(await text(page, '#live-state')));
  await until('it goes on again', async () => (await allocations()) > stopped + 200);
  await page.type('#mark-text', EVIL);
  await page.click('#record-mark');
  await until('the mark', async () => (await text(page, '#marks')).includes(EVIL));
  assert.equal(await page.evaluate(() => globalThis.broken), undefined);
  // The program ends.
  execFileSync('kill', [watched]);
  await until('its end', async () => /ended/.test(await text(page, '#live-state')));
  await until('the end of the recorder', () => recorder.exitCode !== null || recorder.signalCode !== null);
  const report = JSON.parse(execFileSync(cairn, ['report', '--json', path], { encoding: 'utf8' }));
  await until('the last of it', async () => (await allocations()) === report.total_allocations);
  assert.ok(await page.$eval('#record-stop', (button) => button.disabled));
  assert.deepEqual(page.complaints, []);
  await page.close();
  await stop(watching.server);
  await until('the recorder', () => recorder.exitCode !== null || recorder.signalCode !== null);
}

async function ends() {
  const dying = await serve(recordings);
  const page = await open(dying.url);
  page.expected = /ERR_CONNECTION_REFUSED|Failed to load/;
  const before = await text(page, '#functions tbody');
  await stop(dying.server);
  await page.evaluate(() => { globalThis.cairnView.reads = 4; });
  await until('the notice', async () => /has ended; what is shown stays/.test(await text(page, '#notice')));
  assert.equal(await text(page, '#functions tbody'), before);
  return page;
}

async function screen() {
  for (const [width, height] of [[360, 800], [1280, 900], [3840, 2160]]) {
    for (const scheme of ['light', 'dark']) {
      for (const [name, words] of [['one', { recording: 'after.cairn' }], ['two', { recording: 'before.cairn', against: 'after.cairn' }], ['evil', { recording: `${EVIL}.cairn` }]]) {
        const page = await open(linkTo(words), { width, height, scheme });
        await answered(page);
        assert.ok((await sticksOut(page)) <= 0, `${name} at ${width}: ${await sticksOut(page)} pixels stick out`);
        const nameless = await page.evaluate(() =>
          Array.from(document.querySelectorAll('button, input, select, canvas, summary'))
            .filter((element) => element.checkVisibility())
            .filter((element) => !(element.getAttribute('aria-label') || element.labels?.[0]?.textContent.trim() || element.textContent.trim()))
            .map((element) => element.outerHTML));
        assert.deepEqual(nameless, []);
        await picture(page, `${name}-${width}-${scheme}`);
        assert.deepEqual(page.complaints, []);
        await page.close();
      }
    }
  }
}

let failures = 0;
async function run(name, test) {
  const only = process.env.ONLY;
  if (only && !name.includes(only)) return;
  try {
    const page = await test();
    if (page) {
      assert.deepEqual(page.complaints, []);
      await page.close();
    }
    console.log(`ok      ${name}`);
  } catch (error) {
    failures += 1;
    console.log(`FAILED  ${name}\n${error.stack}`);
  }
}

try {
  for (const [name, test] of Object.entries(tests)) await run(name, test);
  await run('a program that runs is followed and controlled', live);
  await run('a page whose server has ended stays as it is', ends);
  await run('nothing sticks out at 360, 1280 and 3840 pixels', screen);
} finally {
  await browser.close();
  for (const child of started) child.kill('SIGKILL');
}
process.exitCode = failures ? 1 : 0;
